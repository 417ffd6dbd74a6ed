"""Factorisations, solvers and ridge regression against dense float64 oracles."""

import warnings

import pytest
import torch

from mercer import NumericalWarning
from mercer.kernels import NTK, RBF
from mercer.linalg.blocks import block_rows, blockwise, blockwise_matmul, slices
from mercer.linalg.cholesky import cholesky
from mercer.linalg.eigen import lanczos_eigh, randomized_range, top_eigh
from mercer.linalg.operators import SymmetricOperator
from mercer.linalg.ridge import ridge_loo
from mercer.linalg.torch_internals import add_in_place, norms, scale_in_place


def _spd(n, generator, *, decay=0.0):
    q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))[0]
    values = torch.arange(1, n + 1, dtype=torch.float64) ** -decay
    return q * values @ q.mT


def test_cholesky_adds_nothing_where_nothing_is_needed(generator):
    a = _spd(20, generator)
    factor, jitter = cholesky(a)
    assert jitter == 0.0
    torch.testing.assert_close(factor @ factor.mT, a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cholesky_reports_its_jitter_once(dtype, generator):
    low_rank = torch.randn(30, 3, dtype=dtype, generator=generator)
    a = low_rank @ low_rank.mT
    with pytest.warns(NumericalWarning, match=r"fit: .*added jitter") as caught:
        factor, jitter = cholesky(a, where="fit")
    assert len(caught) == 1
    assert f"{jitter:.1e}" in str(caught[0].message)
    assert 0 < jitter < 1e-2 * float(a.diagonal().mean())
    torch.testing.assert_close(factor @ factor.mT, a + jitter * torch.eye(30, dtype=dtype))


def test_cholesky_works_in_batches_and_leaves_its_input(generator):
    a = torch.stack([_spd(5, generator), torch.ones(5, 5, dtype=torch.float64)])
    before = a.clone()
    with pytest.warns(NumericalWarning):
        factor, jitter = cholesky(a)
    assert torch.equal(a, before)
    torch.testing.assert_close(factor @ factor.mT, a + jitter * torch.eye(5, dtype=torch.float64))


def test_cholesky_refuses_an_indefinite_matrix_with_its_least_eigenvalue():
    with pytest.raises(ValueError, match=r"must be positive semi-definite; got least eigenvalue -1\.000e\+00"):
        cholesky(torch.diag(torch.tensor([1.0, -1.0])))
    with pytest.raises(ValueError, match="the matrix must be finite; got NaN, first bad row 1"):
        cholesky(torch.diag(torch.tensor([1.0, float("nan")])))
    with pytest.raises(ValueError, match=r"must be square; got \(2, 3\)"):
        cholesky(torch.zeros(2, 3))


def test_operator_of_a_matrix_and_of_a_function(generator):
    x = torch.randn(70, 3, dtype=torch.float64, generator=generator)
    v = torch.randn(70, 2, dtype=torch.float64, generator=generator)
    gram = RBF(0.3)(x)
    for a in (
        SymmetricOperator.from_matrix(gram),
        SymmetricOperator(lambda u: gram @ u, 70),
        SymmetricOperator(lambda u: gram @ u, 70, trace=lambda: float(gram.trace())),
    ):
        torch.testing.assert_close(a @ v, gram @ v)
        torch.testing.assert_close(a.matmul(v[:, 0]), gram @ v[:, 0])
        torch.testing.assert_close(a.dense(), gram)
        assert a.trace == pytest.approx(float(gram.trace()), rel=1e-12)
        assert (a.n, a.dtype, a.device.type) == (70, torch.float64, "cpu")
        with pytest.raises(ValueError, match=r"SymmetricOperator: v must have shape \(70,\) or \(70, b\); got \(3,\)"):
            a @ v[:3, 0]
    with pytest.raises(ValueError, match=r"the matrix must be square; got \(70, 3\)"):
        SymmetricOperator.from_matrix(x)


def test_randomized_range_spans_what_a_low_rank_matrix_spans(generator):
    root = torch.randn(60, 4, dtype=torch.float64, generator=generator)
    a = root @ root.mT
    q = randomized_range(SymmetricOperator.from_matrix(a), torch.randn(60, 4, dtype=torch.float64, generator=generator))
    torch.testing.assert_close(q.mT @ q, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(q @ (q.mT @ a), a, rtol=0, atol=1e-9 * float(a.trace()))


@pytest.mark.parametrize("decay", [0.3, 1.5])
@pytest.mark.parametrize("given", ["matrix", "operator"])
def test_top_eigh_equals_the_dense_solver(given, decay, generator):
    n, k = 400, 12
    a = _spd(n, generator, decay=decay)
    got = top_eigh(a if given == "matrix" else SymmetricOperator(a.__matmul__, n), k)
    exact = torch.linalg.eigvalsh(a).flip(0)[:k]
    torch.testing.assert_close(got.values, exact, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        (a @ got.vectors - got.vectors * got.values).norm(dim=0), got.residuals, atol=1e-12, rtol=1e-3
    )
    torch.testing.assert_close(got.vectors.mT @ got.vectors, torch.eye(k, dtype=a.dtype))


def test_top_eigh_finds_multiple_eigenvalues_and_low_rank(generator):
    basis = torch.linalg.qr(torch.randn(500, 6, dtype=torch.float64, generator=generator))[0]
    a = basis * torch.tensor([3.0, 3.0, 3.0, 2.0, 2.0, 1.0], dtype=torch.float64) @ basis.mT
    got = top_eigh(a, 9)
    expected = torch.tensor([3.0, 3.0, 3.0, 2.0, 2.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(got.values, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lanczos_eigh_equals_the_dense_solver(dtype, generator):
    n, k = 400, 9
    q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))[0]
    exact = 0.8 ** torch.arange(n, dtype=torch.float64)
    a = ((q * exact) @ q.mT).to(dtype)
    got = lanczos_eigh(a, k, tolerance=0.0, relative=1e-3)
    assert got is not None
    torch.testing.assert_close(got.values, exact[:k], rtol=1e-4, atol=0)
    assert ((q[:, :k] * got.vectors).sum(0).abs() > 0.999).all()
    true = (a.double() @ got.vectors - got.vectors * got.values).norm(dim=0)
    torch.testing.assert_close(got.residuals, true, rtol=0.1, atol=1e-6)


def test_lanczos_eigh_misses_no_pair_without_saying_so(generator):
    """Equal eigenvalues, of which one start sees one, are handed back or found; a rank below k is handed back."""
    q = torch.linalg.qr(torch.randn(300, 300, dtype=torch.float64, generator=generator))[0]
    for copies in (2, 3, 5):
        values = 0.8 ** torch.arange(300, dtype=torch.float64)
        values[2 : 2 + copies] = values[2]
        got = lanczos_eigh((q * values) @ q.mT, 8, tolerance=1e-13, relative=1e-3)
        if got is not None:
            torch.testing.assert_close(got.values, values[:8], rtol=1e-2, atol=0)
    values[5:] = 0
    assert lanczos_eigh((q * values) @ q.mT, 8, tolerance=1e-13, relative=1e-3) is None


def test_lanczos_eigh_finds_a_simple_pair_that_its_start_passed_over():
    """The network kernel of eight clusters: at 36 products 16 pairs have converged, and the true 16th is not there."""
    generator = torch.Generator().manual_seed(0)
    centers = 1.5 * torch.randn(8, 10, generator=generator)
    x = centers[torch.randint(8, (2000,), generator=generator)] + torch.randn(2000, 10, generator=generator)
    gram = NTK(3)(x[:1000])
    got = lanczos_eigh(gram, 16, tolerance=1e-6, relative=1e-3)
    exact = torch.linalg.eigvalsh(gram.double()).flip(0)[:16]
    assert got is None or torch.allclose(got.values, exact, rtol=1e-2, atol=0)


def test_top_eigh_is_deterministic_and_checks_k(generator):
    a = _spd(300, generator, decay=1.0)
    assert torch.equal(top_eigh(a, 5).vectors, top_eigh(a, 5).vectors)
    with pytest.raises(ValueError, match=r"top_eigh: k must be in 1\.\.300, the rows of the operator; got 301"):
        top_eigh(a, 301)


@pytest.mark.parametrize("m", [4, 50])
def test_ridge_equals_leaving_each_row_out(m, generator):
    n, grid = 20, [1e-2, 1.0, 30.0]
    x = torch.randn(n, m, dtype=torch.float64, generator=generator) + 2
    y = torch.randn(n, 2, dtype=torch.float64, generator=generator) + x[:, :1]
    got = ridge_loo(x, y, grid)
    brute = torch.tensor([_leave_each_out(x, y, penalty).square().mean() for penalty in grid])
    torch.testing.assert_close(got.errors, brute.double(), rtol=1e-5, atol=0)
    assert got.penalty == grid[int(brute.argmin())]
    residual = _leave_each_out(x, y, got.penalty)
    torch.testing.assert_close(got.held_out, y - residual)
    weights, shift = _ridge(x, y, got.penalty)
    torch.testing.assert_close(got.coefficients, weights)
    torch.testing.assert_close(got.intercept, shift)


def test_ridge_checks_its_grid(generator):
    x, y = torch.randn(4, 2, generator=generator), torch.zeros(4)
    with pytest.raises(ValueError, match=r"ridge_loo: penalties must be positive; got -1\.0"):
        ridge_loo(x, y, [-1.0])
    with pytest.raises(ValueError, match="penalties must hold at least one number"):
        ridge_loo(x, y, [])
    with pytest.raises(ValueError, match="x and y must have as many rows; got 4 and 3"):
        ridge_loo(x, y[:3], [1.0])


@pytest.mark.parametrize("block", [None, 1, 7, 100])
def test_blockwise_products_equal_dense_ones(block, generator):
    x = torch.randn(23, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(11, 3, dtype=torch.float64, generator=generator)
    v = torch.randn(11, 2, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(blockwise_matmul(lambda a, b: a @ b.mT, x, y, v, block=block), x @ y.mT @ v)
    assert blockwise_matmul(lambda a, b: a @ b.mT, x[:0], y, v, block=block).shape == (0, 2)


def test_blocks_follow_from_the_budget(generator):
    assert block_rows(1000, budget=10_500) == 10
    assert block_rows(10**9, budget=10) == 1
    assert [(s.start, s.stop) for s in slices(5, 2)] == [(0, 2), (2, 4), (4, 5)]
    x = torch.randn(9, 2, generator=generator)
    torch.testing.assert_close(blockwise(lambda rows: 2 * rows, x, block=4), 2 * x)
    seen = []
    blockwise_matmul(lambda a, b: seen.append(len(a)) or a @ b.mT, x, x, x, budget=9 * 4 * 3 * 2)
    assert seen == [2, 2, 2, 2, 1]


def _ridge(x, y, penalty):
    design = torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), 1)
    ridge = penalty * torch.eye(design.shape[1], dtype=x.dtype)
    ridge[-1, -1] = 0
    weights = torch.linalg.solve(design.mT @ design + ridge, design.mT @ y)
    return weights[:-1], weights[-1]


def _leave_each_out(x, y, penalty):
    residuals = []
    for i in range(len(x)):
        rest = [j for j in range(len(x)) if j != i]
        weights, shift = _ridge(x[rest], y[rest], penalty)
        residuals.append(y[i] - x[i] @ weights - shift)
    return torch.stack(residuals)


def test_quiet_where_nothing_is_repaired(generator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        top_eigh(_spd(300, generator, decay=2.0), 3)


def test_fused_loops_equal_plain_ones():
    one, two = [torch.arange(3.0), torch.ones(2, 2)], [torch.ones(3), torch.eye(2)]
    torch.testing.assert_close(norms(one), [t.norm() for t in one])
    wanted = [2 * t + 0.5 * u for t, u in zip(one, two, strict=True)]
    scale_in_place(one, 2.0)
    add_in_place(one, two, 0.5)
    torch.testing.assert_close(one, wanted)
