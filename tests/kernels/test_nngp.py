"""Analytic kernels of wide networks: literal recursions, finite networks by sampling, tiles, the diagonal."""

import itertools
import math

import pytest
import torch
from torch import nn

from mercer.kernels import NNGP, NTK, ConvNNGP, ConvNTK, EmpiricalNTK, Kernel, MonteCarloNNGP
from tests.reference_deng2022 import wide_conv_network, wide_network


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize(("depth", "weight_var", "bias_var"), [(1, 2.0, 0.0), (3, 1.7, 0.3)])
def test_equals_the_literal_recursion(activation, depth, weight_var, bias_var):
    x, y = draw(4, 5), draw(3, 5, seed=1)
    arguments = (depth, activation, weight_var, bias_var)
    expected = torch.tensor([[wide_network(a, b, *arguments) for b in y] for a in x], dtype=torch.float64)
    torch.testing.assert_close(NNGP(*arguments)(x, y), expected[..., 0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(NTK(*arguments)(x, y), expected[..., 1], rtol=1e-9, atol=1e-9)
    own = torch.tensor([wide_network(a, a, *arguments) for a in x], dtype=torch.float64)
    torch.testing.assert_close(NNGP(*arguments).diag(x), own[:, 0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(NTK(*arguments).diag(x), own[:, 1], rtol=1e-9, atol=1e-9)


class Layer(nn.Module):
    """f(x) = sqrt(weight_var / fan_in) W x + sqrt(bias_var) b with standard normal W, b."""

    def __init__(self, a, b, weight_var, bias_var):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(b, a)), nn.Parameter(torch.randn(b))
        self.scale, self.offset = math.sqrt(weight_var / a), math.sqrt(bias_var)

    def forward(self, x):
        return self.scale * (x @ self.weight.mT) + self.offset * self.bias


class Erf(nn.Module):
    def forward(self, x):
        return x.erf()


def finite_network(d, width, depth, activation, weight_var, bias_var, outputs=1):
    phi = nn.ReLU if activation == "relu" else Erf
    sizes = [d, *[width] * depth, outputs]
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [Layer(a, b, weight_var, bias_var), phi()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("depth", [1, 3])
def test_agrees_with_wide_networks_within_three_standard_errors(activation, depth):
    x = draw(3, 4)
    weight_var, bias_var = 1.6, 0.2
    torch.manual_seed(3)
    grams, tangents = [], []
    for _ in range(60):
        network = finite_network(4, 256, depth, activation, weight_var, bias_var, outputs=8)
        with torch.no_grad():
            f = network.double()(x)
            grams.append(f @ f.mT / 8)
        tangents.append(EmpiricalNTK(network, outputs=0)(x))
    for samples, exact in ((grams, NNGP), (tangents, NTK)):
        stack = torch.stack(samples)
        kernel = exact(depth, activation, weight_var, bias_var)(x)
        error = (
            stack.std(0) / math.sqrt(len(samples)) + 3 / 256 * kernel.abs() / 3
        )  # the width's own bias is O(1 / width)
        assert ((stack.mean(0) - kernel).abs() < 3 * error).all()


def test_sampled_kernel_converges_to_the_analytic_one():
    x = draw(4, 3)
    kernel = MonteCarloNNGP(
        lambda: finite_network(3, 64, 1, "relu", 2.0, 0.1, outputs=16),
        samples=200,
        generator=torch.Generator().manual_seed(0),
    )
    state = torch.get_rng_state()
    gram = kernel(x)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(kernel(x[:2], x[2:]), gram[:2, 2:])
    exact = NNGP(1, "relu", 2.0, 0.1)(x)
    variance = exact.diagonal()[:, None] * exact.diagonal()[None] + exact**2
    assert ((gram - exact).abs() < 4 * (variance / (200 * 16) * 2).sqrt()).all()


@pytest.mark.parametrize("kernel", [NNGP(2, bias_var=0.1), NTK(3), NTK(2, "erf", 1.5, 0.2), NNGP(2)], ids=repr)
def test_tiles_equal_the_whole(kernel, monkeypatch):
    x, y = draw(23, 6), draw(11, 6, seed=1)
    x[4] = 0
    x[7] = x[6]
    whole, across = kernel(x), kernel(x, y)
    monkeypatch.setattr(kernel, "tile", 5)
    torch.testing.assert_close(kernel(x), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel(x, y), across, rtol=1e-12, atol=1e-12)
    batched = torch.func.vmap(lambda row: kernel(row[None], y)[0])(x)
    torch.testing.assert_close(batched, across, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel.matmul(x, None, x), whole @ x)


def test_both_kernels_from_one_pass():
    x = draw(6, 4)
    both = NTK(2, bias_var=0.2).both(x)
    torch.testing.assert_close(both.nngp, NNGP(2, bias_var=0.2)(x))
    torch.testing.assert_close(both.ntk, NTK(2, bias_var=0.2)(x))


def test_diagonal_is_exact_in_float32():
    x = torch.rand(300, 784, generator=torch.Generator().manual_seed(0))
    exact = NTK(4).diag(x.double())
    assert ((NTK(4)(x).diagonal() - exact).abs() / exact).max() < 1e-6


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_scale_of_the_data_is_no_matter_for_relu(scale):
    x = draw(5, 3)
    torch.testing.assert_close(NTK(2)(x * scale) / scale**2, NTK(2)(x))
    assert torch.isfinite(NTK(2, "erf")(x * scale)).all()


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("readout", ["flatten", "mean"])
def test_convolutional_kernels_equal_the_literal_recursion(activation, readout):
    x, y = draw(1, 2, 2, 3), draw(2, 2, 2, 3, seed=1)
    arguments = (2, activation, 1.7, 0.2)
    expected = torch.tensor(
        [[wide_conv_network(a, b, *arguments, 3, readout) for b in y] for a in x], dtype=torch.float64
    )
    options = {"kernel_size": 3, "readout": readout}
    torch.testing.assert_close(ConvNNGP(*arguments, **options)(x, y), expected[..., 0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ConvNTK(*arguments, **options)(x, y), expected[..., 1], rtol=1e-8, atol=1e-8)


CONVOLUTIONAL = {
    "nngp": lambda: ConvNNGP(2, bias_var=0.1),
    "ntk": lambda: ConvNTK(2),
    "ntk_erf": lambda: ConvNTK(1, "erf", 1.5, 0.1, kernel_size=1),
    "nngp_mean": lambda: ConvNNGP(1, readout="mean"),
    "ntk_mean": lambda: ConvNTK(2, readout="mean"),
}


@pytest.fixture(params=CONVOLUTIONAL, ids=str)
def conv(request):
    return CONVOLUTIONAL[request.param]()


def test_contract_of_convolutional_kernels(conv, monkeypatch):
    x = draw(5, 2, 4, 3)
    gram = conv(x)
    torch.testing.assert_close(gram, gram.mT)
    assert torch.linalg.eigvalsh(gram).min() > -1e-12 * gram.trace()
    torch.testing.assert_close(conv.diag(x), gram.diagonal())
    torch.testing.assert_close(Kernel.gram_diag(conv, x), gram.diagonal())
    torch.testing.assert_close(conv(x[:2], x[2:]), gram[:2, 2:])
    torch.testing.assert_close(conv.matmul(x, None, gram, block=2), gram @ gram)
    assert conv(x.float()).dtype == conv(x.half()).dtype == torch.float32
    assert conv.to("meta")(x.to("meta")).shape == (5, 5)
    monkeypatch.setattr(conv, "block_bytes", 8 * 12 * 12 * 3)
    torch.testing.assert_close(conv(x), gram)
    assert conv(x[:0], x).shape == (0, 5)


@pytest.mark.parametrize(
    "kernel", [NNGP(2), NTK(2), NTK(3, bias_var=0.2), NNGP(2, "erf", 1.5, 0.2), NTK(2, "erf")], ids=repr
)
@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e30, torch.float32), (1e200, torch.float64)], ids=["float32", "float64"]
)
def test_huge_inputs_overflow_only_where_the_kernel_does(kernel, scale, dtype):
    x = draw(5, 3, dtype=dtype) * scale
    for gram in (kernel(x), kernel(x, x.clone()), kernel.diag(x), kernel(x.clone().requires_grad_()).detach()):
        assert not gram.isnan().any()
    if kernel.activation == "erf":  # bounded in the limit: the signs' own kernel
        assert torch.isfinite(kernel(x, -x)).all()
        far = kernel(x[:1] / scale * 1e9, x[1:2] / scale * 1e9)
        torch.testing.assert_close(kernel(x[:1], x[1:2]), far, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [NNGP(2), NTK(2), NTK(2, bias_var=0.2), NTK(2, "erf").normalized()], ids=repr)
@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e-40, torch.float32), (1e-310, torch.float64)], ids=["float32", "float64"]
)
def test_denormal_inputs_are_nearly_zero(kernel, scale, dtype):
    x = draw(5, 3, dtype=dtype) * scale
    zero = kernel(torch.zeros(5, 3, dtype=dtype))
    torch.testing.assert_close(kernel(x), zero)
    torch.testing.assert_close(kernel.diag(x), zero.diagonal())


def test_pictures_whose_squares_overflow_are_refused():
    x = draw(2, 1, 2, 2, dtype=torch.float32) * 1e30
    with pytest.raises(
        ValueError, match=r"ConvNTK: x must stay below .* in torch.float32, because its squares overflow"
    ):
        ConvNTK()(x)


def test_sentences():
    for make, match in [
        (lambda: NNGP(0), r"NNGP: depth must be a whole number of at least 1; got 0\."),
        (lambda: NTK(1, "tanh"), r"NTK: activation must be one of 'relu', 'erf'; got 'tanh'\."),
        (lambda: NTK(weight_var=0), r"NTK: weight_var must be positive; got 0\."),
        (lambda: NNGP(bias_var=-1.0), r"NNGP: bias_var must be 0 or more; got -1.0\."),
        (lambda: ConvNNGP(kernel_size=2), r"ConvNNGP: kernel_size must be odd; got 2\."),
        (lambda: ConvNTK(readout="max"), r"ConvNTK: readout must be one of 'flatten', 'mean'; got 'max'\."),
        (lambda: ConvNTK()(torch.ones(2, 9)), r"ConvNTK: x must have shape \(n, c, h, w\); got \(2, 9\)\. Use"),
    ]:
        with pytest.raises(ValueError, match=match):
            make()
