"""Choosing the kernel: each with a bandwidth and a penalty by leave-one-out on few rows."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    found: list[Kernel] = [Laplacian(_held(1 / (multiple * one))) for multiple in _PER_COLUMN]
    found += [Matern(0.5, _held(multiple * two)) for multiple in _EUCLIDEAN]
    found += [_gaussian(multiple * two) for multiple in _GAUSSIAN]
    return [*found, _held(1 / _typical(x)) * Linear()] if linear else found


def candidate_kernels(x: Tensor) -> list[Kernel]:  # (n, d)
    """Those of :func:`table_kernels`, with Matern, network and polynomial kernels and more bandwidths."""
    two = median_distance(x)
    found: list[Kernel] = [Matern(nu, _held(two)) for nu in (1.5, 2.5)]
    found += [_gaussian(multiple * two) for multiple in _MORE_GAUSSIAN]
    found += [NTK(depth, bias_var=0.1).normalized() for depth in (1, 3)]
    found += [Polynomial(degree, _held(1 / _typical(x)), 1.0) for degree in (2, 3)]
    return [*table_kernels(x), *found]


def rank_kernels(
    x: Tensor,
    y: Tensor,
    kernels: list[Kernel] | None = None,
    loss: Callable[[Tensor, Tensor], float] | None = None,
    weight: Tensor | None = None,
) -> list[Choice]:
    """The kernels by leave-one-out loss on the first 400 rows, best first: ``(n, d)``, ``(n, c)`` in random order.

    Args:
        x: Rows, in float64.
        y: Targets.
        kernels: None for :func:`candidate_kernels`.
        loss: Function of targets and leave-one-out predictions; None for the mean squared error.
        weight: Rows' weights, ``(n,)``, 0 or more; None for 1.
    """
    x, y = x[:CHOOSING_ROWS], y[:CHOOSING_ROWS]
    weight = None if weight is None else weight[:CHOOSING_ROWS]
    found = [
        Choice(kernel, dual_path(kernel(x).double(), y, weight=weight)) for kernel in kernels or candidate_kernels(x)
    ]
    value = {
        id(choice): choice.fit.error if loss is None else loss(y, choice.fit.held_out)
        for choice in found
        if math.isfinite(choice.fit.error)
    }
    if not value:
        need = "at least one kernel must give finite values on x"
        raise ValueError(checks.sentence("KernelRidge", need, "none", "Standardise x first."))
    return sorted((choice for choice in found if id(choice) in value), key=lambda choice: value[id(choice)])


def narrowed(kernel: Kernel, factor: float) -> Kernel | None:
    """The kernel with its length scale times ``factor``; None for kernels without one."""
    if isinstance(kernel, RBF) and kernel.gamma.number is not None:
        return RBF(_held(kernel.gamma.number / factor**2))
    if isinstance(kernel, Laplacian) and kernel.gamma.number is not None:
        return Laplacian(_held(kernel.gamma.number / factor))
    if isinstance(kernel, Matern) and kernel.lengthscale.number is not None:
        return Matern(kernel.nu, _held(kernel.lengthscale.number * factor))
    return None


def _gaussian(width: float) -> Kernel:
    return RBF(_held(1 / (2 * max(width, 1e-150) ** 2)))  # a square that does not underflow to 0


def _typical(x: Tensor) -> float:
    """Mean squared length of the rows; 1 where all are 0."""
    return float(x.square().sum(1).mean()) or 1.0


def _held(value: float) -> float:
    """A hyper-parameter within what float32 can say, for rows of any scale."""
    info = torch.finfo(torch.float32)
    return min(max(value, info.tiny), info.max)
