"""Bandwidths: the grid a layer walks, and the one of greatest HSIC."""

from __future__ import annotations

import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from .. import checks
from ..linalg import distances
from ..linalg.distances import squared_distances
from .dependence import hsic

__all__ = ["median_distance", "most_dependent", "walk_down"]

_ROWS = 200  # rows on which a bandwidth is chosen; more change it in the second digit
_SPAN = 2.0  # decades below the median distance that are searched; one above
_CLOSE = 0.02  # of the logarithm, where the search ends
_VANISHED = 1e-250  # squared distances below this leave no room for a narrower bandwidth's square


def median_distance(z: Tensor, *, where: str | None = None, rows: int = _ROWS) -> float:
    """Median of the positive distances between at most ``rows`` rows; 1 where all are equal.

    Distances so small that their squares vanish count as equal: no bandwidth can tell such rows apart. A warning in the
    name of ``where`` says so; without a name there is none: a layer wants its outputs to collapse.
    """
    median = distances.median_distance(z, rows=rows)
    if median**2 > _VANISHED:
        return median
    if where is not None:
        checks.warn(where, "all rows are equal to rounding; the bandwidth is set to 1.")
    return 1.0


def most_dependent(z: Tensor, labels: Tensor, c: int, *, least: float = 0.0, middle: float | None = None) -> float:
    r"""The :math:`\sigma` of greatest :math:`\mathrm{Tr}(\Gamma K_\sigma)`: a grid of decades, then the best near it.

    Args:
        z: Rows, ``(n, q)``; 200 of them, evenly spaced, are looked at.
        labels: Classes ``0..c - 1``.
        c: Number of classes.
        least: Never below this.
        middle: Median distance, where the caller has it.
    """
    rows = torch.linspace(0, len(z) - 1, min(len(z), _ROWS), device=z.device).round().long()
    z, labels = z[rows], labels[rows]
    squared = squared_distances(z, z)
    if middle is None:
        middle = median_distance(z, where="most_dependent")

    def value(log_sigma: float) -> float:
        return float(hsic((squared / (-2 * math.exp(2 * log_sigma))).exp(), labels, c))

    # A quarter of a decade a step, then a line search between the neighbors of the best.
    step = math.log(10) / 4
    grid = [math.log(middle) + step * i for i in range(-round(4 * _SPAN), 5)]
    best = max(grid, key=value)
    answer = minimize_scalar(
        lambda at: -value(at), bounds=(best - step, best + step), method="bounded", options={"xatol": _CLOSE}
    )
    return max(math.exp(answer.x), least)


def walk_down(start: float, end: float, steps: int) -> list[float]:
    """``steps`` bandwidths from ``start`` to ``end``, equally spaced in their logarithm."""
    end = min(end, start)
    if steps == 1:
        return [start]
    return [start * (end / start) ** (i / (steps - 1)) for i in range(steps)]
