"""Bandwidths: the grid a layer walks, and the one of greatest HSIC."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import checks, linalg
from ..linalg import squared_distances
from .dependence import hsic

__all__ = ["median_distance", "most_dependent", "walk_down"]

_ROWS = 200  # rows on which a bandwidth is chosen; more change it in the second digit
_SPAN = 2.0  # decades below the median distance that are searched; one above
_REFINEMENTS = 8
VANISHED = 1e-250  # squared distances below this leave no room for a narrower bandwidth's square


def median_distance(where: str, z: Tensor) -> float:
    """Median of the positive distances between rows; 1 with a warning where all rows are equal.

    Distances so small that their squares vanish count as equal: no bandwidth can tell such rows apart.
    """
    found = linalg.median_distance(z, rows=max(1, len(z)))
    if not found**2 > VANISHED:
        checks.warn(where, "all rows are equal to rounding; the bandwidth is set to 1.")
        return 1.0
    return found


def most_dependent(z: Tensor, labels: Tensor, c: int, *, least: float = 0.0, middle: float | None = None) -> float:
    r"""The :math:`\sigma` of greatest :math:`\mathrm{Tr}(\Gamma K_\sigma)`: a grid of decades, then a section search.

    Args:
        z: Rows, ``(n, q)``; 200 of them, evenly spaced, are looked at.
        labels: Classes ``0..c - 1``.
        c: Number of classes.
        least: Never below this.
        middle: Median distance, where it is known.
    """
    rows = torch.linspace(0, len(z) - 1, min(len(z), _ROWS), device=z.device).round().long()
    z, labels = z[rows], labels[rows]
    squared = squared_distances(z, z)
    middle = median_distance("most_dependent", z) if middle is None else middle

    def value(log_sigma: float) -> float:
        return float(hsic((squared / (-2 * math.exp(2 * log_sigma))).exp(), labels, c))

    step = math.log(10) / 4
    grid = [math.log(middle) + step * i for i in range(-round(4 * _SPAN), 5)]
    best = max(grid, key=value)
    low, high = best - step, best + step
    for _ in range(_REFINEMENTS):
        a, b = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, b) if value(a) >= value(b) else (a, high)
    return max(math.exp((low + high) / 2), least)


def walk_down(start: float, end: float, steps: int) -> list[float]:
    """``steps`` bandwidths from ``start`` to ``end``, equally spaced in their logarithm."""
    end = min(end, start)
    if steps == 1:
        return [start]
    return [start * (end / start) ** (i / (steps - 1)) for i in range(steps)]
