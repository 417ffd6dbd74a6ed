"""Cholesky factorisation that says how much it had to add to the diagonal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks


class Cholesky(NamedTuple):
    """A lower factor L and the jitter it holds: L L^T = A + jitter I."""

    factor: Tensor
    jitter: float


def cholesky(matrix: Tensor, *, where: str = "cholesky") -> Cholesky:
    r"""Factor :math:`A + \varepsilon I = L L^T` with the least :math:`\varepsilon` of a ladder, 0 first.

    The ladder starts at ten units in the last place of the mean diagonal and grows tenfold up to eps^0.4 of
    it (6e-7 in float64, 2e-3 in float32): more than that is no longer rounding. One
    :class:`~mercer.NumericalWarning` states the jitter that was used, however many rungs were tried.

    Args:
        matrix: A, symmetric positive semi-definite, ``(..., n, n)``; only its lower triangle is read.
        where: The caller's name, for messages.

    Returns:
        The factor and the jitter (0.0 where none was needed).

    Raises:
        ValueError: A is not finite, or indefinite beyond repair (the least eigenvalue is given).
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(checks.sentence(where, "the matrix must be square", tuple(matrix.shape)))
    factor, info = torch.linalg.cholesky_ex(matrix)
    if not bool(info.any()):
        return Cholesky(factor, 0.0)
    checks.finite(where, "the matrix", matrix.detach())
    scale = float(matrix.detach().diagonal(dim1=-2, dim2=-1).abs().mean()) or 1.0
    eps = torch.finfo(matrix.dtype).eps
    relative = 10 * eps
    while relative <= eps**0.4:
        jitter = relative * scale
        factor, info = torch.linalg.cholesky_ex(shifted(matrix, jitter))
        if not bool(info.any()):
            checks.warn(where, f"the matrix is singular to rounding; added jitter {jitter:.1e} to its diagonal.")
            return Cholesky(factor, jitter)
        relative *= 10
    least = float(torch.linalg.eigvalsh(matrix.detach()).min())
    raise ValueError(
        checks.sentence(
            where,
            "the matrix must be positive semi-definite",
            f"least eigenvalue {least:.3e} at mean diagonal {scale:.3e}",
            "Use a positive semi-definite kernel, or add a ridge.",
        )
    )


def shifted(matrix: Tensor, shift: float | Tensor) -> Tensor:  # (..., n, n) -> (..., n, n)
    r""":math:`A + \varepsilon I`."""
    return matrix + shift * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
