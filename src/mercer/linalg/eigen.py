"""The largest eigenvalues and their vectors, by products only."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks

__all__ = ["TopEigh", "top_eigh"]

_DENSE = 256  # rows up to which the dense solver is quicker than any iteration
_BLOCK = 8  # vectors a product: finds multiplicities up to 8 and keeps the product a matrix product


class TopEigh(NamedTuple):
    r"""Eigenvalues ``(k,)``, descending; vectors ``(n, k)``; residuals :math:`\|A v - \lambda v\|` ``(k,)``."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor


def top_eigh(
    operator: Tensor | Callable[[Tensor], Tensor],
    k: int,
    *,
    n: int | None = None,
    start: Tensor | None = None,
    tolerance: float = 1e-10,
    max_products: int | None = None,
    generator: torch.Generator | None = None,
) -> TopEigh:
    r"""The k largest eigenpairs of a symmetric A by block Lanczos with Rayleigh-Ritz.

    The Krylov basis is kept whole and orthonormal; the run ends when every wanted pair has a residual below
    ``tolerance`` times the largest eigenvalue. A small matrix is decomposed densely.

    Args:
        operator: A as a matrix, or a callable ``(n, b) -> (n, b)``.
        k: Pairs wanted, 1..n.
        n: Rows of A; needed when the operator is a callable and no start is given.
        start: ``(n, b)`` first block; None draws one. Its dtype and device are the run's.
        tolerance: Residual asked for, relative to the largest eigenvalue.
        max_products: Width of the basis at most; None means n, where the result is exact.
        generator: Randomness of the first block; None is a fixed seed, so that equal calls agree.
    """
    apply, start, n = _prepare(operator, n, start, generator)
    checks.integer("top_eigh", "k", k, 1, n, of="the rows of the operator")
    if n <= max(_DENSE, 2 * k):
        dense = (
            operator if isinstance(operator, Tensor) else apply(torch.eye(n, dtype=start.dtype, device=start.device))
        )
        values, vectors = torch.linalg.eigh((dense + dense.mT) / 2)
        values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
        return TopEigh(values, vectors, (dense @ vectors - vectors * values).norm(dim=0))
    return _block_lanczos(apply, start, k, tolerance, min(n, max_products or n))


def _block_lanczos(apply: Callable[[Tensor], Tensor], start: Tensor, k: int, tolerance: float, limit: int) -> TopEigh:
    n, b = start.shape
    basis = torch.linalg.qr(start)[0]  # (n, width)
    projected = start.new_zeros(0, 0)  # Q^T A Q
    tail = start.new_zeros(b, b)
    while True:
        block = basis[:, -b:]
        product = apply(block)
        coupling = basis.mT @ product  # (width, b)
        projected = _grow(projected, coupling)
        values, rotation = torch.linalg.eigh(projected)
        fresh = product - basis @ coupling
        fresh = fresh - basis @ (basis.mT @ fresh)
        q, tail = torch.linalg.qr(fresh)
        width = basis.shape[1]
        wanted = min(k, width)
        top = rotation[:, -wanted:]
        residuals = (tail @ top[-b:]).norm(dim=0)
        converged = width >= k and float(residuals.max()) <= tolerance * float(values[-1].abs())
        if converged or width + b > limit:
            break
        q = _fill(q, tail, basis, float(values[-1].abs()))
        basis = torch.cat((basis, q), 1)
    if not converged and width + b <= n:
        checks.warn("top_eigh", f"residual {float(residuals.max()):.1e} after {width} products.")
    vectors = basis @ top
    return TopEigh(values[-wanted:].flip(0), vectors.flip(1), residuals.flip(0))


def _grow(projected: Tensor, coupling: Tensor) -> Tensor:
    width, b = coupling.shape
    grown = projected.new_zeros(width, width)
    grown[: width - b, : width - b] = projected
    grown[:, width - b :] = coupling
    grown[width - b :] = coupling.mT
    corner = coupling[width - b :]
    grown[width - b :, width - b :] = (corner + corner.mT) / 2
    return grown


def _fill(q: Tensor, tail: Tensor, basis: Tensor, scale: float) -> Tensor:
    """Orthogonalise once more; directions that were rounding give way to new ones, or the run would stall."""
    lost = tail.diagonal().abs() <= 1e3 * torch.finfo(q.dtype).eps * scale
    if bool(lost.any()):
        fixed = torch.Generator(device=q.device).manual_seed(basis.shape[1])
        q = torch.where(lost, torch.randn(q.shape, dtype=q.dtype, device=q.device, generator=fixed), q)
    for _ in range(2):
        q = torch.linalg.qr(q - basis @ (basis.mT @ q))[0]
    return q


def _prepare(
    operator: Tensor | Callable[[Tensor], Tensor],
    n: int | None,
    start: Tensor | None,
    generator: torch.Generator | None,
) -> tuple[Callable[[Tensor], Tensor], Tensor, int]:
    if isinstance(operator, Tensor):
        if operator.ndim != 2 or operator.shape[0] != operator.shape[1]:
            raise ValueError(checks.sentence("top_eigh", "the matrix must be square", tuple(operator.shape)))
        n = len(operator)
    if start is not None:
        n = len(start)
    if n is None:
        raise ValueError(checks.sentence("top_eigh", "n must be given with a callable and no start", "None"))
    if start is None:
        like = operator if isinstance(operator, Tensor) else torch.empty(0, dtype=torch.float64)
        if generator is None:
            generator = torch.Generator(device=like.device).manual_seed(0)
        start = torch.randn(n, min(_BLOCK, n), dtype=like.dtype, device=like.device, generator=generator)
    apply: Callable[[Tensor], Tensor] = operator.__matmul__ if isinstance(operator, Tensor) else operator
    return apply, start if start.ndim == 2 else start[:, None], n
