"""Conjugate gradients for several right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks

__all__ = ["ConjugateGradient", "conjugate_gradient"]


class ConjugateGradient(NamedTuple):
    """The solution, the relative residual of every column, and the products spent."""

    solution: Tensor
    residual: Tensor
    iterations: int


def conjugate_gradient(
    operator: Tensor | Callable[[Tensor], Tensor],
    rhs: Tensor,
    *,
    preconditioner: Callable[[Tensor], Tensor] | None = None,
    tolerance: float = 1e-8,
    max_iterations: int | None = None,
) -> ConjugateGradient:
    r"""Solve :math:`A X = B` for a symmetric positive definite A known by its products only.

    All columns share each product; a column that has converged stands still. A run that ends above the
    tolerance is returned all the same, with one :class:`~mercer.NumericalWarning` that states the residual.

    Args:
        operator: A as a matrix, or a callable ``(n, b) -> (n, b)``.
        rhs: B, ``(n,)`` or ``(n, b)``.
        preconditioner: An approximation of the inverse of A, as a callable.
        tolerance: Relative residual :math:`\|b - A x\| / \|b\|` asked for.
        max_iterations: Products at most; None means ``10 n``.
    """
    apply = _product(operator)
    b = rhs if rhs.ndim == 2 else rhs[:, None]
    norms = b.norm(dim=0)
    size = torch.where(norms > 0, norms, torch.ones_like(norms))
    limit = 10 * len(b) if max_iterations is None else max_iterations
    x, r = torch.zeros_like(b), b.clone()
    z = r if preconditioner is None else preconditioner(r)
    p, rz, done = z.clone(), (r * z).sum(0), 0
    while done < limit and bool((r.norm(dim=0) > tolerance * size).any()):
        active = r.norm(dim=0) > tolerance * size
        ap = apply(p)
        curvature = (p * ap).sum(0)
        if bool((curvature[active] <= 0).any()):
            raise ValueError(
                checks.sentence(
                    "conjugate_gradient",
                    "the operator must be positive definite",
                    f"curvature {float(curvature[active].min()):.3e}",
                    "Add a ridge.",
                )
            )
        step = torch.where(active, rz / curvature.where(active, torch.ones_like(curvature)), torch.zeros_like(rz))
        x, r = x + step * p, r - step * ap
        z = r if preconditioner is None else preconditioner(r)
        fresh = (r * z).sum(0)
        p = z + torch.where(active, fresh / rz.where(active, torch.ones_like(rz)), torch.zeros_like(rz)) * p
        rz, done = fresh, done + 1
    residual = r.norm(dim=0) / size
    if bool((residual > tolerance).any()):
        checks.warn(
            "conjugate_gradient",
            f"relative residual {float(residual.max()):.1e} after {done} products, above {tolerance:.1e}.",
        )
    return ConjugateGradient(x if rhs.ndim == 2 else x[:, 0], residual, done)


def _product(operator: Tensor | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return operator.__matmul__ if isinstance(operator, Tensor) else operator
