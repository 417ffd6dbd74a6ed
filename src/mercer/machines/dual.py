r"""Kernel ridge on a Gram matrix: weights, and leave-one-out predictions in closed form.

With :math:`A = K + \lambda I`, the fit that leaves row i out, its mean of the targets included, misses row i by

.. math:: y_i - f_{-i}(x_i) = \frac{[A^{-1} y]_i - \bar y_{-i} [A^{-1} 1]_i}{[A^{-1}]_{ii}}, \qquad
    \bar y_{-i} = \frac{n \bar y - y_i}{n - 1}.

Rows of weight w are rows of noise :math:`\lambda / w`: :math:`A = K + \lambda W^{-1}`, with weighted means. With
:math:`S = W^{1/2}` it is :math:`S^{-1} (S K S + \lambda I) S^{-1}`, and what is solved is the matrix in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import checks
from ..linalg.cholesky import cholesky, inverse_diagonal

T = TypeVar("T")

PENALTIES = tuple(10.0**e for e in (-7, -6, -5, -4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1, 2))
"""Shares of the mean of k(x, x) that a search tries."""

_PATH_ROWS = 1000  # rows up to which one eigendecomposition costs less than the Cholesky factors of a walk
_STEP = 4.0  # ratio of neighbouring penalties in the walk
_TRIES = 4
_NEGATIVE = 1e-7  # share of the largest eigenvalue below which a negative one is more than rounding


class DualFit(NamedTuple):
    r"""A fit :math:`f(x) = \bar y + k(x)^T \alpha`.

    Attributes:
        weights: :math:`\alpha = (K + \lambda W^{-1})^{-1} (y - \bar y)`, ``(n, c)``.
        mean: :math:`\bar y`, ``(c,)``.
        held_out: ``(n, c)``, prediction of each row by the fit to the others; the mean where there are none.
        error: Mean squared leave-one-out error, of weighted rows the weighted mean.
        penalty: :math:`\lambda`.
    """

    weights: Tensor
    mean: Tensor
    held_out: Tensor
    error: float
    penalty: float


def dual_fit(
    gram: Tensor, y: Tensor, penalty: float, *, weight: Tensor | None = None, where: str = "KernelRidge"
) -> DualFit:
    r"""The fit for one penalty, by Cholesky: ``(n, n)``, ``(n, c)``; n cubed operations.

    A matrix that is singular to rounding gets a jitter, with one warning (:func:`mercer.linalg.cholesky`). ``weight``
    are the rows' weights ``(n,)``, 0 or more.
    """
    root = y.new_ones(len(y)) if weight is None else weight.sqrt()
    system = gram.clone() if weight is None else root[:, None] * gram * root
    system.diagonal().add_(penalty)
    factor, jitter = cholesky(system, where=where)
    mean = weighted_mean(y, weight)
    solved = torch.cholesky_solve(root[:, None] * torch.cat((y - mean, torch.ones_like(y[:, :1])), 1), factor)
    held_out = leave_one_out(solved, inverse_diagonal(factor), y, weight)
    error = float(weighted_mean((y - held_out).square(), weight).mean())
    return DualFit(root[:, None] * solved[:, :-1], mean, held_out, error, penalty + jitter)


def dual_path(
    gram: Tensor, y: Tensor, penalties: Sequence[float] | None = None, *, weight: Tensor | None = None
) -> DualFit:
    r"""The fit at the penalty of least leave-one-out error: one eigendecomposition serves all of them.

    Args:
        gram: K, ``(n, n)``.
        y: Targets, ``(n, c)``.
        penalties: :math:`\lambda > 0`; None for :data:`PENALTIES` times the mean of K's diagonal.
        weight: Rows' weights, ``(n,)``, 0 or more; None for 1.
    """
    root = y.new_ones(len(y)) if weight is None else weight.sqrt()
    gram = gram if weight is None else root[:, None] * gram * root
    scale = _scale(gram)
    grid = [share * scale for share in PENALTIES] if penalties is None else list(penalties)
    values, vectors = torch.linalg.eigh(gram)
    if float(values[0]) < -_NEGATIVE * float(values[-1].abs()):
        least = f"least eigenvalue {float(values[0]):.2e} of {float(values[-1]):.2e}"
        checks.warn("KernelRidge", f"the kernel is indefinite on the rows, {least}; the negative part is dropped.")
    values = values.clamp_min(0)
    mean = weighted_mean(y, weight)
    moments = vectors.mT @ (root[:, None] * torch.cat((y - mean, torch.ones_like(y[:, :1])), 1))
    squares = vectors.square()
    best: DualFit | None = None
    for penalty in grid:
        gain = 1 / (values + penalty)
        solved = vectors @ (gain[:, None] * moments)
        held_out = leave_one_out(solved, squares @ gain, y, weight)
        error = float(weighted_mean((y - held_out).square(), weight).mean())
        if best is None or error < best.error:
            best = DualFit(root[:, None] * solved[:, :-1], mean, held_out, error, penalty)
    assert best is not None
    return best


def tune_penalty(
    gram: Tensor,
    y: Tensor,
    start: float | None = None,
    *,
    weight: Tensor | None = None,
    where: str = "KernelRidge",
) -> DualFit:
    """The fit at a penalty of least leave-one-out error: ``(n, n)``, ``(n, c)``.

    Up to 1,000 rows by :func:`dual_path`; beyond, a walk by factors of four from ``start``, or from the best penalty
    of 1,000 rows.
    """
    if len(gram) <= _PATH_ROWS and start is None:
        return dual_path(gram, y, weight=weight)
    if start is None:
        few = torch.linspace(0, len(gram) - 1, _PATH_ROWS, device=gram.device).round().long()
        start = dual_path(gram[few][:, few], y[few], weight=None if weight is None else weight[few]).penalty

    def attempt(penalty: float) -> tuple[float, DualFit]:
        fit = dual_fit(gram, y, penalty, weight=weight, where=where)
        return fit.error, fit

    return walk(attempt, start, PENALTIES[0] * _scale(gram))


def walk(attempt: Callable[[float], tuple[float, T]], start: float, floor: float) -> T:
    """What ``attempt`` gives, with its error, at the penalty where a walk by factors of four stops falling."""
    (least, best), penalty = attempt(start), start
    for factor in (1 / _STEP, _STEP):
        moved = False
        for _ in range(_TRIES):
            if penalty * factor < floor:
                break
            error, fit = attempt(penalty * factor)
            if error >= least:
                break
            least, best, penalty, moved = error, fit, penalty * factor, True
        if moved:
            break
    return best


def leave_one_out(solved: Tensor, inverse: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Leave-one-out predictions ``(n, c)``.

    Args:
        solved: :math:`(S K S + \lambda I)^{-1} S [y - \bar y, 1]`, ``(n, c + 1)``.
        inverse: Diagonal of that inverse, ``(n,)``.
        y: Targets, ``(n, c)``.
        weight: :math:`S^2`, ``(n,)``; None for 1. The formula is 0 / 0 for a row of weight 0, which gets its target.
    """
    weight = y.new_ones(len(y)) if weight is None else weight
    mean = weighted_mean(y, weight)
    if len(y) == 1:
        return mean.expand_as(y).clone()
    # How far the mean of the other rows' targets is from that of all.
    others = (weight.sum() - weight).clamp_min(torch.finfo(y.dtype).eps * float(weight.sum()))
    shift = (weight / others)[:, None] * (mean - y)
    scale = torch.where(weight > 0, weight.sqrt() * inverse, torch.inf)
    return y - (solved[:, :-1] - shift * solved[:, -1:]) / scale[:, None]


def weighted_mean(y: Tensor, weight: Tensor | None) -> Tensor:  # (n, c), (n,) -> (c,)
    """The mean over rows of weight ``weight``; None for 1."""
    return y.mean(0) if weight is None else (weight[:, None] * y).sum(0) / weight.sum()


def relative_norm(left: Tensor, right: Tensor) -> float:
    """The norm of ``left`` over that of ``right``, where that is not 0."""
    return float(left.norm()) / (float(right.norm()) or 1.0)


def _scale(gram: Tensor) -> float:
    scale = float(gram.diagonal().mean())
    if not math.isfinite(scale):
        raise ValueError(checks.sentence("KernelRidge", "k(x, x) must be finite", scale, "Standardise x first."))
    return scale if scale > 0 else 1.0
