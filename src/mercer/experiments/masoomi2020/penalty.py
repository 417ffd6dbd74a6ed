r"""Claim 6: the penalty that the eigenvector solution puts on the norms of the samples, implicitly."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...layerwise.dependence import gamma_table, gaussian

__all__ = ["ImplicitPenalty", "implicit_penalty"]


class ImplicitPenalty(NamedTuple):
    r"""The two sides of the poster's reformulation.

    Attributes:
        penalties: :math:`D_i`, ``(n,)``.
        attraction: :math:`\sum_{ij} \sigma^{-2} \hat\Gamma_{ij} r_i^T W W^T r_j`.
        charge: :math:`\sum_i D_i \|W^T r_i\|^2`.
        objective: :math:`\mathrm{Tr}(W^T Q W) / \sigma^2`, what a step of ISM maximises.
    """

    penalties: Tensor
    attraction: float
    charge: float
    objective: float


def implicit_penalty(
    r: Tensor, w: Tensor, labels: Tensor, c: int, bandwidth: float, *, as_printed: bool = False
) -> ImplicitPenalty:
    r""":math:`D_i = \sigma^{-2} \sum_j \Gamma_{ij} K_W(r_i, r_j)` and the terms of (masoomi2020, Eq. 10 and 11).

    With signed :math:`\Gamma` and squared norms, ``attraction - charge`` equals ``objective``: the poster's
    :math:`D_i` is the degree of row i. Two things of the print differ: it has the norm, not its square; and
    :math:`-|\Gamma_{ij}|` between classes, which is :math:`\Gamma_{ij}` only where that is negative (it
    may be positive with uneven classes).

    Args:
        r: Rows, ``(n, d)``.
        w: W, ``(d, q)``.
        labels: Classes ``0..c - 1``.
        c: Number of classes.
        bandwidth: :math:`\sigma`.
        as_printed: Use :math:`|\Gamma_{ij}|` as Eq. 10 has it.
    """
    z = r @ w
    gamma = gamma_table(labels, c).to(r.dtype)[labels][:, labels]  # (n, n)
    gram = gaussian(bandwidth)(z)
    same = labels[:, None] == labels
    signed = torch.where(same, gamma, -gamma.abs()) if as_printed else gamma
    penalties = (signed * gram).sum(1) / bandwidth**2
    hat = gamma * gram
    attraction = float((hat * (z @ z.mT)).sum()) / bandwidth**2
    distances = float((hat * (z[:, None] - z[None]).square().sum(-1)).sum()) / (2 * bandwidth**2)
    charge = float((penalties * z.square().sum(1)).sum())
    return ImplicitPenalty(penalties, attraction, charge, -distances)
