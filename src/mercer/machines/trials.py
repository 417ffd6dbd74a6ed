"""Which machines suit a table: kernels on views of its columns, each judged on rows that had no part in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from ..kernels import RBF, Kernel
from .dual import Folds, dual_path, dual_weights, predict_left_out, tune_penalty, weighted_mean
from .metric import learn_rotation
from .selection import median_distance, table_kernels
from .trees import shrunk_share
from .views import View

_LEAST_SHARE = 0.03  # a machine of less weight goes
_LEAST_RELEVANCE = 1e-3
_ROTATED_ROWS, _ROTATED_COLUMNS, _NUMBERS = 200, 60, 3  # fewest rows, most columns, fewest of many values
_PLANS = ((0.2, 0.01), (0.35, 0.1), (1.0, 1.0))  # bandwidths over the median distance, and ridges, that teach a metric
_JUDGES = ((0.25, 0.1), (0.5, 0.1), (1.0, 1.0))  # the same of the machines that judge it
_SURE, _LEAST_GAIN = 3.0, 0.02  # standard errors, and share of the squared error, that a metric must gain
_POWER = 0.35  # of the mean squared derivatives: between the root that xRFM takes and the fourth root


class Look(NamedTuple):
    """A view, and for the rows whose targets taught it the views without them.

    Attributes:
        view: What the machine looks through.
        honest: Numbers of rows, and the view that is to predict them when they are left out; the rest take ``view``.
    """

    view: View
    honest: list[tuple[Tensor, View]]


class Trial(NamedTuple):
    """A machine that was tried on few rows.

    Attributes:
        look: Number of its look.
        kernel: k.
        penalty: The ridge of least leave-one-out error.
        error: Mean squared error of the rows left out.
        held_out: Their predictions, ``(m, c)``.
    """

    look: int
    kernel: Kernel
    penalty: float
    error: float
    held_out: Tensor


def try_machines(
    x: Tensor, y: Tensor, few: Tensor, weight: Tensor | None = None, folds: Folds | None = None
) -> tuple[list[Look], list[Trial]]:
    """Every kernel of :func:`table_kernels` on every view of the columns.

    The views: columns on one scale; long tails straightened, where there are any; columns weighted by how much the
    best Gaussian machine on few rows moves with each.

    Args:
        x: Rows, ``(n, d)``.
        y: Centred targets, ``(n, c)``.
        few: Numbers of the rows that are used, in random order; all rows teach the scales, which know no weights.
        weight: Weights of all rows, ``(n,)``; None for 1.
        folds: Folds of all rows, that are left out together; None for one row at a time.
    """
    looks = [Look(View.of(x), [])]
    straight = View.of(x, straighten=True)
    if len(straight.columns):
        looks.append(Look(straight, []))
    rows, target, weight = x[few], y[few], weight_of(weight, few)
    folds = None if folds is None else folds.of(few)
    tried = [
        trial
        for i, look in enumerate(looks)
        for trial in _try_kernels(i, look, rows, target, few, weight, folds, linear=True)
    ]
    smooth = min((trial for trial in tried if isinstance(trial.kernel, RBF)), key=lambda trial: trial.error)
    if x.shape[1] > 1:
        # columns weighted by all few rows; each half of them is predicted through the weights of the other
        view = looks[smooth.look].view
        z, half = view(rows), torch.arange(len(few)) < len(few) // 2
        if folds is not None and folds.number.min() < folds.number.max():
            half = folds.number < folds.number.unique().double().quantile(0.5)

        def weigh(part: Tensor) -> View:
            return view.weighted(
                relevance(smooth.kernel, z[part], target[part], smooth.penalty, weight_of(weight, part))
            )

        honest = []
        if min(int(half.sum()), int((~half).sum())) > 1:
            honest = [(few[half], weigh(~half)), (few[~half], weigh(half))]
        looks.append(Look(weigh(torch.ones_like(half)), honest))
        tried += _try_kernels(len(looks) - 1, looks[-1], rows, target, few, weight, folds, linear=False)
    return looks, tried


def try_metric(
    x: Tensor,
    y: Tensor,
    order: Tensor,
    few: int,
    looks: list[Look],
    tried: list[Trial],
    weight: Tensor | None = None,
    folds: Folds | None = None,
) -> tuple[Look, list[Trial]] | None:
    """The view that turns the columns to the directions along which the target moves, and machines on it.

    A sine of a sum of ten columns is noise to a machine that sees all ten: its directions must be learned first. None
    where the rows cannot tell that this helps, as on most tables.

    Args:
        x: Rows, ``(n, d)``.
        y: Centred targets, ``(n, c)``.
        order: Numbers of the rows that teach the metric, in random order.
        few: So many of these, the first, have tried the other machines.
        looks: The other views.
        tried: The machines on them.
        weight: Weights of all rows, ``(n,)``; None for 1.
        folds: Folds of all rows, that are left out together; None for one row at a time.
    """
    if len(order) < _ROTATED_ROWS or x.shape[1] > _ROTATED_COLUMNS:
        return None
    if sum(len(column.unique()) > _NUMBERS for column in x[order].mT) < _NUMBERS:
        return None
    numbers, half = order[:few], len(order) // 2
    first, second = order[:half], order[half:]
    rows, target, own = x[numbers], y[numbers], weight_of(weight, numbers)
    folds = None if folds is None else folds.of(numbers)
    # It starts from the view on which a Gaussian machine did best.
    plain = [trial for trial in tried if isinstance(trial.kernel, RBF) and not looks[trial.look].honest]
    if not plain:
        return None
    view = looks[min(plain, key=lambda trial: trial.error).look].view

    def rotate(taught: Tensor, plan: tuple[float, float]) -> View | None:
        rotation = learn_rotation(view(x[taught]), y[taught], *plan, weight_of(weight, taught))
        return None if rotation is None else view.weighted(rotation)

    # Metrics of the second half predict the first: the best of some machines in each.
    judged = []
    for plan in _PLANS:
        rotated = rotate(second, plan)
        if rotated is None:
            return None
        z = rotated(rows)
        middle = median_distance(z)
        for multiple, penalty in _JUDGES:
            kernel = RBF(1 / (2 * (multiple * middle) ** 2))
            other = predict_left_out(kernel, z, target, penalty, torch.arange(half), weight=own, folds=folds)
            error = float(weighted_mean((target[:half] - other).square(), weight_of(weight, first)).mean())
            judged.append((error, plan, rotated, other))
    _, plan, by_second, other = min(judged, key=lambda judgment: judgment[0])

    # It must add to the best combination of the other machines.
    shares = convex_weights([trial.held_out for trial in tried], target, own)
    blend = torch.einsum("m,mrc->rc", shares, torch.stack([trial.held_out for trial in tried]))[:half]
    truth, w = target[:half], weight_of(weight, first)
    with_it = blend + shrunk_share(blend, other, truth, w) * (other - blend)
    before, after = (truth - blend).square().sum(1), (truth - with_it).square().sum(1)
    gain = before - after if w is None else w * (before - after)
    least = max(_SURE * float(gain.std(correction=0)) / half**0.5, _LEAST_GAIN * float(before.mean()))
    if not float(gain.mean()) > least:
        return None

    # All rows teach the metric that stays; each half is predicted through that of the other.
    by_first, by_all = rotate(first, plan), rotate(order, plan)
    if by_first is None or by_all is None:
        return None
    look = Look(by_all, [(first, by_second), (second, by_first)])
    return look, _try_kernels(len(looks), look, rows, target, numbers, own, folds, linear=False)


def keep_heavy(tried: Sequence[Trial], y: Tensor, weight: Tensor | None = None) -> list[Trial]:
    """The machines that carry weight in the best convex combination of predictions, the heaviest first."""
    shares = convex_weights([trial.held_out for trial in tried], y, weight)
    kept = [tried[i] for i in shares.argsort(descending=True).tolist() if float(shares[i]) > _LEAST_SHARE]
    return kept or [min(tried, key=lambda trial: trial.error)]


def retry(
    looks: list[Look],
    tried: list[Trial],
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    folds: Folds | None = None,
) -> list[Trial]:
    """The machines that carry weight on other, and more, rows, with ridges tuned there."""
    seen = [look.view(x) for look in looks]
    again = []
    for trial in tried:
        gram = trial.kernel(seen[trial.look])
        fit = tune_penalty(gram, y, trial.penalty, weight=weight, where="StackedRidge", folds=folds)
        again.append(Trial(trial.look, trial.kernel, fit.penalty, fit.error, fit.held_out))
    return keep_heavy(again, y, weight)


def convex_weights(
    predictions: Sequence[Tensor], y: Tensor, weight: Tensor | None = None, *, shrink: float = 0.0
) -> Tensor:  # (m,)
    r"""Weights :math:`w \ge 0` of sum 1 with the least :math:`\|y - \sum_m w_m p_m\|^2`.

    Args:
        predictions: m predictions ``(n, c)`` of rows left out.
        y: Targets ``(n, c)``.
        weight: Weights of the rows in the norm, ``(n,)``; None for 1.
        shrink: Share of the way to equal weights.
    """
    if weight is not None:
        root = weight.sqrt()[:, None]
        predictions, y = [root * p for p in predictions], root * y
    columns = torch.stack([p.flatten() for p in predictions], 1).numpy()  # (n c, m)
    m = columns.shape[1]
    moments, target = columns.T @ columns, columns.T @ y.flatten().numpy()
    size = max(float(np.trace(moments)) / m, 1e-300)
    factor = np.linalg.cholesky(moments + 1e-8 * size * np.eye(m)).T
    heavy = 1e3 * np.sqrt(size)  # of the row that asks for the sum 1
    system = np.vstack((factor, heavy * np.ones(m)))
    w = nnls(system, np.append(np.linalg.solve(factor.T, target), heavy))[0]
    w = w / w.sum() if w.sum() > 0 else np.ones(m) / m
    return torch.from_numpy((1 - shrink) * w + shrink / m)


def _try_kernels(
    number: int,
    look: Look,
    x: Tensor,
    y: Tensor,
    few: Tensor,
    weight: Tensor | None,
    folds: Folds | None,
    *,
    linear: bool,
) -> list[Trial]:
    return try_kernels(number, look, table_kernels(look.view(x), linear=linear), x, y, few, weight, folds)


def try_kernels(
    number: int,
    look: Look,
    kernels: Sequence[Kernel],
    x: Tensor,
    y: Tensor,
    few: Tensor,
    weight: Tensor | None,
    folds: Folds | None = None,
) -> list[Trial]:
    """The machines of these kernels on one look: its number, rows ``(m, d)``, targets, row numbers, weights, folds.

    Rows whose targets taught the view are predicted through that of other rows.
    """
    z = look.view(x)
    trials = []
    for kernel in kernels:
        fit = dual_path(kernel(z), y, weight=weight, folds=folds, rough=True)
        held_out = fit.held_out
        for rows, view in look.honest:
            inside = torch.isin(few, rows).nonzero()[:, 0]
            if not len(inside):
                continue
            other = predict_left_out(kernel, view(x), y, fit.penalty, inside, weight=weight, folds=folds)
            held_out = held_out.index_copy(0, inside, other)
        error = float(weighted_mean((y - held_out).square(), weight).mean())
        trials.append(Trial(number, kernel, fit.penalty, error, held_out))
    return trials


def weight_of(weight: Tensor | None, rows: Tensor) -> Tensor | None:  # (n,), (r,) -> (r,)
    """The weights of some rows; None where rows have none."""
    return None if weight is None else weight[rows]


def relevance(
    kernel: Kernel, z: Tensor, y: Tensor, penalty: float, weight: Tensor | None = None
) -> Tensor:  # (n, d), (n, c) -> (d,)
    r"""A power of :math:`g_j = \frac1n \sum_i \|\partial f / \partial z_j (z_i)\|^2`, scaled to mean square 1.

    f is the machine of a Gaussian kernel :math:`\exp(-\gamma \|x - y\|^2)`, whose derivative is
    :math:`-2 \gamma \sum_i \alpha_i k(z, z_i) (z_j - z_{ij})`.
    """
    assert isinstance(kernel, RBF)
    gram = kernel(z)
    gamma = kernel.gamma(z)
    squares = z.new_zeros(z.shape[1])
    for weights in dual_weights(gram, y, penalty, weight).mT:
        pull = gram * weights
        squares += weighted_mean((2 * gamma * (pull @ z - z * pull.sum(1, keepdim=True))).square(), weight)
    share = (squares / squares.mean().clamp_min(1e-300)).clamp_min(_LEAST_RELEVANCE) ** _POWER
    return share / share.square().mean().sqrt()
