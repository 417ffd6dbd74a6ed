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
from ..kernels import Kernel
from ..linalg.cholesky import cholesky, inverse_diagonal

T = TypeVar("T")

PENALTIES = tuple(10.0**e for e in (-7, -6, -5, -4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1, 2))
"""Shares of the mean of k(x, x) that a search tries."""

_PATH_ROWS = 1000  # rows up to which one eigendecomposition costs less than the Cholesky factors of a walk
_STEP = 4.0  # ratio of neighbouring penalties in the walk
_TRIES = 4
_LEAST_ROOT = 1e-150  # of a row's weight: the square of it is above 0
_ROUGH = 100  # times n eps: the rounding of a solution with a penalty above it is a hundredth or less
_ROUGH_FROM = 200  # rows from which on float32 is worth it
_NEGATIVE = 1e-7  # share of the largest eigenvalue below which a negative one is more than rounding


class Folds(NamedTuple):
    """Rows that are left out together, because rows to come are like none of the rows learned from.

    Attributes:
        number: Fold of each row, ``(n,)``.
        forward: Whether a fold is predicted by the folds before it alone, the first one by the mean of all rows. Then
            the numbers must ascend.
    """

    number: Tensor
    forward: bool = False

    def of(self, rows: Tensor) -> Folds:
        """The folds of some rows."""
        return Folds(self.number[rows], self.forward)


class DualFit(NamedTuple):
    r"""A fit :math:`f(x) = \bar y + k(x)^T \alpha`.

    Attributes:
        weights: :math:`\alpha = (K + \lambda W^{-1})^{-1} (y - \bar y)`, ``(n, c)``.
        mean: :math:`\bar y`, ``(c,)``.
        held_out: ``(n, c)``, prediction of each row by the fit without it, or without its fold; the mean where no row
            is left.
        error: Mean squared error of these predictions, of weighted rows the weighted mean.
        penalty: :math:`\lambda`.
    """

    weights: Tensor
    mean: Tensor
    held_out: Tensor
    error: float
    penalty: float


def dual_fit(
    gram: Tensor,
    y: Tensor,
    penalty: float,
    *,
    weight: Tensor | None = None,
    where: str = "KernelRidge",
    folds: Folds | None = None,
) -> DualFit:
    r"""The fit for one penalty, by Cholesky: ``(n, n)``, ``(n, c)``; n cubed operations.

    A matrix that is singular to rounding gets a jitter, with one warning (:func:`mercer.linalg.cholesky`). ``weight``
    are the rows' weights ``(n,)``, 0 or more; ``folds`` are left out together, None for one row at a time.
    """
    root = y.new_ones(len(y)) if weight is None else weight.sqrt()
    system = gram.clone() if weight is None else root[:, None] * gram * root
    system.diagonal().add_(penalty)
    factor, jitter = cholesky(system, where=where)
    mean = weighted_mean(y, weight)
    targets = root[:, None] * torch.cat((y - mean, torch.ones_like(y[:, :1])), 1)
    solved = torch.cholesky_solve(targets, factor)
    if folds is None:
        held_out = leave_one_out(solved, inverse_diagonal(factor), y, weight)
    elif folds.forward:
        held_out = _predict_forward(factor, targets, y, root, folds.number)
    else:
        inverse = torch.cholesky_inverse(factor)
        found = _leave_folds_out(lambda rows: inverse[rows][:, rows][None], solved[:, None], y, root, folds.number)
        held_out = found[:, 0]
    error = float(weighted_mean((y - held_out).square(), weight).mean())
    return DualFit(root[:, None] * solved[:, :-1], mean, held_out, error, penalty + jitter)


def dual_weights(gram: Tensor, y: Tensor, penalty: float, weight: Tensor | None = None) -> Tensor:  # (n, c)
    """The weights of :func:`dual_fit` alone, at a third of its cost: nothing is left out."""
    root = y.new_ones(len(y)) if weight is None else weight.sqrt()
    system = gram.clone() if weight is None else root[:, None] * gram * root
    system.diagonal().add_(penalty)
    targets = root[:, None] * (y - weighted_mean(y, weight))
    return root[:, None] * torch.cholesky_solve(targets, cholesky(system, where="KernelRidge").factor)


def predict_left_out(
    kernel: Kernel,
    z: Tensor,
    y: Tensor,
    penalty: float,
    rows: Tensor,
    *,
    weight: Tensor | None = None,
    folds: Folds | None = None,
) -> Tensor:  # (n, d), (n, c), (r,) -> (r, c)
    """``held_out`` of :func:`dual_fit` at some rows alone; in float32 where its rounding is far below the penalty.

    With these rows last, or their folds, the last block of the Cholesky factor knows their part of the inverse. Folds
    are left out in float64.
    """
    if folds is not None and folds.forward:
        return dual_fit(kernel(z), y, penalty, weight=weight, folds=folds).held_out[rows]
    last = rows if folds is None else torch.isin(folds.number, folds.number[rows]).nonzero()[:, 0]
    others = torch.ones(len(y), dtype=torch.bool)
    others[last] = False
    order, first = torch.cat((others.nonzero()[:, 0], last)), len(y) - len(last)
    z, y, weight = z[order], y[order], None if weight is None else weight[order]
    root = y.new_ones(len(y)) if weight is None else weight.sqrt()
    rough = folds is None and _is_far_above_rounding(penalty, _scale(root.square() * kernel.diag(z)), len(z))
    system = kernel(z.float() if rough else z)
    if weight is not None:
        system = root.to(system)[:, None] * system * root.to(system)
    system.diagonal().add_(penalty)
    factor = cholesky(system, where="KernelRidge").factor
    targets = root[:, None] * torch.cat((y - weighted_mean(y, weight), torch.ones_like(y[:, :1])), 1)
    solved = torch.cholesky_solve(targets.to(factor), factor).to(y)
    if folds is not None:
        inverse, number = torch.cholesky_inverse(factor[first:, first:]), folds.number[order]
        found = _leave_folds_out(
            lambda fold: inverse[fold - first][:, fold - first][None], solved[:, None], y, root, number, first
        )
        return found[order.argsort()[rows], 0]
    inverse = torch.ones_like(y[:, 0])  # that of the other rows does not count
    inverse[first:] = inverse_diagonal(factor[first:, first:])
    return leave_one_out(solved, inverse, y, weight)[first:]


def dual_path(
    gram: Tensor,
    y: Tensor,
    penalties: Sequence[float] | None = None,
    *,
    weight: Tensor | None = None,
    folds: Folds | None = None,
    rough: bool = False,
) -> DualFit:
    r"""The fit at the penalty of least leave-one-out error: one eigendecomposition serves all of them.

    Where each fold is predicted by those before it, each penalty has a Cholesky factor of its own.

    Args:
        gram: K, ``(n, n)``.
        y: Targets, ``(n, c)``.
        penalties: :math:`\lambda > 0`; None for :data:`PENALTIES` times the mean of K's diagonal.
        weight: Rows' weights, ``(n,)``, 0 or more; None for 1.
        folds: Rows that are left out together; None for one at a time.
        rough: Decompose in float32, at half the cost: for a choice among many kernels. Where the best penalty is not
            far above the rounding, its neighbors are tried in float64. Folds are always left out in float64.
    """
    root = y.new_ones(len(y)) if weight is None else weight.sqrt()
    scale = _scale(gram.diagonal() if weight is None else weight * gram.diagonal())
    grid = [share * scale for share in PENALTIES] if penalties is None else list(penalties)
    if folds is not None and folds.forward:
        fits = [dual_fit(gram, y, penalty, weight=weight, folds=folds) for penalty in grid]
        return min(fits, key=lambda fit: fit.error)
    mean = weighted_mean(y, weight)
    targets = root[:, None] * torch.cat((y - mean, torch.ones_like(y[:, :1])), 1)
    system = gram if weight is None else root[:, None] * gram * root
    rough = rough and folds is None and len(gram) >= _ROUGH_FROM
    values, vectors = torch.linalg.eigh(system.float() if rough else system)
    if not rough and float(values[0]) < -_NEGATIVE * float(values[-1].abs()):
        least = f"least eigenvalue {float(values[0]):.2e} of {float(values[-1]):.2e}"
        checks.warn("KernelRidge", f"the kernel is indefinite on the rows, {least}; the negative part is dropped.")
    # for all penalties at once: the solutions, and what rows left out are predicted by the others
    gains = 1 / (values.clamp_min(0)[:, None] + values.new_tensor(grid))  # (n, p)
    moments = vectors.mT @ targets.to(vectors)
    solved = (vectors @ (gains[:, :, None] * moments[:, None]).flatten(1)).to(y).unflatten(1, (len(grid), -1))
    if folds is None:
        held_out = leave_one_out(solved, (vectors.square() @ gains).to(y), y, weight)  # (n, p, c)
    else:
        # of A = V L V^T the block of a fold's rows in the inverse is V_B (L + penalty)^-1 V_B^T
        held_out = _leave_folds_out(
            lambda rows: (gains.mT[:, None] * vectors[rows]) @ vectors[rows].mT, solved, y, root, folds.number
        )
    errors = weighted_mean((y[:, None] - held_out).square().mean(2), weight).tolist()
    place = errors.index(min(errors))
    best = DualFit(root[:, None] * solved[:, place, :-1], mean, held_out[:, place], errors[place], grid[place])
    if rough and not _is_far_above_rounding(best.penalty, scale, len(gram)):
        # a penalty that float32 cannot be trusted with: a walk along the grid from there, in float64
        best = dual_fit(gram, y, best.penalty, weight=weight)
        for neighbors in (grid[:place][::-1], grid[place + 1 :]):
            for penalty in neighbors:
                fit = dual_fit(gram, y, penalty, weight=weight)
                if fit.error >= best.error:
                    break
                best = fit
            if best.penalty != grid[place]:
                break
    return best


def tune_penalty(
    gram: Tensor,
    y: Tensor,
    start: float | None = None,
    *,
    weight: Tensor | None = None,
    where: str = "KernelRidge",
    folds: Folds | None = None,
) -> DualFit:
    """The fit at a penalty of least leave-one-out error: ``(n, n)``, ``(n, c)``.

    Up to 1,000 rows by :func:`dual_path`; beyond, a walk by factors of four from ``start``, or from the best penalty
    of 1,000 rows. ``folds`` are left out together, None for one row at a time.
    """
    if len(gram) <= _PATH_ROWS and start is None:
        return dual_path(gram, y, weight=weight, folds=folds)
    if start is None:
        few = torch.linspace(0, len(gram) - 1, _PATH_ROWS, device=gram.device).round().long()
        start = dual_path(gram[few][:, few], y[few], weight=None if weight is None else weight[few]).penalty

    def attempt(penalty: float) -> tuple[float, DualFit]:
        fit = dual_fit(gram, y, penalty, weight=weight, where=where, folds=folds)
        return fit.error, fit

    return walk(attempt, start, PENALTIES[0] * _scale(gram.diagonal()))


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
    r"""Leave-one-out predictions ``(n, c)``, or ``(n, p, c)`` for p penalties at once.

    Args:
        solved: :math:`(S K S + \lambda I)^{-1} S [y - \bar y, 1]`, ``(n, c + 1)`` or ``(n, p, c + 1)``.
        inverse: Diagonal of that inverse, ``(n,)`` or ``(n, p)``.
        y: Targets, ``(n, c)``.
        weight: :math:`S^2`, ``(n,)``; None for 1. The formula is 0 / 0 for a row of weight 0, which gets its target.
    """
    weight = y.new_ones(len(y)) if weight is None else weight
    mean = weighted_mean(y, weight)
    if len(y) == 1:
        return mean.expand_as(solved[..., :-1]).clone()
    # How far the mean of the other rows' targets is from that of all.
    others = (weight.sum() - weight).clamp_min(torch.finfo(y.dtype).eps * float(weight.sum()))
    shift = (weight / others)[:, None] * (mean - y)
    if solved.ndim == 3:
        y, shift, weight = y[:, None], shift[:, None], weight[:, None]
    scale = torch.where(weight > 0, weight.sqrt() * inverse, torch.inf)
    return y - (solved[..., :-1] - shift * solved[..., -1:]) / scale[..., None]


def weighted_mean(y: Tensor, weight: Tensor | None) -> Tensor:  # (n, c), (n,) -> (c,)
    """The mean over rows of weight ``weight``; None for 1."""
    return y.mean(0) if weight is None else (weight[:, None] * y).sum(0) / weight.sum()


def relative_norm(left: Tensor, right: Tensor) -> float:
    """The norm of ``left`` over that of ``right``, where that is not 0."""
    return float(left.norm()) / (float(right.norm()) or 1.0)


def _leave_folds_out(
    block: Callable[[Tensor], Tensor], solved: Tensor, y: Tensor, root: Tensor, number: Tensor, first: int = 0
) -> Tensor:  # (n, p, c)
    r"""Predictions of each fold B by the other rows, which miss it by :math:`([A^{-1}]_{BB})^{-1} [A^{-1} y]_B`.

    The mean is that of the other rows, too.

    Args:
        block: Of the numbers of b rows, :math:`[A^{-1}]_{BB}` for p penalties, ``(p, b, b)``.
        solved: :math:`A^{-1} S [y - \bar y, 1]`, ``(n, p, c + 1)``.
        y: Targets, ``(n, c)``.
        root: S, ``(n,)``.
        number: Fold of each row, ``(n,)``.
        first: Folds of rows from this one on are left out; other rows get the mean.
    """
    weight = root.square()
    mean = weighted_mean(y, weight)
    held_out = mean.expand_as(solved[..., :-1]).clone()
    for one in number[first:].unique():
        rows, others = (number == one).nonzero()[:, 0], number != one
        if bool(others.any()):
            shift = weighted_mean(y[others], weight[others]) - mean
            own = (solved[rows, :, :-1] - solved[rows, :, -1:] * shift).transpose(0, 1)  # (p, b, c)
            missed = torch.linalg.solve(block(rows), own).transpose(0, 1)
            held_out[rows] = y[rows, None] - missed / root[rows, None, None].clamp_min(_LEAST_ROOT)
    return held_out


def _predict_forward(factor: Tensor, targets: Tensor, y: Tensor, root: Tensor, number: Tensor) -> Tensor:  # (n, c)
    r"""Predictions of each fold by the folds before it.

    The leading part of a Cholesky factor L is the factor of the leading rows, so with :math:`v = L^{-1} y` the rows
    before p predict those after by :math:`L_{B, :p} v_{:p}`. Arguments are as in :func:`dual_fit`.
    """
    half, weight = torch.linalg.solve_triangular(factor, targets, upper=False), root.square()
    mean = weighted_mean(y, weight)
    held_out = mean.expand_as(y).clone()
    for one in number.unique()[1:]:
        rows, p = (number == one).nonzero()[:, 0], int((number < one).sum())
        earlier = weighted_mean(y[:p], weight[:p])
        step = factor[rows, :p] @ (half[:p, :-1] - half[:p, -1:] * (earlier - mean))
        held_out[rows] = earlier + step / root[rows, None].clamp_min(_LEAST_ROOT)
    return held_out


def _is_far_above_rounding(penalty: float, scale: float, n: int) -> bool:
    """Whether float32 will do: for a ridge on a Gram matrix of n rows with this mean diagonal."""
    return n >= _ROUGH_FROM and penalty >= _ROUGH * n * torch.finfo(torch.float32).eps * scale


def _scale(diagonal: Tensor) -> float:
    scale = float(diagonal.mean())
    if not math.isfinite(scale):
        raise ValueError(checks.sentence("KernelRidge", "k(x, x) must be finite", scale, "Standardise x first."))
    return scale if scale > 0 else 1.0
