"""Ridge regression with closed-form leave-one-out errors, a grid of penalties from one decomposition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks


class Ridge(NamedTuple):
    """The fit at the best penalty of a grid.

    Attributes:
        coefficients: ``(m, c)`` weights of the features.
        intercept: ``(c,)``.
        penalty: The penalty of least leave-one-out error.
        errors: ``(p,)`` mean squared leave-one-out error of every penalty, in the order given.
        held_out: ``(n, c)`` prediction of each row by the fit without it, at the best penalty.
    """

    coefficients: Tensor
    intercept: Tensor
    penalty: float
    errors: Tensor
    held_out: Tensor


def ridge_loo(x: Tensor, y: Tensor, penalties: Sequence[float]) -> Ridge:
    r"""Least :math:`\|y - x w - b\|^2 + \lambda \|w\|^2`, with :math:`\lambda` by leave-one-out; b is not penalized.

    With hat matrix S the held-out residual is :math:`(y_i - \hat y_i) / (1 - S_{ii})`. One eigendecomposition
    of the smaller of :math:`x^T x` and :math:`x x^T` serves every penalty; the work is done in float64.

    Args:
        x: Features, ``(n, m)``.
        y: Targets, ``(n,)`` or ``(n, c)``.
        penalties: The grid of :math:`\lambda > 0`.
    """
    where = "ridge_loo"
    checks.matrix(where, "x", x)
    checks.same_length(where, "x", x, "y", y)
    if not penalties:
        raise ValueError(checks.sentence(where, "penalties must hold at least one number", "none"))
    grid = [checks.positive(where, "penalties", float(penalty)) for penalty in penalties]

    # Center, so that the intercept is free of the penalty; its share of the hat matrix is 1 / n.
    dtype, n = x.dtype, len(x)
    x, y = x.double(), y.double().reshape(n, -1)
    center, base, leverage = x.mean(0), y.mean(0), 1 / n
    x, y = x - center, y - base

    # Orthonormal directions of the rows and their squared lengths, from the smaller of the two products.
    wide = x.shape[1] > n
    if wide:
        values, vectors = torch.linalg.eigh(x @ x.mT)
        values, directions = values.clamp_min(0), vectors  # (n, r)
    else:
        values, vectors = torch.linalg.eigh(x.mT @ x)
        values = values.clamp_min(0)
        directions = x @ (vectors * torch.where(values > 0, values, torch.inf).rsqrt())
    moments = directions.mT @ y  # (r, c)

    # Leave-one-out residuals of every penalty.
    squares, errors, best = directions.square(), [], math.inf
    penalty, held_out = grid[0], torch.zeros_like(y)
    for candidate in grid:
        shrink = values / (values + candidate)
        hat = squares @ shrink + leverage  # (n,)
        room = (1 - hat).clamp_min(torch.finfo(y.dtype).eps)  # a row that fixes its own fit has no held-out error
        residual = (y - directions @ (shrink[:, None] * moments)) / room[:, None]
        errors.append(float(residual.square().mean()))
        if errors[-1] < best:
            best, penalty, held_out = errors[-1], candidate, y - residual

    # The weights at the best penalty.
    gain = 1 / (values + penalty)
    if wide:
        weights = x.mT @ (vectors @ (gain[:, None] * moments))
    else:
        weights = vectors @ ((gain * values.sqrt())[:, None] * moments)
    return Ridge(
        weights.to(dtype),
        (base - center @ weights).to(dtype),
        penalty,
        torch.tensor(errors, dtype=torch.float64),
        (held_out + base).to(dtype),
    )
