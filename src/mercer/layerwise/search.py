"""A first look at rows: Gaussian kernel ridge on few of them, bandwidth and penalty by leave-one-out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg.distances import squared_distances
from ..machines.dual import dual_path
from ..machines.selection import median_distance


class Setting(NamedTuple):
    r"""What a search chose.

    Attributes:
        multiple: Bandwidth over the median distance, so that it carries over to another metric and other rows.
        penalty: :math:`\lambda`.
        error: Mean squared leave-one-out error.
    """

    multiple: float
    penalty: float
    error: float


def search(z: Tensor, y: Tensor, multiples: list[float]) -> Setting:
    """The bandwidth and penalty of least leave-one-out error on these rows: (n, d), (n, c)."""
    squared, middle = squared_distances(z, z), median_distance(z)
    found = []
    for multiple in multiples:
        fit = dual_path((squared / (-2 * (multiple * middle) ** 2)).exp(), y)
        found.append(Setting(multiple, fit.penalty, fit.error))
    return min(found, key=lambda setting: setting.error)


def loss(y: Tensor, held_out: Tensor, task: str) -> float:
    r"""What decides between networks: mean squared error, or for classes a smooth count of errors.

    The count is :math:`\frac1n \sum_i 1 / (1 + e^{10 m_i})` of the margins :math:`m_i` between a row's own column
    and the best other; the squared error also rewards scores that are close to 1 far from any boundary.

    Args:
        y: Targets; for classes one column each, the row's own the largest.
        held_out: Leave-one-out predictions of them.
        task: ``"classes"`` or ``"values"``.
    """
    if task == "values":
        return float((y - held_out).square().mean())
    own = y.argmax(1, keepdim=True)
    rest = held_out.scatter(1, own, -torch.inf).amax(1)
    return float(torch.sigmoid(-10 * (held_out.gather(1, own)[:, 0] - rest)).mean())
