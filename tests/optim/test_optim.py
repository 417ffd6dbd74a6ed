"""The conventions of torch optimizers, each tested over one list of ours."""

import copy
import io
import pickle
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import mercer.optim
from mercer import NumericalWarning
from mercer.optim import EigenProSGD, FunctionSpaceSGD, KernelSGD, function_space
from mercer_papers.rivals import ESGD, MultiBatchLBFGS
from tests.optim.cases import CASES, advance, batches, network, values


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


HOOKED = [name for name, case in CASES.items() if not case.closure]


def trained(case, steps=6, **options):
    model = network()
    optimizer = case.make(model.parameters(), model, **options)
    for x, y in batches(steps):
        advance(case, model, optimizer, x, y)
    return values(model)


def test_no_public_optimizer_escapes_the_conventions():
    public = {
        name
        for name in mercer.optim.__all__
        if isinstance(getattr(mercer.optim, name), type)
        and issubclass(getattr(mercer.optim, name), torch.optim.Optimizer)
    }
    made = {type(c.make((m := network()).parameters(), m)).__name__ for c in CASES.values()}
    assert public | {"ESGD", "MultiBatchLBFGS"} == made  # these two load lazily


def test_it_trains_and_repeats(case):
    model = network()
    optimizer = case.make(model.parameters(), model)
    x, y = batches(1, m=48)[0]
    losses = [advance(case, model, optimizer, x, y) for _ in range(30)]
    assert min(losses) < 0.98 * losses[0]  # L-BFGS at a fixed rate need not end at its least
    torch.testing.assert_close(trained(case), trained(case), rtol=0, atol=0)


def test_a_closure_gives_the_same_step_and_its_loss(case):
    if case.closure:
        pytest.skip("needs one anyway")
    model = network()
    optimizer = case.make(model.parameters(), model)
    for x, y in batches():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        assert float(optimizer.step(closure).detach()) > 0
    torch.testing.assert_close(values(model), trained(case), rtol=0, atol=0)


def test_param_groups_and_schedulers_rule_the_rate(case):
    model = network()
    optimizer = case.make(model[2].parameters(), model)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.0})
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.0 if t else 1.0)
    first, last = model[0].weight.detach().clone(), model[2].weight.detach().clone()
    (x, y), (x2, y2) = batches(2)
    advance(case, model, optimizer, x, y)
    assert (model[0].weight == first).all() and (model[2].weight != last).any()
    scheduler.step()
    after = values(model)
    advance(case, model, optimizer, x2, y2)
    torch.testing.assert_close(values(model), after, rtol=0, atol=0)


def test_named_parameters_are_accepted(case):
    model = network()
    optimizer = case.make(model.named_parameters(), model)
    for x, y in batches():
        advance(case, model, optimizer, x, y)
    torch.testing.assert_close(values(model), trained(case), rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in HOOKED if n != "function_space_last"])  # Adam is blind to the length
def test_clipping_shortens_the_step(name):
    case, moved = CASES[name], []
    (x, y) = batches(1)[0]
    for factor in (1.0, 0.5):
        model = network()
        before = values(model)
        optimizer = case.make(model.parameters(), model)

        def halve(model=model, factor=factor):
            for p in model.parameters():
                p.grad.mul_(factor)

        advance(case, model, optimizer, x, y, change=halve)
        decay = 0.01 * 0.1 * 1.0 * before if name == "function_space_decay" else 0.0
        moved.append(values(model) - before + decay)
    torch.testing.assert_close(moved[1], 0.5 * moved[0], rtol=1e-4, atol=1e-7)


def test_accumulation_equals_one_batch(case):
    results = []
    for parts in (1, 3):
        model = network(dtype=torch.float64)
        optimizer = case.make(model.parameters(), model)
        for x, y in batches(dtype=torch.float64):
            advance(case, model, optimizer, x, y, parts=parts)
        results.append(values(model))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-8)


def test_frozen_and_unused_parameters_stay(case):
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
    model.unused = nn.Parameter(torch.ones(2))
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    kept = [model[0].weight.clone(), model[2].bias.clone()]
    optimizer = case.make(model.parameters(), model)
    moving = model[2].weight.detach().clone()
    for x, y in batches(3):
        advance(case, nn.Sequential(*model), optimizer, x, y) if case.closure else advance(case, model, optimizer, x, y)
    assert (model[0].weight == kept[0]).all() and (model[2].bias == kept[1]).all() and (model.unused == 1).all()
    assert (model[2].weight != moving).any()


@pytest.mark.parametrize("name", ["kernel_sgd", "kernel_sgd_all", "eigenpro", "esgd"])
def test_foreach_equals_the_loop(name):
    torch.testing.assert_close(trained(CASES[name], foreach=True), trained(CASES[name], foreach=False), rtol=0, atol=0)


def test_resume_is_bit_equal_and_keeps_dtypes(case):
    model = network()
    optimizer = case.make(model.parameters(), model)
    feed = batches(7)
    for x, y in feed[:3]:
        advance(case, model, optimizer, x, y)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    again = network(seed=5)
    resumed = case.make(again.parameters(), again)
    again.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        kinds = {k: v.dtype for k, v in optimizer.state_of(p).items() if isinstance(v, torch.Tensor)}
        assert kinds == {k: v.dtype for k, v in resumed.state_of(q).items() if isinstance(v, torch.Tensor)}
    for x, y in feed[3:]:
        advance(case, model, optimizer, x, y)
        advance(case, again, resumed, x, y)
    torch.testing.assert_close(values(model), values(again), rtol=0, atol=0)


def test_loading_copies_the_state(case):
    model = network()
    optimizer = case.make(model.parameters(), model)
    feed = batches(4)
    for x, y in feed[:2]:
        advance(case, model, optimizer, x, y)
    saved = optimizer.state_dict()
    frozen = copy.deepcopy(saved["state"])
    twin = network(seed=3)
    other = case.make(twin.parameters(), twin)
    other.load_state_dict(saved)
    for x, y in feed[2:]:
        advance(case, twin, other, x, y)
    for index, state in frozen.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(saved["state"][index][key], value, rtol=0, atol=0)


def test_a_state_of_another_model_is_refused(case):
    model, other = network(), nn.Sequential(nn.Linear(6, 3))
    saved = case.make(other.parameters(), other).state_dict()
    with pytest.raises(ValueError, match="parameter group"):
        case.make(model.parameters(), model).load_state_dict(saved)


@pytest.mark.parametrize("name", HOOKED)
def test_grad_scaler_changes_nothing_and_a_skipped_step_leaves_no_trace(name):
    case, results = CASES[name], []
    for scaled in (False, True):
        model = network(dtype=torch.float64)
        optimizer = case.make(model.parameters(), model)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10)
        for i, (x, y) in enumerate(batches(dtype=torch.float64)):
            optimizer.zero_grad()
            if i == 2 and scaled:  # an overflow, which the scaler skips
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                model[0].weight.grad[0, 0] = torch.inf
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(values(model))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_go_with_close_and_state_survives_it(name):
    model = network()
    optimizer = CASES[name].make(model.parameters(), model)
    assert any(m._forward_hooks for m in model.modules())
    optimizer.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_sparse_complex_and_non_finite_are_refused_before_anything_moves(case):
    model = network()
    optimizer = case.make(model.parameters(), model)
    where = type(optimizer).__name__
    before = values(model)
    x, y = batches(1)[0]

    def spoil(kind):
        def change():
            g = model[0].weight.grad
            model[0].weight.grad = g.to_sparse() if kind == "sparse" else g.fill_(torch.nan)

        return change

    with pytest.raises(TypeError, match=rf"{where}: gradients must be dense; got torch.sparse_coo in the parameter of"):
        advance(case, model, optimizer, x, y, change=spoil("sparse"))
    with pytest.raises(FloatingPointError, match=rf"{where}: gradients must be finite; got NaN or infinity in the par"):
        advance(case, model, optimizer, x, y, change=spoil("nan"))
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)
    model[0].weight = nn.Parameter(model[0].weight.detach().to(torch.complex64))
    with pytest.raises(TypeError, match=rf"{where}: parameters must be real; got torch.complex64 in 0.weight. Hold"):
        case.make(model.named_parameters(), model)


def test_bad_options_are_refused():
    model = network()
    p = list(model.parameters())
    wrong = {
        "KernelSGD: lr must be 0 or more; got -1.0.": lambda: KernelSGD(p, -1.0, model=model),
        "KernelSGD: pad must be one of 'zeros', 'identity'; got 'ones'.": lambda: KernelSGD(
            p, 0.1, model=model, pad="ones"
        ),
        "KernelSGD: layers must be one of 'last', 'all'; got 'first'.": lambda: KernelSGD(
            p, 0.1, model=model, layers="first"
        ),
        "FunctionSpaceSGD: damping must be positive; got 0.": lambda: FunctionSpaceSGD(p, 0.1, model=model, damping=0),
        "FunctionSpaceSGD: momentum must be below 1; got 1.0.": lambda: FunctionSpaceSGD(
            p, 0.1, model=model, momentum=1.0
        ),
        "FunctionSpaceSGD: a name in exclude must be one of '', '0', '1', '2'; got '3'.": lambda: FunctionSpaceSGD(
            p, 0.1, model=model, exclude=["3"]
        ),
        "EigenProSGD: lr must be one of 'auto'; got 'fast'.": lambda: EigenProSGD(p, "fast", model=model),
        "ESGD: update_every must be a whole number of at least 1; got 0.": lambda: ESGD(p, 0.1, update_every=0),
        "MultiBatchLBFGS: history must be a whole number of at least 1; got 0.": lambda: MultiBatchLBFGS(p, history=0),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError) as raised:
            call()
        assert str(raised.value) == message


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.inner(self.inner(x)))


@pytest.mark.parametrize("kind", [FunctionSpaceSGD, lambda p, lr, **o: EigenProSGD(p, layers="all", **o)])
def test_a_layer_used_twice_and_a_shared_weight_train(kind):
    x, y = batches(1, m=48)[0]
    tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3))
    tied[2].weight = tied[0].weight
    for model in (Twice(), tied):
        optimizer = kind(model.parameters(), 0.1, model=model)
        losses = [advance(CASES["function_space"], model, optimizer, x, y) for _ in range(10)]
        assert losses[-1] < 0.98 * losses[0]
        optimizer.close()


def test_the_rows_of_every_call_of_a_layer_are_in_its_moment():
    x, y = batches(1)[0]
    model = Twice()
    optimizer = FunctionSpaceSGD(model.parameters(), 0.1, model=model)
    with torch.no_grad():
        rows = torch.cat((x, model.inner(x)))
        rows = torch.cat((rows, torch.ones(24, 1)), 1)
    advance(CASES["function_space"], model, optimizer, x, y)
    torch.testing.assert_close(optimizer.state_of(model.inner.weight)["layer"]["moment"], rows.mT @ rows / 24)


def test_a_layer_may_be_called_outside_the_model_between_passes():
    model = network()
    FunctionSpaceSGD(model.parameters(), 0.1, model=model)
    x, _ = batches(1)[0]
    model(x)
    model[0](x)
    model(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_a_pass_once(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return self[2](checkpoint(nn.Sequential(self[0], self[1]), x, use_reentrant=reentrant))

    results = []
    for model in (network(), Checkpointed(*network())):
        optimizer = FunctionSpaceSGD(model.parameters(), 0.1, model=model)
        for x, y in batches():
            advance(CASES["function_space"], model, optimizer, x.requires_grad_(), y)
        results.append(values(model))
    torch.testing.assert_close(results[0], results[1])


def test_a_layer_whose_forward_is_bypassed_is_named_once():
    class Bypassed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.b(F.linear(x, self.a.weight, self.a.bias))

    model = Bypassed()
    optimizer = FunctionSpaceSGD(model.parameters(), 0.1, model=model)
    with pytest.warns(NumericalWarning, match=r"layer 'a' has a gradient but no recorded input; the steps are"):
        advance(CASES["function_space"], model, optimizer, *batches(1)[0])
    for x, y in batches(2):
        advance(CASES["function_space"], model, optimizer, x, y)  # a second warning would be an error here


@pytest.mark.parametrize("kind", [FunctionSpaceSGD, EigenProSGD])
def test_parameters_of_another_model_are_noticed(kind):
    with pytest.warns(
        NumericalWarning, match=rf"{kind.__name__}: params hold no weight of a .* all take (SGD|Adam) steps"
    ):
        kind(network(1).parameters(), 0.1, model=network(2))


def test_steps_without_what_they_need_say_so():
    model = network()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match=r"KernelSGD: step needs the inputs of a pass; got none. Call model\(x\)"):
        KernelSGD(model.parameters(), 0.1, model=model).step()
    with pytest.raises(RuntimeError, match=r"ESGD: a step with curvature needs H v; got a plain gradient. Call loss"):
        ESGD(model.parameters(), 0.1).step()
    with pytest.raises(RuntimeError, match=r"MultiBatchLBFGS: step needs a closure; got None. Pass step a closure"):
        MultiBatchLBFGS(model.parameters()).step()


def test_esgd_needs_a_graph_only_when_due():
    model = network()
    optimizer = ESGD(model.parameters(), 0.01, update_every=3)
    due = []
    for x, y in batches(6):
        optimizer.zero_grad()
        due.append(optimizer.due)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's own, on graphs held by gradients
            F.cross_entropy(model(x), y).backward(create_graph=optimizer.due)
        optimizer.step()
    assert due == [True, False, False, True, False, False]


@pytest.mark.parametrize("name", ["function_space", "function_space_last", "eigenpro", "kernel_sgd"])
@pytest.mark.parametrize("kind", ["constant", "zero", "duplicated", "one", "large"])
def test_degenerate_batches_give_finite_steps(name, kind):
    x, y = batches(1)[0]
    x = {
        "constant": torch.ones_like(x),
        "zero": torch.zeros_like(x),
        "duplicated": x[:1].expand(12, 6),
        "one": x[:1],
        "large": 1e12 * x,
    }[kind]
    model = network()
    kept = x.clone()
    optimizer = CASES[name].make(model.parameters(), model)
    for _ in range(3):
        if kind == "large":
            optimizer.zero_grad()
            (1e-12 * F.cross_entropy(1e-12 * model(x), y[: len(x)])).backward()
            optimizer.step()
        else:
            advance(CASES[name], model, optimizer, x, y[: len(x)])
    assert values(model).isfinite().all() and (x == kept).all()


def test_a_batch_without_rows_leaves_the_moments_and_moves_nothing():
    model = network()
    optimizer = FunctionSpaceSGD(model.parameters(), model=model, update_every=1, momentum=0.0)
    x, y = batches(1)[0]
    for rows in (12, 0):
        before = values(model)
        optimizer.zero_grad()
        F.cross_entropy(model(x[:rows]), y[:rows], reduction="sum").backward()
        optimizer.step()
        moment = optimizer.state_of(model[0].weight)["layer"]["moment"]
        assert moment.isfinite().all() and bool((values(model) == before).all()) is (rows == 0)


def test_inputs_that_are_not_finite_do_not_poison_the_moments():
    x, y = batches(1)[0]
    model = network()
    optimizer = FunctionSpaceSGD(model.parameters(), 0.1, model=model, update_every=1)
    advance(CASES["function_space"], model, optimizer, x, y)
    before = optimizer.state_of(model[0].weight)["layer"]["moment"].clone()
    bad = x.clone()
    bad[0, 0] = torch.inf
    optimizer.zero_grad()
    (model(bad)[1:].sum()).backward()
    for p in model.parameters():
        p.grad.nan_to_num_()
    with pytest.warns(NumericalWarning, match=r"the input of layer '[02]' is not finite; its moment was left as it"):
        optimizer.step()
    torch.testing.assert_close(optimizer.state_of(model[0].weight)["layer"]["moment"], before, rtol=0, atol=0)
    with pytest.raises(ValueError, match="KernelSGD: the model's input must be finite; got infinity, first bad row 0"):
        kernel_sgd = KernelSGD(model.parameters(), 0.1, model=model)
        (model(bad)[1:].sum()).backward()
        for p in model.parameters():
            p.grad.nan_to_num_()
        kernel_sgd.step()


def test_half_precision_parameters_keep_their_dtype():
    model = network(dtype=torch.bfloat16)
    optimizer = FunctionSpaceSGD(model.parameters(), 0.1, model=model)
    for x, y in batches(3, dtype=torch.float32):
        advance(CASES["function_space"], model, optimizer, x.bfloat16(), y)
    assert values(model).isfinite().all() and model[0].weight.dtype is torch.bfloat16


def test_wide_layers_are_inverted_by_samples(monkeypatch):
    monkeypatch.setattr(function_space, "MAX_WIDTH", 8)
    model = network()
    optimizer = FunctionSpaceSGD(model.parameters(), 0.1, model=model)
    for x, y in batches(3):
        advance(CASES["function_space"], model, optimizer, x, y)
    assert "moment" in optimizer.state_of(model[0].weight)["layer"]
    assert optimizer.state_of(model[2].weight)["layer"]["factor"].shape == (11, 12)  # d x n


DDP = """
import datetime, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from mercer.optim import EigenProSGD, FunctionSpaceSGD, KernelSGD, function_space
store, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
make = {
    "kernel": lambda m: KernelSGD(m.parameters(), 0.05, model=m),
    "primal": lambda m: FunctionSpaceSGD(m.parameters(), 0.1, model=m),
    "dual": lambda m: FunctionSpaceSGD(m.parameters(), 0.1, model=m, update_every=1),
    "eigenpro": lambda m: EigenProSGD(m.parameters(), model=m),
}
def train(model, rows, kind):
    function_space.MAX_WIDTH = 8 if kind == "dual" else 4096
    opt = make[kind](model)
    g = torch.Generator().manual_seed(1)
    for _ in range(4):
        x, y = torch.randn(12, 20, generator=g).double(), torch.randint(3, (12,), generator=g)
        opt.zero_grad(); F.cross_entropy(model(x[rows]), y[rows]).backward(); opt.step()
    opt.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 3)).double()
alone = {kind: train(net(), slice(None), kind) for kind in make}
limit = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=limit)
for kind in make:
    together = train(nn.parallel.DistributedDataParallel(net()), slice(6 * rank, 6 * rank + 6), kind)
    torch.testing.assert_close(together, alone[kind], rtol=1e-8, atol=1e-10, msg=lambda m: f"{kind}: {m}")
dist.destroy_process_group()
"""


def test_two_ranks_of_ddp_equal_one_process(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(DDP), str(tmp_path / "store")]
    started = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs


def test_it_trains_in_the_hugging_face_trainer(tmp_path):
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    transformers = pytest.importorskip("transformers")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 10), nn.Linear(10, 3)

        def forward(self, x, labels=None):
            logits = self.head(self.body(x).relu())
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    x, _ = batches(1, m=64)[0]
    rows = [{"x": row, "labels": int(row[0] > 0)} for row in x]
    model = Net()
    for make in (
        lambda: FunctionSpaceSGD(model.parameters(), 0.3, model=model),
        lambda: KernelSGD(model.parameters(), 0.05, model=model),
    ):
        optimizer = make()
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 1)
        arguments = transformers.TrainingArguments(
            str(tmp_path), num_train_epochs=6, per_device_train_batch_size=16, report_to=[], disable_tqdm=True,
            use_cpu=True, save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        before = F.cross_entropy(model(x, torch.zeros(64).long())["logits"], (x[:, 0] > 0).long()).item()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the Trainer's own deprecations
            transformers.Trainer(
                model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, schedule)
            ).train()
        after = F.cross_entropy(model(x, torch.zeros(64).long())["logits"], (x[:, 0] > 0).long()).item()
        assert after < 0.9 * before
        optimizer.close()


@pytest.mark.parametrize("by", ["deepcopy", "pickle"])
def test_a_copy_trains_on_as_the_original_does(case, by):
    model = network()
    optimizer = case.make(model.parameters(), model)
    feed = batches(6)
    for x, y in feed[:3]:
        advance(case, model, optimizer, x, y)
    twin, other = copy.deepcopy((model, optimizer)) if by == "deepcopy" else pickled((model, optimizer))
    for x, y in feed[3:]:
        advance(case, model, optimizer, x, y)
        advance(case, twin, other, x, y)
    torch.testing.assert_close(values(twin), values(model), rtol=0, atol=0)
    assert all(p is not q for p, q in zip(twin.parameters(), model.parameters(), strict=True))


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
    return [key for m in model.modules() for kind in kinds for key in getattr(m, kind)]


@pytest.mark.parametrize("name", HOOKED)
def test_no_copy_of_the_model_holds_hooks_or_rows_and_deletion_takes_them_off(name):
    def saved(model):
        file = io.BytesIO()
        torch.save(model, file)
        return len(file.getvalue())

    model = network()
    model[0].register_forward_hook(a_users_hook)
    alone, own = saved(model), hooks_of(model)
    optimizer = CASES[name].make(model.parameters(), model)
    x, y = batches(1, m=3000)[0]
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # every row has been seen, and no step forgets it
    assert hooks_of(model) != own
    assert hooks_of(copy.deepcopy(model)) == hooks_of(pickled(model)) == own
    assert saved(model) <= alone + 30_000  # the gradients, not 3,000 rows
    del optimizer
    assert hooks_of(model) == own


def a_users_hook(module, args, output):
    """A hook of the user's, which copies keep."""


def test_a_second_optimizer_of_the_same_model_keeps_its_hooks():
    model = network()
    first = FunctionSpaceSGD(model[0].parameters(), 0.1, model=model)
    second = FunctionSpaceSGD(model[2].parameters(), 0.1, model=model)
    del first
    assert hooks_of(model) and not hooks_of(copy.deepcopy(model))
    second.close()
    assert not hooks_of(model)


def test_esgd_curvature_is_free_of_the_loss_scale():
    results = []
    for scaled in (False, True):
        model = network(dtype=torch.float64)
        optimizer = ESGD(model.parameters(), 0.01, update_every=2)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10)
        for i, (x, y) in enumerate(batches(dtype=torch.float64)):
            for spoiled in (True, False) if i == 2 and scaled else (False,):
                optimizer.zero_grad()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # torch's own, on graphs held by gradients
                    scaler.scale(F.cross_entropy(model(x), y)).backward(create_graph=optimizer.due)
                if spoiled:  # an overflow, which must leave no trace
                    model[0].weight.grad = torch.full_like(model[0].weight, torch.inf)
                scaler.step(optimizer)
                scaler.update()
        results.append((values(model), optimizer.state_of(model[0].weight)["curvature"]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)
    optimizer = ESGD(model.parameters(), 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        scaler.scale(F.cross_entropy(model(x), y)).backward(create_graph=True)
    scaler.unscale_(optimizer)
    with pytest.raises(
        RuntimeError, match=r"ESGD: a step with curvature needs the scale of the loss; got gradients uns"
    ):
        scaler.step(optimizer)


@pytest.mark.parametrize("name", CASES)
def test_maximize_ascends_as_the_negated_loss_descends(name):
    case, results = CASES[name], []
    for sign, options in ((-1.0, {}), (1.0, {"maximize": True})):
        model = network(dtype=torch.float64)
        optimizer = case.make(model.parameters(), model, **options)
        for x, y in batches(dtype=torch.float64):

            def closure(x=x, y=y, model=model, optimizer=optimizer, sign=sign):
                optimizer.zero_grad()
                loss = sign * (-F.cross_entropy(model(x), y))
                loss.backward()
                return loss

            if not case.closure:
                closure()
            optimizer.step(closure if case.closure else None)
        results.append(values(model))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


def test_it_trains_in_lightning(tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    x, _ = batches(1, m=64)[0]
    y = (x[:, 0] > 0).long()

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return FunctionSpaceSGD(self.parameters(), model=self.net)

    model, loader = Net(), DataLoader(TensorDataset(x, y), 16)
    before = F.cross_entropy(model.net(x), y).item()
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own advice
        lightning.Trainer(max_epochs=4, default_root_dir=tmp_path, enable_model_summary=False, **options).fit(
            model, loader
        )
    assert F.cross_entropy(model.net(x), y).item() < 0.9 * before
