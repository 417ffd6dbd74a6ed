"""Optimizers beside the rest of torch: compiled models, hooks, checkpoints, sharding, and what users pass to them."""

import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import functional as F

from mercer import NumericalWarning
from mercer.nn import KernelClassifier
from mercer.optim import ESGD, EigenProSGD, FunctionSpaceSGD, KernelSGD
from tests.optim.cases import CASES, advance, batches, network, values


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


class Network(nn.Module):
    """A class of the user's; torch.compile treats it in another way than nn.Sequential."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


LISTENERS = {
    "function_space": lambda model: FunctionSpaceSGD(model.parameters(), 0.1, model=model, update_every=4),
    "eigenpro": lambda model: EigenProSGD(model.parameters(), model=model, layers="all"),
    "kernel_sgd": lambda model: KernelSGD(model.parameters(), 0.05, model=model),
}


def train(model, call, optimizer, feed):
    for x, y in feed:
        optimizer.zero_grad()
        F.cross_entropy(call(x), y).backward()
        optimizer.step()
    return values(model)


# torch's own: its compiler looks at .grad of what a hook was given, and its ZeroRedundancyOptimizer uses torch.jit
quiet = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning", "ignore:.torch.jit:DeprecationWarning")


# --- compiled models --------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler():
    """No code from other tests, and none left for them."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@quiet
@pytest.mark.parametrize("name", LISTENERS)
@pytest.mark.parametrize(
    ("make", "before"), [(network, "this"), (Network, "this"), (Network, "another"), (Network, "method")]
)
def test_a_model_that_was_compiled_before_is_heard(compiler, make, name, before):
    feed = batches(3)
    plain = make()
    expected = train(plain, plain, LISTENERS[name](plain), feed)
    model = make()
    if before == "method":
        model.compile(backend="eager")
        call = model
        call(feed[0][0])
    else:
        other = make() if before == "another" else model
        torch.compile(other, backend="eager")(feed[0][0])
        call = torch.compile(model, backend="eager")
    torch.testing.assert_close(train(model, call, LISTENERS[name](model), feed), expected, rtol=0, atol=0)


@quiet
def test_a_function_that_was_compiled_around_the_model_is_heard(compiler):
    feed, results = batches(3), []
    for compiled in (False, True):
        model = Network()

        def call(x, model=model):
            return 2 * model(x)

        if compiled:
            call = torch.compile(call, backend="eager")
            call(feed[0][0])
        results.append(train(model, call, LISTENERS["function_space"](model), feed))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@quiet
def test_code_that_was_compiled_between_two_moments_hears_the_next_one(compiler):
    feed, states = batches(12), []
    for compiled in (False, True):
        model = Network()
        optimizer = LISTENERS["function_space"](model)
        train(model, model, optimizer, feed[:2])
        assert not any(m._forward_hooks for m in model.modules())  # the next moment is that of step 3
        call = torch.compile(model, backend="eager") if compiled else model
        train(model, call, optimizer, feed[2:])
        states.append(optimizer.state_of(model.body.weight)["layer"])
    assert states[0]["refreshes"] == states[1]["refreshes"] > 3
    torch.testing.assert_close(states[0]["moment"], states[1]["moment"], rtol=0, atol=0)


def test_marks_for_the_compiler_go_with_the_hooks(compiler):
    torch.compile(network(), backend="eager")(torch.ones(2, 6))
    model = network()
    optimizer = LISTENERS["kernel_sgd"](model)
    assert all(vars(p) for p in model.parameters())
    optimizer.close()
    assert not any(vars(p) for p in model.parameters())


@quiet
def test_a_compiled_step_is_the_plain_step(compiler, case):
    results = []
    for compiled in (False, True):
        model = network()
        optimizer = case.make(model.parameters(), model)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for x, y in batches(3):

            def closure(x=x, y=y, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            if case.closure:
                step(closure)
            else:
                closure()
                step()
        results.append(values(model))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.parametrize("make", [FunctionSpaceSGD, EigenProSGD])
def test_a_layer_that_is_used_by_its_weight_alone_is_named_once(make):
    model = KernelClassifier(6, 3, shared=5)
    optimizer = make(model.parameters(), model=model)
    match = (
        rf"{make.__name__}: layers? .*'skip' ha.* a gradient but no recorded input; the steps are (SGD|Adam)'s, or use "
        r"what earlier batches gave. Call each layer as a module, .* or leave them out with exclude=\[.*'skip'\]."
    )
    (x, y), *feed = batches(3)
    with pytest.warns(NumericalWarning, match=match) as record:
        train(model, model, optimizer, [(x, y)])
    assert len(record) == 1
    train(model, model, optimizer, feed)  # a second warning would be an error here


def test_a_layer_that_falls_silent_later_is_named_too():
    model = Network()
    optimizer = EigenProSGD(model.parameters(), model=model)
    feed = batches(2)
    train(model, model, optimizer, feed[:1])
    with pytest.warns(NumericalWarning, match=r"layer 'head' has a gradient but no recorded input; .* earlier batches"):
        train(model, lambda x: F.linear(model.body(x), model.head.weight), optimizer, feed[1:])


def test_a_zero_gradient_needs_no_record():
    model = network()
    optimizer = FunctionSpaceSGD(model.parameters(), 0.1, model=model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = values(model)
    optimizer.step()
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_distributed_checkpoints_keep_the_whole_state(case, flat, frozen):
    options, feed = StateDictOptions(flatten_optimizer_state_dict=flat), batches(6)
    model, twin = network(), network(seed=5)
    for net in (model, twin):
        net[0].weight.requires_grad_(not frozen)  # the first parameter: its state is not in such checkpoints
    optimizer, resumed = (case.make(net.parameters(), net) for net in (model, twin))
    for x, y in feed[:3]:
        advance(case, model, optimizer, x, y)
    saved = get_optimizer_state_dict(model, optimizer, options=options)
    twin.load_state_dict(model.state_dict())
    set_optimizer_state_dict(twin, resumed, saved, options=options)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state_of(p), resumed.state_of(q), rtol=0, atol=0)
    assert resumed.steps == 3
    for x, y in feed[3:]:
        advance(case, model, optimizer, x, y)
        advance(case, twin, resumed, x, y)
    torch.testing.assert_close(values(model), values(twin), rtol=0, atol=0)


def test_a_checkpoint_that_was_filled_in_place_lacks_state_and_says_so(tmp_path):
    case, model, twin = CASES["function_space"], network(), network()
    optimizer, resumed = (case.make(net.parameters(), net) for net in (model, twin))
    for x, y in batches(2):
        advance(case, model, optimizer, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: no process group
        save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=tmp_path / "parts")
        filled = {"optimizer": get_optimizer_state_dict(twin, resumed)}
        load(filled, checkpoint_id=tmp_path / "parts")
        dcp_to_torch_save(tmp_path / "parts", tmp_path / "whole.pt")
    match = (
        r"FunctionSpaceSGD: the loaded state counts 2 steps and holds nothing else: .*dcp_to_torch_save, and load that"
    )
    with pytest.warns(NumericalWarning, match=match):
        set_optimizer_state_dict(twin, resumed, filled["optimizer"])
    set_optimizer_state_dict(twin, resumed, torch.load(tmp_path / "whole.pt", weights_only=True)["optimizer"])
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state_of(p), resumed.state_of(q), rtol=0, atol=0)


def test_hooks_on_loading_have_the_last_word(case):
    model = network()
    optimizer = case.make(model.parameters(), model)
    for x, y in batches(2):
        advance(case, model, optimizer, x, y)
    saved, twin, seen = optimizer.state_dict(), network(), []
    resumed = case.make(twin.parameters(), twin)

    def zeroed(value):
        if isinstance(value, dict):
            return {key: zeroed(below) for key, below in value.items()}
        return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value

    def before(_, given):
        groups = [{**group, "lr": 0.125} for group in given["param_groups"]]
        return {**given, "state": zeroed(given["state"]), "param_groups": groups}

    def after(loaded):
        seen.append(loaded.steps)
        loaded.param_groups[0]["lr"] = 0.25

    resumed.register_load_state_dict_pre_hook(before)
    resumed.register_load_state_dict_post_hook(after)
    resumed.load_state_dict(saved)
    assert seen == [2] and resumed.param_groups[0]["lr"] == 0.25

    def tensors(value):
        if isinstance(value, dict):
            return [t for below in value.values() for t in tensors(below)]
        return [value] if isinstance(value, torch.Tensor) else []

    assert len(tensors(resumed.state_dict()["state"])) == len(tensors(saved["state"]))
    assert not any(t.any() for t in tensors(resumed.state_dict()["state"]))


def test_options_that_a_state_lacks_stay_as_they_are(case):
    model = network()
    optimizer = case.make(model.parameters(), model, maximize=True)
    before = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1, 2, 3]}]})
    assert {key: value for key, value in optimizer.param_groups[0].items() if key != "params"} == before
    optimizer.load_state_dict(torch.optim.SGD(model.parameters(), 0.03).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.03
    advance(case, model, optimizer, *batches(1)[0])


def test_a_state_of_another_version_or_optimizer_is_learned_anew_and_says_so(case):
    model = network()
    optimizer = case.make(model.parameters(), model)
    adam = torch.optim.Adam(model.parameters())
    x, y = batches(1)[0]
    F.cross_entropy(model(x), y).backward()
    adam.step()
    with pytest.warns(NumericalWarning, match=r"the loaded state is another optimizer's or of another version"):
        optimizer.load_state_dict(adam.state_dict())
    assert all(optimizer.state_of(p).keys() <= {"format", "steps"} for p in model.parameters())
    advance(case, model, optimizer, *batches(1)[0])


# --- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [0.5, "auto"])
def test_eigenpro_moves_other_parameters_at_the_rate_of_their_group(lr):
    moved = []
    for factor in (1.0, 0.5, 0.0):
        model = network()
        optimizer = EigenProSGD(model.parameters(), lr, model=model, rest_lr=0.02)
        optimizer.param_groups[0]["lr"] *= factor
        before = model[0].weight.detach().clone()
        train(model, model, optimizer, batches(1))
        moved.append(model[0].weight.detach() - before)
        if factor == 1.0:
            torch.testing.assert_close(moved[0], -0.02 * model[0].weight.grad, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(moved[1], 0.5 * moved[0], rtol=1e-3, atol=1e-7)
    assert not moved[2].any() and moved[0].any()


def test_adaptive_steps_are_at_the_rate_of_the_parameters_group():
    moved = []
    for factors in ((1.0, 1.0), (0.5, 0.0)):
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
        torch.manual_seed(0)
        for p in model.parameters():
            nn.init.normal_(p)
        groups = [{"params": model[i].parameters(), "lr": 0.1 * f} for i, f in zip((0, 2), factors, strict=True)]
        groups.append({"params": model[4].parameters()})
        optimizer = FunctionSpaceSGD(groups, 0.1, model=model, layers="last")
        before = values(model)
        train(model, model, optimizer, batches(1))
        moved.append((values(model) - before).split([35, 30, 18]))
    torch.testing.assert_close(moved[1][0], 0.5 * moved[0][0], rtol=1e-3, atol=1e-6)
    assert moved[0][1].any() and not moved[1][1].any()
    torch.testing.assert_close(moved[1][2], moved[0][2], rtol=1e-4, atol=1e-6)


# --- what users pass --------------------------------------------------------------------------------------------------


def test_a_rate_may_be_a_tensor(case):
    results = []
    for convert in (float, torch.tensor):
        model = network()
        optimizer = case.make(model.parameters(), model)
        for group in optimizer.param_groups:
            group["lr"] = convert(0.0625)
        for x, y in batches(3):
            advance(case, model, optimizer, x, y)
        results.append(values(model))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    model = network()
    assert float(ESGD(model.parameters(), torch.tensor(0.5)).param_groups[0]["lr"]) == 0.5


def test_zero_grad_sets_to_none_or_to_zero(case):
    model = network()
    optimizer = case.make(model.parameters(), model)
    advance(case, model, optimizer, *batches(1)[0])
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    before = values(model)
    optimizer.step((lambda: 1.0) if case.closure else None)  # without gradients nothing moves
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)


def test_step_hooks_and_schedulers_run(case):
    model = network()
    optimizer, calls = case.make(model.parameters(), model), []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    rate = optimizer.param_groups[0]["lr"]
    for x, y in batches(2):
        advance(case, model, optimizer, x, y)
        schedule.step()
    assert calls == ["before", "after"] * 2 and optimizer.param_groups[0]["lr"] == rate / 4


def test_what_is_no_list_of_parameters_is_refused(case):
    model = network()
    with pytest.raises(ValueError, match="empty parameter list"):
        case.make([], model)
    with pytest.raises(TypeError):
        case.make(model[0].weight, model)
    optimizer = case.make(model[2].parameters(), model)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": list(model[2].parameters())})
    for refused in (nn.Parameter(torch.zeros(2, dtype=torch.complex64)), nn.Parameter(torch.zeros(2))):
        with pytest.raises((TypeError, ValueError), match=r"parameters must be real|lr must be 0 or more; got -1.0"):
            optimizer.add_param_group({"params": [refused], "lr": -1.0 if not refused.is_complex() else 0.1})
    assert len(optimizer.param_groups) == 1  # as it was


# --- sharding ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sharded_parameters_are_refused_in_a_sentence(one_rank, case):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    match = (
        r": parameters must not be sharded; got DTensor in 0.weight. Replace fully_shard by DistributedDataParallel, "
        r"or use an optimizer of torch.optim."
    )
    with pytest.raises(TypeError, match=match):
        case.make(model.named_parameters(), model)


@quiet
@pytest.mark.parametrize("name", ["function_space", "kernel_sgd", "eigenpro"])
def test_a_partition_of_one_rank_is_the_whole(one_rank, name):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kinds = {"function_space": FunctionSpaceSGD, "kernel_sgd": KernelSGD, "eigenpro": EigenProSGD}
    options = {} if name == "eigenpro" else {"lr": 0.01}
    results = []
    for partitioned in (False, True):
        model = network()
        if partitioned:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kinds[name], model=model, **options)
        else:
            optimizer = kinds[name](model.parameters(), model=model, **options)
        for x, y in batches(3):
            advance(CASES[name], model, optimizer, x, y)
        results.append(values(model))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


PARTITIONED = """
import datetime, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from mercer.optim import ESGD, EigenProSGD, FunctionSpaceSGD, KernelSGD, MultiBatchLBFGS
store, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
limit = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=limit)
kinds = {FunctionSpaceSGD: 0.1, EigenProSGD: 0.1, KernelSGD: 0.1, ESGD: 0.1, MultiBatchLBFGS: 0.1}
for kind, lr in kinds.items():
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)))
    more = {} if kind in (ESGD, MultiBatchLBFGS) else {"model": model}
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, lr=lr, **more)
    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        return loss
    try:
        optimizer.step(closure)
    except RuntimeError as error:
        print(error)
dist.barrier()
sys.stdout.flush()
os._exit(0)  # gloo's threads now and then abort a process that takes its group down
"""


def test_partitioned_parameters_are_refused_on_every_rank(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PARTITIONED), str(tmp_path / "store")]
    started = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    need = "every rank must have the same parameters; got "
    fix = "Use DistributedDataParallel without ZeroRedundancyOptimizer: a step needs all parameters."
    for output in outputs:
        lines = [line for line in output.splitlines() if need in line and line.endswith(fix)]
        names = ["FunctionSpaceSGD", "EigenProSGD", "KernelSGD", "ESGD", "MultiBatchLBFGS"]
        assert [line.split(":")[0] for line in lines] == names, output
