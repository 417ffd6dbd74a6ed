"""Lanczos and its quadrature rules against dense float64 oracles."""

import pytest
import torch

from mercer.linalg.lanczos import Lanczos, gauss, radau
from mercer.linalg.operators import SymmetricOperator


def lanczos(operator, start, steps):
    return Lanczos(operator, start).extend(steps)


@pytest.fixture
def matrix(generator):
    root = torch.randn(80, 80, dtype=torch.float64, generator=generator)
    return root @ root.mT / 80 + 0.05 * torch.eye(80, dtype=torch.float64)


@pytest.fixture
def start(generator):
    return torch.randn(80, 3, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("given", ["matrix", "operator"])
def test_recurrence_holds_and_the_basis_is_orthonormal(given, matrix, start):
    forms = {"matrix": matrix, "operator": SymmetricOperator.from_matrix(matrix)}
    run = lanczos(forms[given], start, 30)
    assert run.alphas.shape == run.betas.shape == (3, 30)
    for column in range(3):
        q = run.basis[column]  # (30, n)
        torch.testing.assert_close(q @ q.mT, torch.eye(30, dtype=q.dtype), rtol=0, atol=1e-12)
        alphas, betas = run.tridiagonal(column)
        tridiagonal = torch.diag(alphas) + torch.diag(betas[:-1], 1) + torch.diag(betas[:-1], -1)
        torch.testing.assert_close(q @ matrix @ q.mT, tridiagonal, rtol=0, atol=1e-11)
        torch.testing.assert_close(q[0], start[:, column] / start[:, column].norm())


def test_extending_equals_running_at_once(matrix, start):
    torch.testing.assert_close(Lanczos(matrix, start).extend(4).extend(6).alphas, lanczos(matrix, start, 10).alphas)


def test_columns_run_as_if_alone(matrix, start):
    together, alone = lanczos(matrix, start, 12), lanczos(matrix, start[:, 1], 12)
    torch.testing.assert_close(together.betas[1], alone.betas[0])


def test_an_exhausted_column_stops_and_is_exact(matrix, start):
    values, vectors = torch.linalg.eigh(matrix)
    block = torch.stack((vectors[:, 3] + 2 * vectors[:, 40], start[:, 0], torch.zeros_like(start[:, 0])), 1)
    run = lanczos(matrix, block, 20)
    assert run.lengths.tolist() == [2, 80, 0]
    nodes, weights = gauss(*run.tridiagonal(0))
    torch.testing.assert_close(nodes, values[[3, 40]])
    torch.testing.assert_close(weights, torch.tensor([0.2, 0.8], dtype=torch.float64))
    assert not run.is_exhausted
    assert run.extend(100).is_exhausted
    assert run.steps == 80


def test_gauss_is_exact_for_polynomials_below_twice_the_steps(matrix, start):
    q = start[:, 0] / start[:, 0].norm()
    nodes, weights = gauss(*lanczos(matrix, q, 5).tridiagonal(0))
    for degree in range(10):
        exact = q @ torch.linalg.matrix_power(matrix, degree) @ q
        torch.testing.assert_close((weights * nodes**degree).sum(), exact, rtol=1e-11, atol=0)


def test_gauss_lies_below_and_radau_above_the_inverse(matrix, start):
    q = start[:, 0] / start[:, 0].norm()
    exact, least = float(q @ torch.linalg.solve(matrix, q)), float(torch.linalg.eigvalsh(matrix)[0])
    gaps = []
    for steps in (2, 5, 10, 20, 30):
        run = lanczos(matrix, q, steps).tridiagonal(0)
        nodes, weights = gauss(*run)
        upper_nodes, upper_weights = radau(*run, 0.5 * least)
        low, high = float((weights / nodes).sum()), float((upper_weights / upper_nodes).sum())
        torch.testing.assert_close(upper_nodes[0], torch.tensor(0.5 * least, dtype=torch.float64))
        assert low <= exact * (1 + 1e-13)
        assert high >= exact * (1 - 1e-13)
        gaps.append(high - low)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3 * exact
