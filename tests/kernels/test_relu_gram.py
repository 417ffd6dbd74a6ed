"""H-infinity against its definition, and the proved floor under its least eigenvalue."""

import math

import pytest
import torch
from torch import nn

from mercer.kernels import RBF, Polynomial, Precomputed, ReLUGram


def unit(n, d, generator):
    x = torch.randn(n, d, dtype=torch.float64, generator=generator)
    return x / x.norm(dim=1, keepdim=True)


def test_equals_the_expectation_over_gaussian_weights(generator):
    x = unit(6, 4, generator)
    w = torch.randn(400_000, 4, dtype=torch.float64, generator=generator)
    active = (w @ x.mT >= 0).double()  # (draws, n)
    expectation = (x @ x.mT) * (active.mT @ active) / len(w)
    torch.testing.assert_close(ReLUGram()(x), expectation, rtol=0, atol=5 * 0.5 / math.sqrt(len(w)))


def test_equals_the_formula_on_raw_rows_kernels_and_maps(generator):
    x = torch.randn(9, 5, dtype=torch.float64, generator=generator)
    linear = nn.Linear(5, 7, dtype=torch.float64)
    with torch.no_grad():
        features = linear(x)
        cases = [
            (ReLUGram(), torch.cosine_similarity(x[:, None], x[None], dim=2)),
            (ReLUGram(RBF(0.3)), RBF(0.3)(x)),
            (ReLUGram(3.0 * RBF(0.3)), RBF(0.3)(x)),
            (ReLUGram(Polynomial(2)), Polynomial(2).normalized()(x)),
            (ReLUGram(linear), torch.cosine_similarity(features[:, None], features[None], dim=2)),
        ]
        for kernel, cosine in cases:
            t = cosine.clamp(-1, 1)
            torch.testing.assert_close(kernel(x), t * (math.pi - t.arccos()) / (2 * math.pi), rtol=1e-7, atol=1e-7)
            torch.testing.assert_close(kernel.diag(x), torch.full((9,), 0.5, dtype=torch.float64))


def test_is_exact_at_the_ends_with_finite_gradients():
    x = torch.tensor([[3.0, 4.0], [0.6, 0.8], [-3.0, -4.0], [0.0, 0.0]], requires_grad=True)
    gram = ReLUGram()(x)
    expected = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(gram, expected)
    torch.testing.assert_close(ReLUGram().diag(x), expected.diagonal())
    (gradient,) = torch.autograd.grad(gram.sum(), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("n", "d"), [(2, 2), (30, 2), (30, 5), (100, 10), (150, 60)])
def test_floor_lies_below_the_least_eigenvalue_and_is_of_use(n, d, generator):
    x = unit(n, d, generator)
    for kernel in (ReLUGram(), ReLUGram(RBF(2.0)), ReLUGram(nn.Linear(d, 2 * d, dtype=torch.float64))):
        least, floor = float(torch.linalg.eigvalsh(kernel(x).detach())[0]), kernel.bounds(x).floor
        assert 0 < floor <= least
        if d >= 5:
            assert floor > least / 4


def test_floor_is_zero_where_the_matrix_is_singular(generator):
    x = unit(20, 4, generator)
    assert ReLUGram().bounds(torch.cat((x, x[:1]))).floor == 0.0
    assert ReLUGram().bounds(torch.cat((x, torch.zeros(1, 4, dtype=x.dtype)))).floor == 0.0


def test_floor_of_a_precomputed_base(generator):
    x = unit(25, 6, generator)
    kernel = ReLUGram(Precomputed(x @ x.mT))
    torch.testing.assert_close(kernel.bounds(torch.arange(25)).floor, ReLUGram().bounds(x).floor, rtol=1e-6, atol=0)


def test_base_must_be_a_module():
    with pytest.raises(TypeError, match="ReLUGram: base must be None, a kernel or a feature map; got str"):
        ReLUGram("rbf")
