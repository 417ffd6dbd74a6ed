"""The damped inverse of a layer's second moment, on the side of its features or of its samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import distributed
from ..linalg import cholesky

__all__ = ["Dual", "damped_inverse", "dual", "moment", "ridge"]


@dataclass(frozen=True)
class Dual:
    r"""Products with the damped inverse of the moment of n rows, by the push-through identity.

    :math:`(G^\top G / n + \lambda I)^{-1} = \frac{1}{\lambda} (I - G^\top (G G^\top + n \lambda I)^{-1} G)`.
    """

    rows: Tensor  # (n, d), float64
    core: Tensor  # (n, n), float64
    ridge: Tensor  # (), float64

    def __call__(self, gradient: Tensor) -> Tensor:  # (c, d) -> (c, d)
        """Gradient times the inverse; in float64, for the difference cancels."""
        g = gradient.double()
        return ((g - (g @ self.rows.mT) @ self.core @ self.rows) / self.ridge).to(gradient.dtype)


def moment(rows: Tensor) -> Tensor:  # (n, d) -> (d, d)
    r"""Second moment :math:`G^\top G / n` over the rows of all ranks, in float64."""
    g = rows.double()
    total = distributed.sum_over_ranks(g.mT @ g)
    n = distributed.sum_over_ranks(torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device))
    return total / n


def damped_inverse(a: Tensor, damping: float, *, where: str) -> Tensor:  # (d, d) -> (d, d)
    r""":math:`(A + \lambda I)^{-1}` with :math:`\lambda = \text{damping} \cdot \operatorname{tr} A / d`.

    Args:
        a: Symmetric positive semi-definite, float64; a zero matrix counts as trace 1.
        damping: :math:`\lambda` in units of the mean eigenvalue.
        where: The caller's name, for messages.
    """
    shifted = a + ridge(a.diagonal().mean(), damping) * torch.eye(len(a), dtype=a.dtype, device=a.device)
    return torch.cholesky_inverse(cholesky(shifted, where=where).factor)


def ridge(mean: Tensor, damping: float) -> Tensor:
    r""":math:`\lambda`: damping times the mean eigenvalue; of a layer that has only seen zeros, damping itself."""
    return torch.where(mean > 0, mean, torch.ones_like(mean)) * damping


def dual(rows: Tensor, damping: float, *, where: str) -> Dual:
    """The inverse of the moment of these rows, all ranks' together, without the moment."""
    g = distributed.gather_rows(rows.double())
    n, d = g.shape
    lam = ridge(g.square().sum() / (n * d), damping)
    core = torch.cholesky_inverse(
        cholesky(g @ g.mT + n * lam * torch.eye(n, dtype=g.dtype, device=g.device), where=where).factor
    )
    return Dual(g, core, lam)
