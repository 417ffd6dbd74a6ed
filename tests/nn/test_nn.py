"""The kernelised head and its rivals: equal to the literal transcription, whole as modules."""

import copy
import math

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F

import mercer
from mercer import nn as heads
from mercer.features.parallel_networks import L2BatchNorm
from mercer.kernels import RBF, ArcCosine, Cosine, Linear, Matern, Polynomial, RadialSeries
from mercer.nn import (
    CosineClassifier,
    KernelClassifier,
    Kervolution2d,
    SecondOrderPooling,
    distillation_loss,
)
from mercer.nn.kernel_classifier import FixedTemperature
from mercer.nn.shared_units import SharedUnits
from tests import reference_jayasumana2021 as reference
from tests.nn.cases import HEADS, C, D, randomised, rows


@pytest.fixture(params=HEADS, ids=str)
def head(request):
    torch.manual_seed(7)  # not the seed of the rows: weights on top of an embedding have a kink in the RBF
    return HEADS[request.param]()


def test_no_public_head_escapes_the_contract():
    made = {type(make()) for make in HEADS.values()} - {FixedTemperature, SharedUnits}  # what KernelClassifier makes
    public = {getattr(heads, name) for name in heads.__all__ if isinstance(getattr(heads, name), type)}
    assert public == made | {Kervolution2d, L2BatchNorm}  # a layer and a normalisation, not heads


@pytest.mark.parametrize("basis", ["monomial", "gegenbauer"])
@pytest.mark.parametrize(("prototypes", "bias", "temperature"), [(1, False, 1.0), (3, True, 0.5)])
def test_logits_and_gradients_equal_the_literal_transcription(basis, prototypes, bias, temperature):
    head = KernelClassifier(
        D, C, RadialSeries(6, basis=basis), prototypes=prototypes, bias=bias, temperature=temperature
    )
    head = randomised(head.double())
    with torch.no_grad():
        head.weight.copy_(rows(C * prototypes, seed=1))
    z = rows().requires_grad_()
    alpha = head.kernel.coefficients
    settings = {"prototypes": prototypes, "temperature": temperature, "dim": D if basis == "gegenbauer" else None}
    logits = head(z)
    slow = reference.logits(z, head.weight, alpha.tolist(), bias=head.bias.tolist() if bias else None, **settings)
    torch.testing.assert_close(logits.detach(), slow)
    plain = reference.plain_logits(z, head.weight, alpha[2:], bias=head.bias, **settings)
    labels = torch.arange(len(z)) % C
    wanted = [z, *head.parameters()]
    ours = torch.autograd.grad(F.cross_entropy(logits, labels), wanted)
    expected = torch.autograd.grad(F.cross_entropy(plain, labels), wanted)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_and_gradgradcheck(head):
    head.double()
    values = {name: p.detach().clone().requires_grad_() for name, p in head.named_parameters()}

    def logits(z, *parameters):
        return torch.func.functional_call(head, dict(zip(values, parameters, strict=True)), (z,))

    inputs = (rows(2).requires_grad_(), *values.values())
    assert torch.autograd.gradcheck(logits, inputs)
    assert torch.autograd.gradgradcheck(logits, inputs)


@pytest.mark.parametrize(
    "kernel", [Linear(), Polynomial(10, 0.5, 0.5), Matern(), Cosine(), ArcCosine(), RBF() + Linear()], ids=repr
)
def test_any_kernel_goes_in(kernel):
    head = KernelClassifier(D, C, kernel, bias=False, temperature=1.0).double()
    z = rows()
    expected = kernel.double()(F.normalize(z), F.normalize(head.weight))
    torch.testing.assert_close(head(10 * z), expected)


def test_autocast_and_half_precision_give_float32(head):
    z = rows(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(z.bfloat16())
        loss = F.cross_entropy(logits, torch.arange(len(z)) % C)
    loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in head.parameters())
    if isinstance(head, KernelClassifier):
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, head(z.bfloat16().float()))


def test_float64_embeddings_win_over_float32_weights():
    head = KernelClassifier(D, C)
    assert head(rows()).dtype == torch.float64


def test_copies_states_and_folders(head, request, tmp_path):
    z = rows(dtype=torch.float32)
    torch.testing.assert_close(copy.deepcopy(head)(z), head(z))
    safetensors.torch.save_file(head.state_dict(), tmp_path / "head.safetensors")
    fresh = HEADS[request.node.callspec.params["head"]]()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "head.safetensors"))
    torch.testing.assert_close(fresh(z), head(z))
    mercer.save(head, tmp_path / "folder")
    torch.testing.assert_close(mercer.load(tmp_path / "folder")(z), head(z))


def test_a_state_of_the_old_formula_is_refused_in_a_sentence():
    state = KernelClassifier(D, C).state_dict()
    state["gain"] = state.pop("gate")
    with pytest.raises(RuntimeError, match=r"the state must have a gate; got gain, of 0.3 or older\. Its formula"):
        nn.Sequential(KernelClassifier(D, C)).load_state_dict({f"0.{name}": value for name, value in state.items()})


def test_one_constructor_makes_three_classes():
    assert type(KernelClassifier(D, C)) is KernelClassifier
    assert type(KernelClassifier(D, C, temperature=1.0)) is FixedTemperature
    assert type(KernelClassifier(D, C, shared=2, temperature=1.0)) is SharedUnits

    class Derived(KernelClassifier):
        pass

    assert Derived(D, C)(rows()).shape == (6, C)
    with pytest.raises(TypeError, match=r"Derived: a subclass .* leave shared and temperature out; got None and 1"):
        Derived(D, C, temperature=1.0)


def test_a_replaced_kernel_is_saved(tmp_path):
    head = KernelClassifier(D, C)
    head.kernel = RBF(3.0)
    mercer.save(head, tmp_path)
    torch.testing.assert_close(mercer.load(tmp_path)(rows()), head(rows()))


def test_runs_on_the_meta_device_and_with_leading_dimensions():
    head = KernelClassifier(D, C, prototypes=2)
    z = rows(dtype=torch.float32)
    torch.testing.assert_close(head(z.reshape(2, 3, D)), head(z).reshape(2, 3, C))
    torch.testing.assert_close(head(z[0]), head(z)[0])
    assert head(z[:0]).shape == (0, C)
    assert head.to("meta")(z.to("meta")).shape == (6, C)


def test_init_from_class_means_and_k_means():
    centres = F.normalize(torch.eye(4, D, dtype=torch.float64), dim=1)
    labels = torch.arange(200) % 2
    which = labels + 2 * (torch.arange(200) // 2 % 2)  # class 0 sits at centres 0 and 2, class 1 at 1 and 3
    z = 7 * centres[which] + 0.01 * rows(200)
    one = KernelClassifier(D, 2).init_from(z, labels)
    torch.testing.assert_close(
        one.weight.double(), F.normalize(torch.tensor([[1.0, -1, 1, -1, 0], [-1, 1, -1, 1, 0]], dtype=torch.float64)),
        atol=1e-2, rtol=0,
    )  # fmt: skip
    two = KernelClassifier(D, 2, prototypes=2).init_from(z, labels, generator=torch.Generator().manual_seed(0))
    found = two.weight.detach().double() @ F.normalize(centres - centres.mean(0)).T  # seen from the mean of all rows
    assert (found[:2].argmax(1).sort().values == torch.tensor([0, 2])).all() and found.max(1).values.min() > 0.99
    assert (two(z).argmax(1) == labels).all()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(z, labels), batch_size=64)
    again = KernelClassifier(D, 2).init_from(loader)
    torch.testing.assert_close(again.weight, one.weight)


def test_init_from_with_few_or_no_rows_of_a_class():
    head = KernelClassifier(D, 3, prototypes=4)
    before = head.weight.detach().clone()
    with pytest.warns(mercer.NumericalWarning, match=r"1 classes have no row \(2\); their weights stay"):
        head.init_from(rows(3), torch.tensor([0, 1, 1]))
    torch.testing.assert_close(head.weight[8:], before[8:])
    assert len(head.weight[:4].unique(dim=0)) == 4  # copies of one row are told apart, else they never part


@pytest.mark.parametrize(
    ("labels", "error", "match"),
    [
        (torch.tensor([0, 1, 3]), ValueError, r"labels must be in 0..2; got 0..3\."),
        (torch.tensor([0.0, 1.0, 2.0]), ValueError, r"labels must be whole numbers; got torch.float32\."),
        (torch.tensor([0, 1]), ValueError, r"embeddings and labels must have as many rows; got 3 and 2\."),
        (torch.tensor([[0], [1], [2]]), ValueError, r"labels must have shape \(n,\); got \(3, 1\)"),
    ],
)
def test_init_from_refuses_bad_labels(labels, error, match):
    with pytest.raises(error, match=match):
        KernelClassifier(D, 3).init_from(rows(3), labels)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_init_from_refuses_bad_values(bad):
    z = rows(3)
    z[1, 2] = bad
    with pytest.raises(ValueError, match=r"embeddings must be finite.*first bad row 1"):
        KernelClassifier(D, 3).init_from(z, torch.arange(3))
    with pytest.raises(ValueError, match="at least one row"):
        KernelClassifier(D, 3).init_from(z[:0], torch.arange(0))
    with pytest.raises(ValueError, match="has 2 features, expecting 5"):
        KernelClassifier(D, 3).init_from(rows(3, 2), torch.arange(3))


@pytest.mark.parametrize("scale", [1e30, 1e-30, 0.0])
def test_embeddings_of_any_scale_give_finite_logits_and_gradients(head, scale):
    z = (rows(dtype=torch.float32) * scale).requires_grad_()
    if isinstance(head, SecondOrderPooling) and scale == 1e30:
        pytest.skip("its outer product is the square of what comes in: the linear layer then has no finite answer")
    logits = head(z)
    F.cross_entropy(logits, torch.arange(6) % C).backward()
    assert torch.isfinite(logits).all() and torch.isfinite(z.grad).all()


def test_nan_goes_through_as_nan():
    z = rows(dtype=torch.float32)
    z[0, 0] = math.nan
    logits = KernelClassifier(D, C)(z)
    assert logits[0].isnan().all() and torch.isfinite(logits[1:]).all()


def test_param_groups_decay_the_kernel_and_neither_scale_nor_bias():
    for make in (lambda: KernelClassifier(D, C), lambda: KernelClassifier(D, C, shared=4)):
        head = make()
        groups = head.param_groups(weight_decay=1e-4, kernel_lr=0.5)
        assert [group["weight_decay"] for group in groups] == [1e-4, 1e-4, 0.0]
        assert groups[1]["lr"] == 0.5 and groups[1]["params"] == [head.kernel.alpha]
        assert sum(len(group["params"]) for group in groups) == len(list(head.parameters()))
        undecayed = [dict(head.named_parameters())[name] for name in head.no_weight_decay()]
        assert {id(p) for p in undecayed} <= {id(p) for p in groups[2]["params"]}
        torch.optim.SGD(groups, lr=0.1).step()
    assert KernelClassifier(D, C).no_weight_decay() == {"gate", "bias"}
    assert len(KernelClassifier(D, C, Linear(), bias=False, temperature=1.0).param_groups()) == 1


def test_weight_decay_alone_leaves_the_scale_at_its_start():
    """Where a loop decays everything, the scale is pulled to its start, not to 1."""
    head = KernelClassifier(D, C)
    start = head.scale.detach().clone()
    optimizer = torch.optim.AdamW(head.parameters(), 0.1, weight_decay=1.0)
    for parameter in head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(20):
        optimizer.step()
    torch.testing.assert_close(head.scale, start)


def test_plot_draws_the_learned_kernel():
    head = KernelClassifier(D, C, RadialSeries(3, indicators="exact"))
    figure = head.plot()
    line = figure.axes[0].lines[0]
    t = torch.tensor(line.get_xdata()[1:-1])
    torch.testing.assert_close(torch.tensor(line.get_ydata()[1:-1]), head.kernel.profile(t).detach())
    assert [bar.get_height() for bar in figure.axes[1].patches] == pytest.approx(head.kernel.coefficients.tolist())
    assert len(KernelClassifier(D, C, RBF()).plot().axes) == 1


def test_the_profile_of_a_series_of_one_sphere_is_taken_on_that_sphere():
    series = RadialSeries(3, basis="gegenbauer")
    head = KernelClassifier(D, C, series + Linear())  # lifted: the sphere has a dimension more than the embeddings
    t = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    torch.testing.assert_close(head.profile(t), series.profile(t) + t)


def test_second_order_pooling_equals_the_outer_product():
    head, z, w = SecondOrderPooling(D, C).double(), rows(), rows(seed=1)
    expected = (reference.squared_outer_product(z) * reference.squared_outer_product(w)).sum((1, 2))
    torch.testing.assert_close((head.pool(z) * head.pool(w)).sum(1), expected)
    maps = z[:, :, None, None].expand(-1, -1, 2, 3)  # the same vector at every place pools to itself
    torch.testing.assert_close(head(maps), head(z))


def test_cosine_classifier_is_scaled_cosine_similarity():
    head = CosineClassifier(D, C, scale=7.0).double()
    z = rows()
    expected = 7.0 * F.cosine_similarity(z[:, None], head.weight[None], dim=2)
    torch.testing.assert_close(head(z), expected)
    assert not CosineClassifier(D, C, learnable=False).scale.requires_grad


@pytest.mark.parametrize("kernel", ["polynomial", "gaussian"])
def test_kervolution_equals_one_patch_at_a_time(kernel):
    layer = Kervolution2d(2, 3, 3, kernel=kernel, degree=3, coef0=0.4, gamma=0.05).double()
    x = torch.randn(2, 2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    functions = {
        "polynomial": lambda patch, w: (patch @ w + layer.shape.relu()) ** 3,
        "gaussian": lambda patch, w: (-layer.shape.exp() * (patch - w).square().sum(1)).exp(),
    }
    expected = reference.kervolution(x, layer.weight, functions[kernel])
    torch.testing.assert_close(layer(x), expected)
    layer(x).sum().backward()
    assert all(torch.isfinite(p.grad).all() and (p.grad != 0).any() for p in layer.parameters())
    strided = Kervolution2d(2, 3, 3, stride=2, padding=1, kernel=kernel).double()
    assert strided(x).shape == (2, 3, 3, 3)
    torch.testing.assert_close(strided(x)[:, :, 1, 1], Kervolution2d_at(strided, x, 1, 1))


def Kervolution2d_at(layer, x, i, j):
    patch = x[:, :, 2 * i - 1 : 2 * i + 2, 2 * j - 1 : 2 * j + 2]
    same = Kervolution2d(2, 3, 3, kernel=layer.kernel).double()
    same.load_state_dict(layer.state_dict())
    return same(patch)[:, :, 0, 0]


def test_distillation_loss_is_the_softened_cross_entropy():
    student, teacher = rows(4, C).requires_grad_(), rows(4, C, seed=1).requires_grad_()
    expected = -sum(
        float(p) * math.log(float(q))
        for s, t in zip(student, teacher, strict=True)
        for p, q in zip((t / 20).softmax(0).detach(), (s / 20).softmax(0).detach(), strict=True)
    ) / len(student)
    loss = distillation_loss(student, teacher)
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert teacher.grad is None
    twin = teacher.detach().clone().requires_grad_()
    distillation_loss(twin, teacher, 3.0).backward()
    torch.testing.assert_close(twin.grad, torch.zeros_like(twin), atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match=r"one shape \(n, c\); got \(4, 3\) and \(4, 2\)"):
        distillation_loss(student, teacher[:, :2])


def test_sentences():
    for make, error, match in [
        (lambda: KernelClassifier(0, 3), ValueError, r"KernelClassifier: in_features must be a whole number"),
        (lambda: KernelClassifier(3, 3, prototypes=0), ValueError, r"prototypes must be a whole number of at least 1"),
        (lambda: KernelClassifier(3, 3, temperature=0.0), ValueError, r"temperature must be positive; got 0.0\."),
        (lambda: KernelClassifier(3, 3, shared=4, prototypes=2), ValueError, r"shared needs prototypes=1; got 2"),
        (lambda: KernelClassifier(3, 3, prototypes="some"), ValueError, r"prototypes must be a whole number"),
        (
            lambda: KernelClassifier(3, 3).at_places(torch.ones(2, 3), torch.ones(2, 3)),
            ValueError,
            r"places must have shape \(n, s, d\) where z has \(n, d\) or \(n, t, d\); got \(2, 3\) and \(2, 3\)",
        ),
        (
            lambda: KernelClassifier(3, 3).at_places(torch.ones(2, 3), torch.ones(2, 4, 3), torch.ones(2, 3)),
            ValueError,
            r"mask must have shape \(2, 4\)",
        ),
        (lambda: KernelClassifier(3, 3, "rbf"), TypeError, r"kernel must be a mercer.kernels.Kernel; got str\."),
        (
            lambda: KernelClassifier(3, 3)(torch.ones(2, 4)),
            ValueError,
            r"z must be real, of shape \(..., 3\); got torch.float32 of \(2, 4\)\.",
        ),
        (
            lambda: KernelClassifier(3, 3)(torch.ones(2, 3, device="meta")),
            ValueError,
            r"z and the head must be on one device; got meta and cpu",
        ),
        (lambda: CosineClassifier(3, 3)(torch.ones(2, 4)), ValueError, r"z must have shape \(..., 3\)"),
        (lambda: SecondOrderPooling(3, 3)(torch.ones(2, 4)), ValueError, r"z must have shape \(n, 3\)"),
        (lambda: Kervolution2d(3, 4, 3)(torch.ones(2, 4)), ValueError, r"x must have shape \(n, 3, height, width\)"),
        (lambda: Kervolution2d(3, 4, 3, kernel="rbf"), ValueError, r"kernel must be one of 'polynomial', 'gaussian'"),
    ]:
        with pytest.raises(error, match=match):
            make()


def test_training_separates_what_a_line_cannot():
    """Two opposite caps against the belt between them: no linear head can, the series with t^2 does."""
    z = F.normalize(rows(400, 3, dtype=torch.float32), dim=1)
    labels = (z[:, 0].abs() > 0.6).long()
    scores = {}
    for name, head in {"linear": nn.Linear(3, 2), "kernel": KernelClassifier(3, 2, bias=True)}.items():
        torch.manual_seed(0)
        head.reset_parameters()
        optimizer = torch.optim.Adam(head.parameters(), 0.05)
        for _ in range(150):
            optimizer.zero_grad()
            F.cross_entropy(head(z), labels).backward()
            optimizer.step()
        scores[name] = (head(z).argmax(1) == labels).float().mean().item()
    assert scores["kernel"] > 0.9 > 0.8 > scores["linear"]


def test_little_more_is_kept_for_the_backward_pass_than_a_linear_layer_keeps():
    from mercer_papers.bench.head import saved_bytes

    z = torch.randn(128, 512, requires_grad=True)
    head, linear = KernelClassifier(512, 1000, linear=True), saved_bytes(nn.Linear(512, 1000, bias=False), z)
    assert saved_bytes(KernelClassifier(512, 1000), z) < 1.3 * linear
    there_anyway = head.linear.nbytes + z.nbytes
    assert saved_bytes(head, z) < 1.3 * linear + there_anyway
