"""What holds for all kernels and all rows: algebra, products, derivatives, batching; drawn by hypothesis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mercer.kernels import RBF, Cosine, Laplacian, Matern, Periodic, RationalQuadratic
from tests.kernels.cases import CASES, PICTURES

few = settings(max_examples=12, deadline=None, derandomize=True)
ROWS = sorted(set(CASES) - {"precomputed"})
kernels = st.sampled_from(ROWS)
seeds = st.integers(0, 1000)
sizes = st.integers(1, 6)


def draw(seed, n, d=3):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@few
@given(kernels, kernels, sizes, sizes, seeds, st.floats(0.1, 10), st.integers(1, 3))
def test_algebra_of_kernels_is_algebra_of_grams(one, two, n, m, seed, scale, power):
    a, b = CASES[one](), CASES[two]()
    x, y = draw(seed, n), draw(seed + 1, m)
    with torch.no_grad():
        torch.testing.assert_close((a + b)(x, y), a(x, y) + b(x, y))
        torch.testing.assert_close((a * b)(x, y), a(x, y) * b(x, y))
        torch.testing.assert_close((scale * a)(x, y), scale * a(x, y))
        torch.testing.assert_close((a + scale)(x, y), a(x, y) + scale)
        torch.testing.assert_close((scale + a).diag(x), a.diag(x) + scale)
        torch.testing.assert_close((a**power)(x, y), a(x, y) ** power)
        torch.testing.assert_close((a + b).diag(x), a.diag(x) + b.diag(x))
        own = a.normalized()(x)
    assert ((own.diagonal() - 1).abs() < 1e-9).all() and (own.abs() < 1 + 1e-9).all()


@few
@given(kernels, sizes, sizes, seeds, st.integers(1, 7), st.integers(1, 3))
def test_products_do_not_depend_on_blocks_or_batches(name, n, m, seed, block, columns):
    kernel = CASES[name]()
    x, y, v = draw(seed, n), draw(seed + 1, m), draw(seed + 2, m, columns)
    with torch.no_grad():
        torch.testing.assert_close(kernel.matmul(x, y, v, block=block), kernel(x, y) @ v)
        parts = torch.cat([kernel(part, y) for part in x.split(block)])
        torch.testing.assert_close(parts, kernel(x, y))
        torch.testing.assert_close(kernel(y, x), kernel(x, y).mT)


@few
@given(st.sampled_from([*ROWS, *PICTURES]), st.integers(1, 3), seeds)
def test_forward_and_reverse_derivatives_are_transposes(name, n, seed):
    kernel = (CASES | PICTURES)[name]()
    shape = (2, 1, 2) if name in PICTURES else (3,)
    x, y, v = (draw(seed + i, n, 4)[:, : torch.Size(shape).numel()].reshape(n, *shape) for i in range(3))
    u = draw(seed + 3, n, n)
    _, forward = torch.func.jvp(lambda z: kernel(z, y), (x,), (v,))
    _, pull = torch.func.vjp(lambda z: kernel(z, y), x)
    torch.testing.assert_close((forward * u).sum(), (pull(u)[0] * v).sum(), rtol=1e-8, atol=1e-10)


@few
@given(st.sampled_from([RBF, Laplacian, Matern, RationalQuadratic, Periodic]), st.integers(1, 5), seeds)
def test_one_scale_for_each_feature_is_a_scaling_of_the_rows(make, d, seed):
    scales = torch.rand(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    x, y = draw(seed, d, d), draw(seed + 1, d, d)  # n = d: a wrong axis would broadcast
    by = {RBF: scales.sqrt(), Laplacian: scales}.get(make, 1 / scales)
    if make is Periodic:
        parts = [Periodic(3.0, float(s))(x[:, [k]], y[:, [k]]) for k, s in enumerate(scales)]
        torch.testing.assert_close(Periodic(3.0, scales)(x, y), torch.stack(parts).prod(0))
        return
    arguments = {RBF: (), Laplacian: (), Matern: (1.5,), RationalQuadratic: (0.7,)}[make]
    torch.testing.assert_close(make(*arguments, scales)(x, y), make(*arguments, 1.0)(x * by, y * by))
    torch.testing.assert_close(make(*arguments, scales)(x), make(*arguments, scales)(x).mT)


@pytest.mark.parametrize(
    "kernel",
    [RBF(0.3), Laplacian(0.3), Matern(0.5), Periodic(), Cosine()],
    ids=["rbf", "laplacian", "matern", "periodic", "cosine"],
)
def test_tiles_equal_the_whole(kernel):
    x, y = draw(0, 400, 6), draw(1, 380, 6)  # more pairs than one tile has
    x[3] = x[4]
    x[:, 4:] = x[:, 4:].sign()  # columns of two values
    y[:, 4:] = y[:, 4:].sign()
    whole = torch.cat([kernel(part, x) for part in x.split(40)])
    across = torch.cat([kernel(part, y) for part in x.split(40)])
    torch.testing.assert_close(kernel(x), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel(x, y), across, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel(x), kernel(x).mT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel(x.clone().requires_grad_()), whole, rtol=1e-12, atol=1e-12)
