"""Solver objects, the solutions they return, and the plan that both EigenPros share."""

import pytest
import torch

from mercer.kernels import RBF, Matern
from mercer.linalg.eigen import longest_step, shrink_directions
from mercer.machines import KernelRidge
from mercer.machines.eigenpro import EigenPro
from mercer.machines.exact import Exact
from mercer.machines.landmarks import Landmarks, add_rows
from mercer.machines.solution import Solution
from tests.machines import reference_machines as literal


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y, AT = draw(40, 3), draw(40, 2, seed=1), draw(9, 3, seed=2)


@pytest.mark.parametrize(
    "solver", [Exact(3.0), Landmarks(40, 3.0), EigenPro(3.0)], ids=["exact", "landmarks", "eigenpro"]
)
def test_every_solver_returns_the_dense_solution(solver):
    """With every row a landmark, and a residual that ends below the root of eps, the three are one machine."""
    solution = solver.solve(Matern(0.5, 2.0), X, Y)
    assert isinstance(solution, Solution) and solution.penalty == 3.0 and solution.residual < 1.5e-8
    expected = literal.ridge(Matern(0.5, 2.0), X, Y, 3.0, AT)
    torch.testing.assert_close(solution(AT), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(solution.bare()(AT), solution(AT))


def test_left_out_predictions_come_with_the_solution():
    for solver in (Exact(), Landmarks(40, generator=torch.Generator().manual_seed(0))):
        solution = solver.solve(RBF(0.4), X, Y)
        expected = literal.leave_one_out(RBF(0.4), X, Y, solution.penalty)
        torch.testing.assert_close(solution.left_out, expected, rtol=1e-6, atol=1e-6)
    lazy = Exact(0.5).solve(RBF(0.4), X, Y)
    assert lazy.left_out is None
    torch.testing.assert_close(lazy.predict_left_out(), literal.leave_one_out(RBF(0.4), X, Y, 0.5))


def test_a_solution_is_differentiable_in_rows_and_anchors():
    solution = Exact(0.5).solve(RBF(0.4), X, Y)
    at = AT.clone().requires_grad_()
    assert torch.autograd.gradcheck(solution, (at,))


def test_rows_are_added_to_an_exact_solution_and_not_to_one_that_stopped_early():
    grown = add_rows(Exact(0.5).solve(RBF(0.4), X[:30], Y[:30]), X[30:], Y[30:])
    assert len(grown.anchors) == 30 and grown.left_out is None
    machine = KernelRidge(RBF(0.4), solver="eigenpro", random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match="partial_fit needs landmarks; got 40 rows by eigenpro"):
        machine.partial_fit(X[:5], Y[:5])


def test_levelled_directions_leave_the_rows_that_a_dense_preconditioner_leaves():
    """beta is the largest k(x, x) of P^1/2 k P^1/2, P = I - sum_i (1 - tail / lambda_i) e_i e_i^T."""
    g = draw(30, 6)
    values, vectors = torch.linalg.eigh(g.mT @ g / 30)
    tail = values[3:4]
    shrink, beta = shrink_directions(values, (g @ vectors).square(), g.square().sum(1), tail)
    dense = torch.eye(6, dtype=torch.float64) - vectors @ torch.diag((1 - tail / values).clamp_min(0)) @ vectors.mT
    torch.testing.assert_close(beta, (g @ dense * g).sum(1).max()[None])
    torch.testing.assert_close(shrink[:, 0], (1 - tail / values).clamp_min(0))
    assert longest_step(4.0, 1.0, 1) == 0.25 and longest_step(4.0, 1.0, 5) == 5 / 8
