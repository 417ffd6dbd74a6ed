"""Cholesky factors that say how much was added to the diagonal, and inverse roots of Gram matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.linalg import lapack
from torch import Tensor

from .. import checks
from .blocks import slices

_COPIED_ROWS = 512  # rows of a triangle that are mirrored at a time


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

    # Climb the ladder: ten times the jitter on each rung.
    checks.finite(where, "the matrix", matrix.detach())
    scale = float(matrix.detach().diagonal(dim1=-2, dim2=-1).abs().mean()) or 1.0
    eps = torch.finfo(matrix.dtype).eps
    relative = 10 * eps
    while relative <= eps**0.4:
        jitter = relative * scale
        factor, info = torch.linalg.cholesky_ex(shift_diagonal(matrix, jitter))
        if not bool(info.any()):
            checks.warn(where, f"the matrix is singular to rounding; added jitter {jitter:.1e} to its diagonal.")
            return Cholesky(factor, jitter)
        relative *= 10
    # More than rounding: say how indefinite the matrix is.
    lowest = float(torch.linalg.eigvalsh(matrix.detach()).min())
    raise ValueError(
        checks.sentence(
            where,
            "the matrix must be positive semi-definite",
            f"least eigenvalue {lowest:.3e} at mean diagonal {scale:.3e}",
            "Use a positive semi-definite kernel, or add a ridge.",
        )
    )


def cholesky_in_place(matrix: Tensor, *, where: str = "cholesky") -> Cholesky:
    r"""Factor :math:`A + \varepsilon I = L L^T` in the memory of A, which is lost.

    Only the lower triangle of the factor counts: above its diagonal stands what A had there. A matrix that is singular
    to rounding, one in another dtype than float64 or on another device goes through :func:`cholesky`, in new memory.

    Args:
        matrix: A, symmetric positive semi-definite, ``(n, n)``, overwritten.
        where: The caller's name, for messages.
    """
    if matrix.device.type != "cpu" or matrix.dtype != torch.float64 or not matrix.is_contiguous() or not len(matrix):
        return cholesky(matrix, where=where)
    diagonal = matrix.diagonal().clone()
    # Fortran reads the rows as columns: its upper factor is our lower one, in the same place.
    _, info = lapack.dpotrf(matrix.numpy().T, lower=0, overwrite_a=1, clean=0)
    if info == 0:
        return Cholesky(matrix, 0.0)
    # The upper triangle is untouched: with it and the diagonal the matrix is whole again.
    for part in slices(len(matrix), _COPIED_ROWS):
        square = matrix[part, part].triu(1)
        matrix[part, part] = square + square.mT
        matrix[part.stop :, part] = matrix[part, part.stop :].mT
    matrix.diagonal().copy_(diagonal)
    return cholesky(matrix, where=where)


def solve_factored(factor: Tensor, right: Tensor) -> Tensor:  # (n, n), (n, c) -> (n, c)
    r""":math:`(L L^T)^{-1} B`; on the CPU without the copy of the factor that torch makes."""
    if factor.device.type != "cpu" or factor.dtype != torch.float64 or not factor.is_contiguous() or not right.numel():
        return torch.cholesky_solve(right, factor)
    return torch.from_numpy(lapack.dpotrs(factor.numpy().T, right.numpy(), lower=0)[0]).contiguous()


def inverse_diagonal(factor: Tensor) -> Tensor:  # (n, n) -> (n,)
    r"""The diagonal of :math:`(L L^T)^{-1}`: squared lengths of the columns of :math:`L^{-1}`, a third of its cost."""
    if factor.device.type != "cpu" or factor.dtype != torch.float64 or factor.requires_grad or not len(factor):
        return torch.cholesky_inverse(factor).diagonal()
    # Fortran reads the rows as columns: our lower factor is its upper one.
    inverse = torch.tril(factor)
    lapack.dtrtri(inverse.numpy().T, lower=0, overwrite_c=1)
    lengths: Tensor = torch.linalg.vector_norm(inverse, dim=0)
    return lengths.square()


def shift_diagonal(matrix: Tensor, shift: float | Tensor) -> Tensor:  # (..., n, n) -> (..., n, n)
    r""":math:`A + \varepsilon I`."""
    return matrix + shift * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def inverse_root(gram: Tensor, cut: float, *, where: str) -> Tensor:  # (m, m) -> (m, r)
    r"""W with :math:`W W^\top = K^{-1}` on the eigenvectors whose eigenvalue is above ``cut`` of the largest.

    By Cholesky, K = L L^T, where that is all of them, which the bounds :math:`\lambda_{\min} \ge 1 / (\|L^{-1}\|_1
    \|L^{-1}\|_\infty)` and :math:`\lambda_{\max} \le \|K\|_\infty` prove; else by eigenvectors.
    """
    # By Cholesky, where the bounds prove that no eigenvalue is below the cut.
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not bool(failed):
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
        sizes = inverse.abs()
        if float(sizes.sum(0).max() * sizes.sum(1).max() * gram.abs().sum(1).max()) * cut < 1:
            return inverse.mT

    # By eigenvectors, without those below the cut.
    values, vectors = torch.linalg.eigh(gram)
    floor = cut * float(values.abs().max())
    if float(values[0]) < -floor * 10:
        size = f"least eigenvalue {float(values[0]):.2e} of {float(values[-1]):.2e}"
        checks.warn(where, f"the kernel is indefinite on the landmarks, {size}; the negative part is dropped.")
    above = values > floor
    root: Tensor = vectors[:, above] / values[above].sqrt()
    return root
