"""The infinite-width limit of a model: finite networks of that very model, exact cases, what is refused."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import mercer
from mercer.kernels import NNGP, NTK, ConvNNGP, ConvNTK, infinite_width
from mercer.kernels.gaussian_moments import GELU, Erf, HermiteSeries, LeakyReLU, Wave
from mercer.machines import KernelRidge

VECTOR, PICTURE, TOKENS = (5,), (2, 4, 4), "tokens"


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return x + 0.7 * self.body(x)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def mlp(activation):
    return lambda w: nn.Sequential(nn.Linear(5, w), activation(), nn.Linear(w, w), activation(), nn.Linear(w, w))


def pooled(w):
    first, second = nn.Conv2d(2, w, 3, padding=1), nn.Conv2d(w, w, 2, dilation=2, padding="same")
    return nn.Sequential(first, nn.ReLU(), second, nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w, w))


def pooled_between(w):
    first, second = nn.Conv2d(2, w, 3, padding=1), nn.Conv2d(w, w, 3, padding=1, padding_mode="circular")
    pool = nn.AvgPool2d(2, 2, 1, count_include_pad=False)
    return nn.Sequential(first, nn.ReLU(), pool, second, nn.ReLU(), nn.Flatten(), nn.Linear(9 * w, w))


def depthwise(w):
    spread, mix = nn.Conv2d(w, w, 3, padding=1, groups=w), nn.Conv2d(w, w, 1)
    layers = [nn.Conv2d(2, w, 3, stride=2), nn.ReLU(), spread, nn.GroupNorm(1, w), mix, nn.ReLU()]
    return nn.Sequential(*layers, Call(lambda x: x.mean((2, 3))), nn.Linear(w, w))


def residual(w):
    blocks = [Residual(nn.ReLU(), nn.Linear(w, w)), Residual(nn.LayerNorm(w), nn.GELU(), nn.Linear(w, w))]
    return nn.Sequential(nn.Linear(5, w), *blocks, nn.ReLU(), nn.Linear(w, w))


def sequence(w):
    layers = [nn.Conv1d(3, w, 3, padding=1), nn.ReLU(), nn.Conv1d(w, w, 2, stride=2), nn.ReLU()]
    tokens = [Call(lambda x: x.transpose(1, 2)), nn.LayerNorm(w), nn.Linear(w, w), nn.Tanh(), Call(lambda x: x.mean(1))]
    return nn.Sequential(*layers, *tokens, nn.Linear(w, w))


MODELS = {
    "relu": (mlp(nn.ReLU), VECTOR),
    "residual": (residual, VECTOR),
    "norms_after_relu": (
        lambda w: nn.Sequential(
            *[nn.Linear(5, w), nn.ReLU(), nn.LayerNorm(w), nn.Linear(w, w), nn.ReLU(), nn.RMSNorm(w), nn.Linear(w, w)]
        ),
        VECTOR,
    ),
    "skip_of_the_input": (
        lambda w: nn.Sequential(
            Residual(nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w)), nn.LayerNorm(w), nn.Linear(w, w)
        ),
        "wide",
    ),
    "batch_norm": (
        lambda w: nn.Sequential(nn.Linear(5, w), nn.BatchNorm1d(w), nn.ReLU(), nn.Dropout(0.5), nn.Linear(w, w)).eval(),
        VECTOR,
    ),
    "pooled": (pooled, PICTURE),
    "pooled_between": (pooled_between, PICTURE),
    "depthwise": (depthwise, PICTURE),
    "groups": (
        lambda w: nn.Sequential(
            *[nn.Conv2d(2, w, 3, stride=2), nn.ReLU(), nn.Conv2d(w, w, 1, groups=2), nn.ReLU()],
            *[nn.Flatten(), nn.Linear(w, w)],
        ),
        PICTURE,
    ),
    "sequence": (sequence, (3, 6)),
    "embedding": (
        lambda w: nn.Sequential(nn.Embedding(7, w), nn.ReLU(), Call(lambda x: x.mean(1)), nn.Linear(w, w)),
        TOKENS,
    ),
    "bag": (lambda w: nn.Sequential(nn.EmbeddingBag(7, w, mode="sum"), nn.ReLU(), nn.Linear(w, w)), TOKENS),
}


def rows(shape, width, n=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if shape == TOKENS:
        return torch.randint(7, (n, 4), generator=generator)
    if shape == "wide":
        return torch.randn(n, width, generator=generator, dtype=torch.float64) + 0.5
    return torch.randn(n, *shape, generator=generator, dtype=torch.float64)


def draw_weights(model, layers):
    """Gaussian weights of the kernel's variances; the squared factor of each parameter."""
    factors = {}
    for name, (weight_var, bias_var) in layers.items():
        layer = model.get_submodule(name)
        fan_in = 1 if isinstance(layer, nn.Embedding | nn.EmbeddingBag) else layer.weight[0].numel()
        factors[f"{name}.weight"] = weight_var / fan_in
        nn.init.normal_(layer.weight, std=math.sqrt(weight_var / fan_in))
        if bias_var is not None:
            factors[f"{name}.bias"] = bias_var
            nn.init.normal_(layer.bias, std=math.sqrt(bias_var))
    return factors


def finite_kernels(model, x, layers):
    """NNGP (mean over outputs) and NTK (of the first output) of one draw of the finite network."""
    factors = draw_weights(model, layers)
    f = model(x)
    parameters = {name: p for name, p in model.named_parameters() if name in factors}
    gradients = [torch.autograd.grad(row[0], list(parameters.values()), retain_graph=True) for row in f]
    roots = [math.sqrt(factors[name]) for name in parameters]
    jacobian = torch.stack([torch.cat([r * p.flatten() for r, p in zip(roots, g, strict=True)]) for g in gradients])
    return (f @ f.mT / f.shape[1]).detach(), jacobian @ jacobian.mT


def errors_of(make, shape, width, draws):
    """Relative errors of the mean of all draws and of one draw, of NNGP and NTK."""
    x = rows(shape, width)
    model = make(width).double()
    kernel = infinite_width(model, example=x[:1], weight_var=1.6, bias_var=0.1)
    samples = [finite_kernels(model, x, kernel.layers) for _ in range(draws)]
    of_mean, of_one = [], []
    for exact, grams in zip(kernel.both(x), map(torch.stack, zip(*samples, strict=True)), strict=True):
        of_mean.append(float((grams.mean(0) - exact).norm() / exact.norm()))
        of_one.append(float(((grams - exact).square().sum((1, 2)).mean().sqrt()) / exact.norm()))
    return of_mean, of_one


@pytest.mark.parametrize("name", MODELS)
def test_finite_networks_of_that_very_module_approach_it(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    of_mean, wide = errors_of(make, shape, 128, 32)
    assert max(of_mean) < 0.12, of_mean  # a standard error of 4 % and the width's own O(1 / width)
    _, narrow = errors_of(make, shape, 16, 32)
    for near, far in zip(wide, narrow, strict=True):
        assert near * math.sqrt(128) < 5 and near < 0.65 * far  # 1 / sqrt(width) would be 0.35


BLOCKS = {
    "relu": lambda w: [nn.ReLU(), nn.Linear(w, w)],
    "tanh": lambda w: [nn.Tanh(), nn.Linear(w, w)],
    "norm": lambda w: [nn.LayerNorm(w), nn.GELU(), nn.Linear(w, w)],
    "late_norm": lambda w: [nn.ReLU(), nn.LayerNorm(w), nn.Linear(w, w)],
    "residual": lambda w: [Residual(nn.ReLU(), nn.Linear(w, w))],
    "deep_residual": lambda w: [Residual(nn.RMSNorm(w), nn.SiLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w))],
}
few = settings(max_examples=20, deadline=None, derandomize=True)


@few
@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=3), st.booleans(), st.integers(0, 100))
def test_random_architectures(names, picture, seed):
    def make(w):
        blocks = [layer for name in names for layer in BLOCKS[name](w)]
        if not picture:
            return nn.Sequential(nn.Linear(5, w), *blocks, nn.ReLU(), nn.Linear(w, w))
        tokens = [nn.Conv2d(2, w, 2, stride=2), nn.Flatten(2), Call(lambda x: x.transpose(1, 2))]
        return nn.Sequential(*tokens, *blocks, nn.ReLU(), Call(lambda x: x.mean(1)), nn.Linear(w, w))

    torch.manual_seed(seed)
    shape = PICTURE if picture else VECTOR
    of_mean, of_one = errors_of(make, shape, 64, 12)
    assert max(of_mean) < 0.3 and max(of_one) * math.sqrt(64) < 8
    x = rows(shape, 0, n=6, seed=seed)
    kernel = infinite_width(make(8), example=x[:1])
    gram = kernel(x)
    torch.testing.assert_close(gram, gram.mT)
    assert torch.linalg.eigvalsh(gram).min() > -1e-10 * gram.trace()
    torch.testing.assert_close(kernel.diag(x), gram.diagonal())
    torch.testing.assert_close(kernel(x[:2], x[2:]), gram[:2, 2:])
    torch.testing.assert_close(kernel(x.float()).double(), gram, rtol=1e-4, atol=1e-5 * float(gram.max()))


ACTIVATIONS = {
    "erf": (Erf(), torch.erf),
    "gelu": (GELU(), F.gelu),
    "sin": (Wave(), torch.sin),
    "cos": (Wave(cosine=True), torch.cos),
    "tanh": (HermiteSeries("tanh"), torch.tanh),
    "silu": (HermiteSeries("silu"), F.silu),
    "sigmoid": (HermiteSeries("sigmoid"), torch.sigmoid),
    "softplus": (HermiteSeries("softplus"), F.softplus),
    "mish": (HermiteSeries("mish"), F.mish),
    "gelu_tanh": (HermiteSeries("gelu_tanh"), lambda u: F.gelu(u, approximate="tanh")),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_moments_of_activations_equal_integrals(name):
    activation, function = ACTIVATIONS[name]
    z = torch.arange(-10, 10.01, 1 / 20, dtype=torch.float64)
    weight = torch.exp(-z * z / 2) / (20 * math.sqrt(2 * math.pi))
    plane = weight[:, None] * weight[None]

    def derivative(u):
        u = u.requires_grad_()
        return torch.autograd.grad(function(u).sum(), u)[0]

    series = isinstance(activation, HermiteSeries)
    for rx, ry in ((0.3, 0.5), (1.0, 1.0), (2.0, 0.7), (2.0, 1.9)):
        r = [torch.tensor([v], dtype=torch.float64) for v in (rx, ry)]
        after = [activation.deviation(v) for v in r]
        square = float((function(rx * z).square() * weight).sum())
        assert float(after[0] ** 2) == pytest.approx(square, rel=1e-12)
        assert float(activation.mean(r[0])) == pytest.approx(float((function(rx * z) * weight).sum()), abs=1e-12)
        scale = float(after[0] * after[1])
        for rho in (-0.9, 0.0, 0.4, 0.99):
            t = torch.tensor([rho], dtype=torch.float64)
            sides = [activation.factors(v, w) for v, w in zip(r, after, strict=True)]
            value, slope = activation.pair(t, *sides, slope=True)
            u, v = rx * z[:, None], ry * (rho * z[:, None] + math.sqrt(1 - rho**2) * z[None])
            u = u.expand_as(v)
            expected = float((function(u) * function(v) * plane).sum()) / scale
            assert float(value) == pytest.approx(expected, abs=1e-8 if series else 1e-12)
            expected = float((derivative(u.clone()) * derivative(v.clone()) * plane).sum()) * rx * ry / scale
            assert float(slope) == pytest.approx(expected, abs=1e-5 if series else 1e-11)


def test_leaky_relu_is_between_relu_and_the_identity():
    rho = torch.linspace(-1, 1, 9, dtype=torch.float64)
    identity = LeakyReLU(1.0)
    value, slope = identity.pair(rho, (), (), slope=True)
    torch.testing.assert_close(value, rho)
    torch.testing.assert_close(slope, torch.ones_like(rho))
    absolute = LeakyReLU(-1.0).pair(rho, (), (), slope=True)[0]
    torch.testing.assert_close(absolute, absolute.flip(0))


def test_published_closed_forms():
    x = rows(VECTOR, 0, n=4)
    erf = infinite_width(nn.Sequential(nn.Linear(5, 8), Call(torch.erf), nn.Linear(8, 1)), kind="nngp", weight_var=1.3)
    q = 1.3 * x @ x.mT / 5 + erf.layers["0"][1]
    inner = 2 * q / ((1 + 2 * q.diagonal())[:, None] * (1 + 2 * q.diagonal())[None]).sqrt()  # Williams, 1997
    torch.testing.assert_close(erf(x), 1.3 * 2 / math.pi * inner.clamp(-1, 1).asin() + erf.layers["2"][1])
    relu = infinite_width(nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False)))
    norm = x.norm(dim=1)
    angle = (x @ x.mT / norm[:, None] / norm[None]).clamp(-1, 1).acos().fill_diagonal_(0)
    zero = (math.pi - angle) / math.pi  # the arc-cosine kernels of order 0 and 1: Cho and Saul, 2009
    one = (angle.sin() + (math.pi - angle) * angle.cos()) / math.pi
    both = relu.both(x)
    v = 1 / 3
    expected = v * v * norm[:, None] * norm[None] / 5 / 2 * one
    torch.testing.assert_close(both.nngp, expected)
    torch.testing.assert_close(both.ntk, expected + v * v * (x @ x.mT) / 5 * zero / 2)


def test_plain_networks_have_the_kernels_that_they_had():
    x = rows(VECTOR, 0, n=6)
    dense = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))
    options = {"weight_var": 1.7, "bias_var": 0.2}
    torch.testing.assert_close(infinite_width(dense, **options)(x), NTK(2, "relu", 1.7, 0.2)(x), rtol=1e-10, atol=0)
    gp = infinite_width(dense, kind="nngp", **options)
    torch.testing.assert_close(gp(x), NNGP(2, "relu", 1.7, 0.2)(x), rtol=1e-10, atol=0)
    pictures = rows(PICTURE, 0, n=4)
    layers = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()]
    for readout, last in (
        ("flatten", [nn.Flatten(), nn.Linear(96, 1)]),
        ("mean", [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 1)]),
    ):
        kernel = infinite_width(nn.Sequential(*layers, *last), **options)
        expected = ConvNTK(2, "relu", 1.7, 0.2, readout=readout)(pictures)
        torch.testing.assert_close(kernel(pictures), expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(
            kernel.both(pictures).nngp, ConvNNGP(2, "relu", 1.7, 0.2, readout=readout)(pictures), rtol=1e-10, atol=0
        )


@pytest.mark.parametrize(
    ("options", "pool"),
    [
        ({"kernel_size": 3, "padding": 1}, None),
        ({"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 2)}, None),
        ({"kernel_size": 2, "dilation": 2}, 2),
        ({"kernel_size": 3, "stride": 2, "padding": 2}, 2),
        ({"kernel_size": 1}, 3),
    ],
    ids=str,
)
def test_linear_convolutions_equal_patches(options, pool):
    """Without an activation the covariance is that of patches, at any width."""
    x = rows((2, 6, 5), 0, n=3)
    layers = [nn.Conv2d(2, 4, bias=False, **options), *([] if pool is None else [nn.AvgPool2d(pool, 1)])]
    flat = nn.Sequential(*layers, nn.Flatten())(x.float()).shape[1]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 1, bias=False))
    sizes = layers[0](x.float()).shape[2:]
    patches = F.unfold(x, **options).reshape(3, -1, *sizes)
    patches = patches if pool is None else F.avg_pool2d(patches, pool, 1)
    mean = torch.einsum("ncij,mcij->nm", patches, patches) / (patches.shape[1] * patches.shape[2:].numel())
    both = infinite_width(model, weight_var=1.5)
    torch.testing.assert_close(both.both(x).nngp, 1.5**2 * mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(both(x), 2 * 1.5**2 * mean, rtol=1e-10, atol=1e-12)


def test_blocks_and_pairs_of_positions_do_not_change_the_kernel(monkeypatch):
    x = rows(PICTURE, 0, n=5)
    for make in (pooled_between, depthwise):
        kernel = infinite_width(make(8), example=x[:1])
        whole, diagonal = kernel(x), kernel.diag(x)
        monkeypatch.setattr(kernel, "block_bytes", 2000)
        torch.testing.assert_close(kernel(x), whole)
        torch.testing.assert_close(kernel(x.requires_grad_()), whole)
        x = x.detach()
        torch.testing.assert_close(kernel.diag(x), diagonal)
        torch.testing.assert_close(kernel.matmul(x, None, whole, block=2), whole @ whole)


@pytest.mark.parametrize("name", ["residual", "pooled_between", "norms_after_relu", "sequence"])
def test_derivatives_of_both_modes(name):
    make, shape = MODELS[name]
    x, y = rows(shape, 0, n=2), rows(shape, 0, n=2, seed=2)
    kernel = infinite_width(make(8), example=x[:1])
    x.requires_grad_()
    assert torch.autograd.gradcheck(kernel, (x, y), check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradcheck(kernel.diag, (x,), check_forward_ad=True, fast_mode=True)


def test_variances_are_read_from_the_initializers():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 60), nn.Linear(60, 1)
    )
    nn.init.kaiming_normal_(model[2].weight)
    nn.init.xavier_uniform_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    nn.init.normal_(model[5].weight, std=0.5)
    layers = infinite_width(model).layers
    assert layers["0"] == pytest.approx((1 / 3, 1 / 90))
    assert layers["2"] == pytest.approx((2.0, 1 / 120))
    assert layers["4"] == pytest.approx((100 / 110, 0.0))
    assert layers["5"][0] == pytest.approx(15, rel=0.5)
    text = repr(infinite_width(model, weight_var={"2": 1.5}, bias_var=0.1))
    assert "0: weight_var=0.3333, bias_var=0.1" in text and "2: weight_var=1.5, bias_var=0.1" in text


def test_frozen_layers_have_no_part_in_the_tangent_kernel():
    x = rows(VECTOR, 0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    last = infinite_width(model)
    torch.testing.assert_close(last(x), last.both(x).nngp)
    model[2].requires_grad_(False)
    assert not infinite_width(model)(x).any()
    model[0].bias.requires_grad_(True)
    factor = infinite_width(model, weight_var=2.0, bias_var=0.3).diag(x)
    torch.testing.assert_close(factor, torch.full_like(factor, 0.3))  # 0.3 times 2 E[relu'^2]


def test_weighted_sums_and_shared_nodes_are_exact():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = self.first(x)
            h = (h + self.second(torch.relu(h))) / 2 + h  # 1.5 h + 0.5 second(...)
            return self.last(-h)

    x = rows(VECTOR, 0)
    kernel = infinite_width(Twice(), kind="nngp", weight_var=2.0, bias_var=0.0)
    first = 2 * x @ x.mT / 5
    hidden = NNGP(1, "relu", 2.0)(x)
    torch.testing.assert_close(kernel(x), 2 * (1.5**2 * first + 0.5**2 * hidden))


def test_the_model_is_left_as_it_is_and_the_kernel_keeps_what_it_read():
    x = rows(PICTURE, 0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(32, 1))
    before = copy.deepcopy(model.state_dict())
    kernel = infinite_width(model)
    assert model.training and not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    gram = kernel(x)
    torch.testing.assert_close(model.state_dict(), before)
    with torch.no_grad():
        model[0].weight *= 3
    torch.testing.assert_close(kernel(x), gram)
    assert not list(kernel.parameters())


def test_forward_may_branch_on_shapes_work_in_place_and_drop_the_last_axis():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = self.first(x)
            if x.shape[1] == 5 and h.dim() == 2 and h.size(-1) == 8:
                h = h.relu_()
            h = F.dropout(self.second(h), 0.5, training=True)
            return self.last(F.relu(h, inplace=True)).squeeze(-1)

    x = rows(VECTOR, 0)
    torch.testing.assert_close(infinite_width(Model(), weight_var=2.0, bias_var=0.0)(x), NTK(2)(x))


def test_functions_of_the_input_run_as_they_are():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.first, self.last = nn.LayerNorm(12), nn.Linear(12, 8), nn.Linear(8, 1)

        def forward(self, x):
            x = F.max_pool2d(x, 2).reshape(x.shape[0], -1)
            return self.last(self.first(self.norm(torch.cat([x, x.tanh()], 1)[:, :12])).relu())

    x = rows((3, 4, 4), 0, n=4)
    by_hand = F.layer_norm(F.max_pool2d(x, 2).flatten(1), (12,))
    kernel = infinite_width(Model(), example=x[:1].float(), weight_var=2.0, bias_var=0.0)
    torch.testing.assert_close(kernel(x), NTK(1)(by_hand))


def test_kernel_ridge_and_spectra_take_it():
    x, y = rows(VECTOR, 0, n=20), torch.arange(20) % 2
    kernel = infinite_width(mlp(nn.ReLU)(8))
    machine = KernelRidge(kernel, penalty=1e-3).fit(x, y.double())
    assert torch.isfinite(machine.predict(x)).all()
    assert mercer.spectral.analyze(kernel, x, y).complexity > 0


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.middle(self.middle(self.first(x)).relu()))


class Correlated(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.other, self.last, self.function = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 1), function

    def forward(self, x):
        return self.last(self.function(self.first(x), self.other(x)))


def chain(*layers):
    return lambda: nn.Sequential(nn.Linear(5, 8), *layers)


PICTURES = (nn.Conv2d(2, 8, 3, padding=1), nn.ReLU())
REFUSED = {
    "max pooling": (
        lambda: nn.Sequential(*PICTURES, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 1)),
        r"layer '2' \(MaxPool2d\) has no rule; got max pooling.*Use average pooling",
    ),
    "softmax": (chain(nn.Softmax(-1)), r"layer '1' \(Softmax\) has no rule; got a softmax.*Take it off"),
    "attention": (
        lambda: nn.Sequential(nn.Linear(5, 8), nn.TransformerEncoderLayer(8, 2)),
        r"layer '1' \(TransformerEncoderLayer\) has no rule; got softmax attention",
    ),
    "batch norm": (
        chain(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
        r"layer '1' \(BatchNorm1d\) has no limit of its own; got batch norm in training.*model.eval\(\)",
    ),
    "recurrent": (lambda: nn.GRU(5, 8), r"GRU.* got a recurrent layer"),
    "no rule": (
        chain(nn.Hardtanh(), nn.Linear(8, 1)),
        r"layer '1' \(Hardtanh\) has no rule; got the function hardtanh",
    ),
    "not Gaussian": (
        chain(nn.ReLU(), nn.Tanh(), nn.Linear(8, 1)),
        r"layer '2' \(Tanh\) must follow a layer with weights; got an activation of what is no Gaussian process",
    ),
    "post-activation": (
        chain(nn.ReLU(), Residual(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 1)),
        r"layer '3' \(ReLU\) must follow a layer with weights.*pre-activation",
    ),
    "correlated": (
        lambda: Correlated(lambda a, b: a + a.relu()),
        r"own forward \(Correlated\) must add uncorrelated nodes; got .*x \+ relu\(x\)",
    ),
    "two means": (lambda: Correlated(lambda a, b: a.relu() + b.relu()), r"a sum of two activations' outputs"),
    "product": (lambda: Correlated(lambda a, b: a * b), r"must not multiply nodes"),
    "constant": (lambda: Correlated(lambda a, b: a + 1.0), r"a constant or parameter added.*Use a layer's bias"),
    "shared": (Shared, r"layer 'middle' \(Linear\) must have weights of its own; got weights that layer 'middle' uses"),
    "branch on values": (lambda: Correlated(lambda a, b: a if a.sum(0) > 0 else b), r"must take means over positions"),
    "positions left": (lambda: nn.Sequential(*PICTURES), r"must give one vector for each row; got positions \(4, 4\)"),
    "no weights": (lambda: nn.Sequential(nn.ReLU()), r"made by layers with weights; got none"),
    "zeros": (lambda: nn.Sequential(zero()), r"layer '0' must have random weights; got zeros\. Say weight_var="),
    "width": (lambda: nn.Sequential(nn.Linear(4, 1)), r"layer '0' \(Linear\) must have an input of 4 features; got 5"),
    "instance norm": (
        lambda: nn.Sequential(*PICTURES, nn.InstanceNorm2d(8), nn.Flatten(), nn.Linear(128, 1)),
        r"layer '2' \(InstanceNorm2d\) has no rule",
    ),
    "trained norm": (
        lambda: nn.Sequential(nn.Linear(5, 8), trained_norm(), nn.Linear(8, 1)),
        r"layer '1' \(LayerNorm\) must have the bias that it starts with; got a bias that is not 0",
    ),
}


def zero():
    layer = nn.Linear(5, 1)
    nn.init.zeros_(layer.weight)
    return layer


def trained_norm():
    layer = nn.LayerNorm(8)
    nn.init.ones_(layer.bias)
    return layer


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_limit_is_refused_by_name(name):
    make, message = REFUSED[name]
    model = make()
    picture = isinstance(model, nn.Sequential) and isinstance(model[0], nn.Conv2d)
    shape = PICTURE if picture else ((4, 5) if name in ("attention", "recurrent") else VECTOR)
    with pytest.raises(ValueError, match=message):
        infinite_width(model, example=torch.ones(1, *shape))


def test_sentences_of_arguments():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    for options, match in [
        ({"kind": "ntk2"}, r"infinite_width: kind must be one of 'ntk', 'nngp'; got 'ntk2'\."),
        ({"weight_var": -1.0}, r"infinite_width: weight_var must be positive; got -1.0\."),
        ({"bias_var": {"0": -1.0}}, r"bias_var\['0'\] must be 0 or more; got -1.0\."),
        ({"weight_var": {"7": 1.0}}, r"weight_var must name layers; got '7'\. Names are those of model"),
        ({"example": torch.ones(3)}, r"example must be rows, \(n, \.\.\.\); got \(3,\)\. Use x\[:1\]\."),
    ]:
        with pytest.raises(ValueError, match=match):
            infinite_width(model, **options)
    with pytest.raises(TypeError, match=r"model must be an nn.Module; got str"):
        infinite_width("resnet")
    kernel = infinite_width(model, example=torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"rows must have shape \(n, 3\); got \(n, 4\)\. Call infinite_width again"):
        kernel(torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"both: kind must be 'ntk'; got 'nngp'"):
        infinite_width(model, kind="nngp").both(torch.ones(2, 3))


def test_pictures_too_large_for_pooling_are_refused_before_work(monkeypatch):
    monkeypatch.setattr(mercer.checks, "available_memory", lambda: 2**31)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)
    )
    x = torch.ones(2, 1, 160, 160)
    with pytest.raises(
        MemoryError, match=r"25600 x 25600 pairs of positions needs 19\.\d GiB; got 2\.0 GiB free.*AvgPool2d"
    ):
        infinite_width(model)(x)
