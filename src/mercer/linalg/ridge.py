"""Ridge regression with closed-form leave-one-out errors, a grid of penalties from one decomposition."""

from __future__ import annotations

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


def ridge_loo(x: Tensor, y: Tensor, penalties: Sequence[float], *, intercept: bool = True) -> Ridge:
    r"""Least :math:`\|y - x w - b\|^2 + \lambda \|w\|^2`, with :math:`\lambda` by leave-one-out.

    With hat matrix S the held-out residual is :math:`(y_i - \hat y_i) / (1 - S_{ii})`. One eigendecomposition
    of the smaller of :math:`x^T x` and :math:`x x^T` serves every penalty; the work is done in float64.

    Args:
        x: Features, ``(n, m)``.
        y: Targets, ``(n,)`` or ``(n, c)``.
        penalties: The grid of :math:`\lambda > 0`.
        intercept: Whether b is fitted (it is not penalised).
    """
    grid, dtype = _grid("ridge_loo", x, y, penalties), x.dtype
    x, y = x.double(), (y if y.ndim == 2 else y[:, None]).double()
    centre = x.mean(0) if intercept else x.new_zeros(x.shape[1])
    base = y.mean(0) if intercept else y.new_zeros(y.shape[1])
    x, y = x - centre, y - base
    wide = x.shape[1] > len(x)
    values, vectors = torch.linalg.eigh(x @ x.mT if wide else x.mT @ x)
    values = values.clamp_min(0)
    inverse = (
        torch.where(values > 0, values, torch.ones_like(values)).rsqrt().where(values > 0, torch.zeros_like(values))
    )
    left = vectors if wide else x @ (vectors * inverse)  # (n, r) orthonormal directions of the rows
    moments = left.mT @ y  # (r, c)
    best = _search(left, values, moments, y, grid, leverage=1 / len(x) if intercept else 0.0)
    gain = 1 / (values + best.penalty)
    if wide:
        weights = x.mT @ (vectors @ (gain[:, None] * moments))
    else:
        weights = vectors @ ((gain * values.sqrt())[:, None] * moments)
    return Ridge(
        weights.to(dtype),
        (base - centre @ weights).to(dtype),
        best.penalty,
        best.errors,
        (best.held_out + base).to(dtype),
    )


class _Best(NamedTuple):
    penalty: float
    errors: Tensor
    held_out: Tensor


def _search(left: Tensor, values: Tensor, moments: Tensor, y: Tensor, grid: list[float], *, leverage: float) -> _Best:
    """Leave-one-out residuals of every penalty; ``leverage`` is the intercept's share of the hat matrix."""
    squares, errors, least, chosen = left.square(), [], float("inf"), (grid[0], torch.zeros_like(y))
    for penalty in grid:
        shrink = values / (values + penalty)
        hat = squares @ shrink + leverage  # (n,)
        room = (1 - hat).clamp_min(torch.finfo(y.dtype).eps)  # a row that fixes its own fit has no held-out error
        residual = (y - left @ (shrink[:, None] * moments)) / room[:, None]
        errors.append(float(residual.square().mean()))
        if errors[-1] < least:
            least, chosen = errors[-1], (penalty, y - residual)
    return _Best(chosen[0], torch.tensor(errors, dtype=torch.float64), chosen[1])


def _grid(where: str, x: Tensor, y: Tensor, penalties: Sequence[float]) -> list[float]:
    checks.matrix(where, "x", x)
    checks.same_length(where, "x", x, "y", y)
    if not penalties:
        raise ValueError(checks.sentence(where, "penalties must hold at least one number", "none"))
    return [checks.positive(where, "penalties", float(penalty)) for penalty in penalties]
