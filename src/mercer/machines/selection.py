"""Choosing the kernel: each with a bandwidth and a penalty by leave-one-out on few rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..kernels import NTK, RBF, Kernel, Laplacian, Linear, Matern, Polynomial
from ..linalg.distances import median_distance as median_of_distances
from .dual import DualFit, dual_path

CHOOSING_ROWS = 400
"""Rows on which kernels are compared: an eigendecomposition each."""

_MEDIAN_ROWS = 400
_PER_COLUMN = (0.5, 1.5, 4.0)  # times the median distance in the 1-norm
_EUCLIDEAN = (1.0, 4.0)  # times the median distance
_GAUSSIAN, _MORE_GAUSSIAN = (0.4, 1.0), (0.25, 0.65)


class Choice(NamedTuple):
    """A kernel with its fit to the few rows it was judged on."""

    kernel: Kernel
    fit: DualFit


def median_distance(x: Tensor, p: float = 2.0) -> float:
    """Median distance in the p-norm between 400 evenly spaced rows; 1 where all are equal."""
    return median_of_distances(x, p=int(p), rows=_MEDIAN_ROWS) or 1.0


def table_kernels(x: Tensor, *, linear: bool = True) -> list[Kernel]:  # (n, d)
    """The kernels that tables need, with bandwidths that suit the rows.

    Laplacian kernels column by column, then Euclidean ones, Gaussian ones and, where asked for, the linear one.
    """
    one, two = median_distance(x, 1.0), median_distance(x)
    kernels: list[Kernel] = [Laplacian(_clip_to_float32(1 / (multiple * one))) for multiple in _PER_COLUMN]
    kernels += [Matern(0.5, _clip_to_float32(multiple * two)) for multiple in _EUCLIDEAN]
    kernels += [_gaussian(multiple * two) for multiple in _GAUSSIAN]
    if linear:
        kernels.append(_clip_to_float32(1 / _typical(x)) * Linear())
    return kernels


def candidate_kernels(x: Tensor, *, most_columns: float = math.inf) -> list[Kernel]:  # (n, d)
    """Those of :func:`table_kernels`, with Matern, network and polynomial kernels and more bandwidths.

    Of rows with more than ``most_columns`` those that go column by column are left out.
    """
    two = median_distance(x)
    kernels: list[Kernel] = [Matern(nu, _clip_to_float32(two)) for nu in (1.5, 2.5)]
    kernels += [_gaussian(multiple * two) for multiple in _MORE_GAUSSIAN]
    kernels += [NTK(depth, bias_var=0.1).normalized() for depth in (1, 3)]
    kernels += [Polynomial(degree, _clip_to_float32(1 / _typical(x)), 1.0) for degree in (2, 3)]
    first = table_kernels(x) if x.shape[1] <= most_columns else table_kernels(x)[len(_PER_COLUMN) :]
    return [*first, *kernels]


def rank_kernels(
    x: Tensor,
    y: Tensor,
    kernels: list[Kernel] | None = None,
    weight: Tensor | None = None,
) -> list[Choice]:
    """The kernels by leave-one-out error on the first 400 rows, best first: ``(n, d)``, ``(n, c)`` in random order.

    Args:
        x: Rows, in float64.
        y: Targets.
        kernels: None for :func:`candidate_kernels`.
        weight: Rows' weights, ``(n,)``, 0 or more; None for 1.
    """
    x, y = x[:CHOOSING_ROWS], y[:CHOOSING_ROWS]
    if weight is not None:
        weight = weight[:CHOOSING_ROWS]
    ranked = []
    for kernel in kernels or candidate_kernels(x):
        fit = dual_path(kernel(x).double(), y, weight=weight)
        if math.isfinite(fit.error):
            ranked.append(Choice(kernel, fit))
    if not ranked:
        need = "at least one kernel must give finite values on x"
        raise ValueError(checks.sentence("KernelRidge", need, "none", "Standardise x first."))
    return sorted(ranked, key=lambda choice: choice.fit.error)


def _gaussian(width: float) -> Kernel:
    return RBF(_clip_to_float32(1 / (2 * max(width, 1e-150) ** 2)))  # a square that does not underflow to 0


def _typical(x: Tensor) -> float:
    """Mean squared length of the rows; 1 where all are 0."""
    return float(x.square().sum(1).mean()) or 1.0


def _clip_to_float32(value: float) -> float:
    """A hyper-parameter that float32 can hold, for rows of any scale."""
    info = torch.finfo(torch.float32)
    return min(max(value, info.tiny), info.max)
