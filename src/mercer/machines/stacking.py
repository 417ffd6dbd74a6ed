r"""Several kernel machines, averaged by how well each predicts rows left out.

1. *Few rows choose.* On at most 500 rows, every kernel of the menu (:mod:`mercer.machines.menu`) on every view of the
   columns (:mod:`mercer.machines.views`) gets its ridge and its leave-one-out predictions from one eigendecomposition.
2. *Few machines stay*: those that carry weight in the best convex combination of these predictions.
3. *All rows teach them.* Each is fitted to all rows by a Cholesky factor; leave-one-out predictions come with it in
   closed form, and weigh the machines once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import nnls
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor

from .. import checks
from ..kernels import RBF, Kernel
from ..linalg import block_rows, cholesky, slices
from ..storage import Savable
from .dual import dual_path, tune_penalty
from .menu import kernels_on, relevance
from .views import View

__all__ = ["MOST_ROWS", "StackedMachine", "StackedRidge", "convex_weights"]

CHOOSING_ROWS = 500
MOST_ROWS = 12_000
"""Rows whose Gram matrix is still cheap to factor."""
_EVERY_ROW = 4000  # rows up to which every one is left out in turn; beyond, a random part of them
_LEFT_OUT = 2000
_MACHINES, _LARGE_MACHINES = 5, 3  # that stay, of few and of many rows
_DOUBLE = 2500  # rows up to which factors are in float64
_REFINED_FROM, _REFINING_ROWS = 2000, 1200  # rows from which on more rows choose, and how many
_LEAST_SHARE = 0.03  # a machine of less weight goes
_SHRINK = 0.05  # of the weights towards equal ones
_FOLDS = 5


@dataclass(frozen=True)
class StackedMachine(Savable):
    r"""One machine: :math:`f(x) = \sum_i \alpha_i k(v(x_i), v(x))`.

    Attributes:
        view: Number of its view v.
        kernel: k.
        penalty: Ridge.
        weights: :math:`\alpha`, ``(n, c)``.
        error: Mean squared error on rows left out.
    """

    view: int
    kernel: Kernel
    penalty: float
    weights: Tensor
    error: float


class StackedRidge(Savable, BaseEstimator):  # type: ignore[misc]
    r"""Kernel ridge machines with chosen kernels: :math:`f = \bar y + \sum_m w_m f_m`, :math:`w_m \ge 0`, sum 1.

    Args:
        random_state: Seed of the rows that choose, and of those left out where there are many.

    Attributes:
        views_: The views of the columns.
        machines_: The machines that stayed.
        shares_: Their weights w, ``(m,)``.
        rows_: Training rows, ``(n, d)``.
        mean_: :math:`\bar y`, ``(c,)``.
        left_out_: Numbers of the rows that were left out in turn, ``(r,)``: all, or of many rows one fold.
        loo_: Their predictions, each without its own row, ``(r, c)``; the weights w, too, come from other rows.
        held_out_: The same with the whole fold of the row left out.

    >>> x = torch.linspace(0, 6, 60, dtype=torch.float64)[:, None]
    >>> machine = StackedRidge(random_state=0).fit(x, x.sin())
    >>> bool((machine.predict(x) - x.sin()).abs().max() < 0.05)
    True
    """

    views_: list[View]
    machines_: list[StackedMachine]
    shares_: Tensor
    rows_: Tensor
    mean_: Tensor
    left_out_: Tensor
    loo_: Tensor
    held_out_: Tensor

    def __init__(self, *, random_state: int | None = None) -> None:
        self.random_state = random_state

    def fit(self, x: Tensor, y: Tensor, fold: Tensor | None = None) -> Self:  # (n, d), (n, c), (n,)
        """Choose and learn.

        Args:
            x: Rows.
            y: Targets: numbers, or one column of 0 and 1 for each class.
            fold: Fold of each row, ``0..4``; None deals them in turn.
        """
        x, y = _checked(x, y)
        fold = torch.arange(len(x)) % _FOLDS if fold is None else fold
        generator = torch.Generator().manual_seed(self.random_state or 0)
        self.mean_ = y.mean(0)
        y = y - self.mean_
        with torch.no_grad():
            few = torch.randperm(len(x), generator=generator)[:CHOOSING_ROWS]
            self.views_, stay = _choose(x, y, few)
            if len(x) >= _REFINED_FROM:
                more = torch.randperm(len(x), generator=generator)[:_REFINING_ROWS]
                stay = _refined(self.views_, stay, x[more], y[more])
            stay = stay[: _MACHINES if len(x) <= _EVERY_ROW else _LARGE_MACHINES]
            self._learn(x, y, stay, fold)
        self._forget_views()
        return self

    def predict(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        """The average of the machines."""
        if not hasattr(self, "machines_"):
            raise NotFittedError(checks.sentence("StackedRidge", "must be fitted first", "no fit", "Call fit(x, y)."))
        x = checks.matrix("StackedRidge", "x", x, columns=self.rows_.shape[1])
        with torch.no_grad():
            part = block_rows(16 * len(self.rows_))
            return self.mean_ + torch.cat([self._sum(x[rows]) for rows in slices(len(x), part)])

    def _sum(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        views = [view(x) for view in self.views_]
        anchors = self._anchors()
        total = x.new_zeros(len(x), len(self.mean_), dtype=torch.float64)
        for share, machine in zip(self.shares_.tolist(), self.machines_, strict=True):
            dtype = machine.weights.dtype
            gram = machine.kernel(views[machine.view].to(dtype), anchors[machine.view].to(dtype))
            total += share * (gram @ machine.weights).double()
        return total

    def _anchors(self) -> list[Tensor]:
        """The training rows in each view, made when first asked for."""
        if "_seen" not in self.__dict__:
            self.__dict__["_seen"] = [view(self.rows_) for view in self.views_]
        seen: list[Tensor] = self.__dict__["_seen"]
        return seen

    def _learn(self, x: Tensor, y: Tensor, stay: list[_Choice], fold: Tensor) -> None:
        """Fit the chosen machines to all rows, and weigh them by the rows left out."""
        n = len(x)
        self.rows_ = x.contiguous()
        self.left_out_ = torch.arange(n) if n <= _EVERY_ROW else (fold == fold[0]).nonzero()[:_LEFT_OUT, 0]
        seen = [view(x) for view in self.views_]
        truth, fold = y[self.left_out_], fold[self.left_out_]
        self.machines_, singles, folds = [], [], []
        for choice in stay:
            factor = _factor(choice.kernel, seen[choice.view], choice.penalty)
            weights, single, whole = _solve(factor, y, self.left_out_, fold)
            error = float((truth - single).square().mean())
            self.machines_.append(StackedMachine(choice.view, choice.kernel, choice.penalty, weights, error))
            singles.append(single)
            folds.append(whole)
        self.shares_ = convex_weights(singles, truth, shrink=_SHRINK)
        self.loo_ = self.mean_ + _cross_fitted(singles, singles, truth)
        self.held_out_ = self.mean_ + _cross_fitted(singles, folds, truth)

    def _forget_views(self) -> None:
        """Keep only the views that a machine looks through."""
        used = sorted({machine.view for machine in self.machines_})
        self.views_ = [self.views_[i] for i in used]
        self.machines_ = [
            StackedMachine(used.index(m.view), m.kernel, m.penalty, m.weights, m.error) for m in self.machines_
        ]
        self.__dict__.pop("_seen", None)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_seen", None)
        return state


class _Choice(NamedTuple):
    view: int
    kernel: Kernel
    penalty: float
    error: float
    held_out: Tensor  # (m, c)


def _choose(x: Tensor, y: Tensor, few: Tensor) -> tuple[list[View], list[_Choice]]:
    """The views, and the machines that carry weight on few rows, the heaviest first."""
    views = [View.of(x)]
    straight = View.of(x, straighten=True)
    if len(straight.columns):
        views.append(straight)
    target = y[few]
    tried = [choice for i, view in enumerate(views) for choice in _tried(i, view(x[few]), target, linear=True)]
    smooth = min((choice for choice in tried if isinstance(choice.kernel, RBF)), key=lambda c: c.error)
    if x.shape[1] > 1:
        seen = views[smooth.view](x[few])
        views.append(views[smooth.view].weighted(relevance(smooth.kernel, seen, target, smooth.penalty)))
        tried += _tried(len(views) - 1, views[-1](x[few]), target, linear=False)
    shares = convex_weights([choice.held_out for choice in tried], target)
    order = shares.argsort(descending=True).tolist()
    kept = [tried[i] for i in order if float(shares[i]) > _LEAST_SHARE]
    return views, kept or [min(tried, key=lambda choice: choice.error)]


def _refined(views: list[View], tried: list[_Choice], x: Tensor, y: Tensor) -> list[_Choice]:
    """The machines that few rows chose, with ridges and weights from more rows."""
    seen = [view(x) for view in views]
    found = []
    for choice in tried[:_MACHINES]:
        fit = tune_penalty(choice.kernel(seen[choice.view]), y, choice.penalty, where="StackedRidge")
        found.append(_Choice(choice.view, choice.kernel, fit.penalty, fit.error, fit.held_out))
    shares = convex_weights([choice.held_out for choice in found], y)
    return [found[i] for i in shares.argsort(descending=True).tolist() if float(shares[i]) > _LEAST_SHARE]


def _tried(number: int, z: Tensor, y: Tensor, *, linear: bool) -> list[_Choice]:
    found = []
    for kernel in kernels_on(z, linear=linear):
        fit = dual_path(kernel(z), y)
        found.append(_Choice(number, kernel, fit.penalty, fit.error, fit.held_out))
    return found


def _factor(kernel: Kernel, z: Tensor, penalty: float) -> Tensor:  # (n, d) -> (n, n)
    r"""Cholesky factor of :math:`K + \lambda I`; of many rows in float32, where its rounding is far below the ridge."""
    rounding = len(z) * torch.finfo(torch.float32).eps
    for dtype in (torch.float32, torch.float64)[len(z) <= _DOUBLE or penalty < rounding :]:
        gram = kernel(z.to(dtype))
        gram.diagonal().add_(penalty)
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(gram)
        if int(info) == 0:
            return factor
    return cholesky(gram, where="StackedRidge").factor


def _solve(
    factor: Tensor, y: Tensor, left_out: Tensor, fold: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # (n, n), (n, c), (r,), (r,) -> (n, c), (r, c), (r, c)
    r"""With :math:`A = K + \lambda I`: weights :math:`\alpha = A^{-1} y` and predictions of rows left out.

    The fit without the rows B misses them by :math:`([A^{-1}]_{BB})^{-1} \alpha_B`: with B one row, and with B a fold.
    """
    n = len(factor)
    y = y.to(factor)
    weights = torch.cholesky_solve(y, factor).contiguous()  # in the order it is loaded in, to the last bit
    if len(left_out) == n:
        inverse = torch.cholesky_inverse(factor)
    else:
        units = torch.zeros(n, len(left_out), dtype=factor.dtype)
        units[left_out, torch.arange(len(left_out))] = 1
        half = torch.linalg.solve_triangular(factor, units, upper=False)
        inverse = half.mT @ half
    own, truth = weights[left_out], y[left_out].double()
    single = truth - (own / inverse.diagonal()[:, None]).double()
    whole = truth.clone()
    for number in fold.unique():
        rows = (fold == number).nonzero()[:, 0]
        whole[rows] -= torch.linalg.solve(inverse[rows][:, rows].double(), own[rows].double())
    return weights, single, whole


def convex_weights(predictions: Sequence[Tensor], y: Tensor, *, shrink: float = 0.0) -> Tensor:  # (m,)
    r"""Weights :math:`w \ge 0` of sum 1 with the least :math:`\|y - \sum_m w_m p_m\|^2`.

    Args:
        predictions: m predictions ``(n, c)`` of rows left out.
        y: Targets ``(n, c)``.
        shrink: Share of the way to equal weights.
    """
    columns = torch.stack([p.flatten() for p in predictions], 1).numpy()  # (n c, m)
    m = columns.shape[1]
    moments, target = columns.T @ columns, columns.T @ y.flatten().numpy()
    size = max(float(np.trace(moments)) / m, 1e-300)
    root = np.linalg.cholesky(moments + 1e-8 * size * np.eye(m)).T
    heavy = 1e3 * np.sqrt(size)  # of the row that asks for the sum 1
    system = np.vstack((root, heavy * np.ones(m)))
    w = nnls(system, np.append(np.linalg.solve(root.T, target), heavy))[0]
    w = w / w.sum() if w.sum() > 0 else np.ones(m) / m
    return torch.from_numpy((1 - shrink) * w + shrink / m)


def _cross_fitted(singles: Sequence[Tensor], averaged: Sequence[Tensor], y: Tensor) -> Tensor:  # (r, c)
    """Averages of predictions, each row by weights that were fitted to the predictions of other rows."""
    part = torch.arange(len(y)) % _FOLDS
    out = torch.zeros_like(y)
    for i in part.unique():
        own, others = part == i, part != i
        use = others if others.any() else own
        shares = convex_weights([p[use] for p in singles], y[use], shrink=_SHRINK)
        out[own] = torch.stack([s * p[own] for s, p in zip(shares.tolist(), averaged, strict=True)]).sum(0)
    return out


def _checked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = checks.squarable("StackedRidge", "x", checks.matrix("StackedRidge", "x", x)).double()
    y = checks.squarable("StackedRidge", "y", checks.matrix("StackedRidge", "y", y)).double()
    checks.same_length("StackedRidge", "x", x, "y", y)
    if len(x) < 2:
        raise ValueError(checks.sentence("StackedRidge", "x must have at least two rows", tuple(x.shape)))
    return x, y
