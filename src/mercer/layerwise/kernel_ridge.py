r"""Kernel ridge regression with leave-one-out errors: a search on few rows, the fit on all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..linalg import kernel_ridge_loo, squared_distances

__all__ = ["DualFit", "Setting", "dual_fit", "dual_weights", "loss", "median_of_rows", "search", "tune_penalty"]

_PENALTIES = [10.0**e for e in (-6, -5, -4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 1)]
_STEP = 4.0  # ratio of the penalties tried on all rows
_TRIES = 3


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


class DualFit(NamedTuple):
    r"""A fit :math:`\alpha = (K + \lambda I)^{-1} Y`.

    Attributes:
        weights: :math:`\alpha`, ``(n, c)``.
        held_out: ``(n, c)`` prediction of each row by the fit without it.
        error: Mean squared leave-one-out error.
        penalty: :math:`\lambda`.
    """

    weights: Tensor
    held_out: Tensor
    error: float
    penalty: float


def median_of_rows(z: Tensor) -> float:
    """Median distance of at most 400 evenly spaced rows; 1 where all are equal."""
    rows = z[torch.linspace(0, len(z) - 1, min(len(z), 400), device=z.device).round().long()]
    squared = squared_distances(rows, rows)
    positive = squared[squared > 0]
    return float(positive.median().sqrt()) if len(positive) else 1.0


def search(z: Tensor, y: Tensor, multiples: list[float]) -> Setting:
    """The bandwidth and penalty of least leave-one-out error on these rows: (n, d), (n, c)."""
    squared, middle = squared_distances(z, z), median_of_rows(z)
    best: Setting | None = None
    for multiple in multiples:
        gram = (squared / (-2 * (multiple * middle) ** 2)).exp()
        ridge = kernel_ridge_loo(gram, y, _PENALTIES)
        error = float(ridge.errors.min())
        if best is None or error < best.error:
            best = Setting(multiple, ridge.penalty, error)
    assert best is not None
    return best


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


def dual_weights(gram: Tensor, y: Tensor, penalty: float) -> Tensor:  # (n, n), (n, c) -> (n, c)
    r""":math:`(K + \lambda I)^{-1} Y` alone, at a third of the cost of :func:`dual_fit`."""
    shifted = gram.clone()
    shifted.diagonal().add_(max(penalty, 1e-8))
    factor, info = torch.linalg.cholesky_ex(shifted)
    return dual_fit(gram, y, penalty).weights if bool(info) else torch.cholesky_solve(y, factor)


def dual_fit(gram: Tensor, y: Tensor, penalty: float) -> DualFit:
    r"""Kernel ridge and its leave-one-out predictions :math:`y_i - \alpha_i / [(K + \lambda I)^{-1}]_{ii}`.

    A matrix that rounding keeps from its Cholesky factor gets a larger penalty, with one warning.
    """
    shifted = gram.clone()
    shifted.diagonal().add_(penalty)
    factor, info = torch.linalg.cholesky_ex(shifted)
    if bool(info):
        raised = penalty + 1e-8 * float(gram.diagonal().mean())
        checks.warn("kernel ridge", f"the Gram matrix is singular to rounding; penalty raised to {raised:.1e}.")
        return dual_fit(gram, y, raised)
    inverse = torch.cholesky_inverse(factor)
    weights = inverse @ y
    residual = weights / inverse.diagonal()[:, None]
    return DualFit(weights, y - residual, float(residual.square().mean()), penalty)


def tune_penalty(gram: Tensor, y: Tensor, penalty: float) -> DualFit:
    """Walk the penalty from a guess in the direction that lowers the leave-one-out error: (n, n), (n, c)."""
    best = dual_fit(gram, y, penalty)
    for factor in (1 / _STEP, _STEP):
        moved = False
        for _ in range(_TRIES):
            trial = dual_fit(gram, y, best.penalty * factor)
            if trial.error >= best.error or trial.penalty < 1e-9:
                break
            best, moved = trial, True
        if moved:
            break
    return best
