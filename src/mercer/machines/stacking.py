r"""Several kernel machines, averaged by how well each predicts rows left out.

1. *Few rows choose.* On at most 500 rows, every kernel for tables on every view of the columns
   (:func:`~mercer.machines.try_machines`) gets its ridge and its leave-one-out predictions from one eigendecomposition.
   A metric joins the views where it helps (:func:`~mercer.machines.trials.try_metric`): 1,000 rows teach it.
2. *Few machines stay*: those that carry weight in the best convex combination of these predictions.
3. *All rows teach them.* Each is fitted to all rows by a Cholesky factor; leave-one-out predictions come with it in
   closed form, and weigh the machines once more. The rows whose targets weighed the columns of a view are predicted
   through a view that other rows taught, or are not counted where there are enough others.
4. *Trees join where they add something.* Boosted trees are grown without each fold and get a share of the answer by
   their predictions of it. The share shrinks to 0 where the rows cannot tell that trees help; then no more folds are
   grown, on most short tables after the first.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import validate_data
from torch import Tensor

from .. import checks
from ..kernels import Kernel, Linear, Scaled
from ..linalg.blocks import block_rows, slices
from ..linalg.cholesky import cholesky
from ..rows.loading import Data
from ..storage.savable import Savable
from .calibration import Calibration
from .dual import Folds, weighted_mean
from .kernel_ridge import seeded
from .selection import candidate_kernels
from .solution import table_product
from .trees import Boosting, are_classes, check_trees, shrunk_share
from .trials import Look, Trial, convex_weights, keep_heavy, retry, try_kernels, try_machines, try_metric, weight_of
from .validation import read_training
from .views import View

CHOOSE_BY = ("rows", "folds", "earlier folds")
CHOOSING_ROWS = 500
_METRIC_ROWS = 1000  # rows that teach a metric
MOST_ROWS = 12_000
"""Rows whose Gram matrix is still cheap to factor."""
_LEFT_OUT = 2000  # rows that are left out, of many
_MACHINES, _LARGE_MACHINES = 5, 3  # that stay, of few and of many rows
_FEW_ROWS, _MANY_ROWS = 600, 2500  # rows up to which factors are in float64, and up to which float32 must be far below
_ROUGH = 100  # times the rounding: so far
_REFINED_FROM, _REFINING_ROWS = 2000, 1200  # rows from which on more rows choose, and how many
_MOST_COLUMNS = 200  # of a caller's view, beyond which the distance column by column costs more than it gives
_SHRINK = 0.05  # of the weights towards equal ones
_FOLDS = 5
_LEAST_LEVEL = 1e-12  # of the inverse, summed over the rows that set a level
_LEAST_WEIGHT = 1e-9  # of a row, where the mean is 1
_TREE_ROWS, TREE_COLUMNS, TREE_CLASSES = (
    200,
    1000,
    10,
)  # trees of fewer rows say little; of more columns they take long


@dataclass(frozen=True)
class StackedMachine(Savable):
    r"""One machine: :math:`f(x) = b + \sum_i \alpha_i k(v(x_i), v(x))`.

    Attributes:
        view: Number of its view v.
        kernel: k.
        penalty: Ridge.
        weights: :math:`\alpha`, ``(n, c)``.
        level: b, ``(c,)``, above the targets' mean: 0 but for a linear kernel.
        error: Mean squared error on rows left out.
    """

    view: int
    kernel: Kernel
    penalty: float
    weights: Tensor
    level: Tensor
    error: float


class StackedRidge(Savable, BaseEstimator):  # type: ignore[misc]
    r"""Kernel ridge machines with chosen kernels: :math:`f = \bar y + \sum_m w_m f_m`, :math:`w_m \ge 0`, sum 1.

    Use it for rows of numbers where you do not know the kernel; the estimators of `mercer.tabular` stand on it.

    Boosted trees, where they join, get the share t and the machines share :math:`1 - t`.

    Args:
        every_row: Rows up to which every one is left out in turn; beyond, 2,000 of one fold.
        trees: Whether boosted trees may join: True, False, or ``auto``: from 200 rows on, up to 1,000 columns and 10
            classes.
        random_state: Seed of the rows that choose, and of those left out where there are many; None for fresh
            randomness.

    Attributes:
        views_: The views of the columns.
        machines_: The machines that stayed.
        shares_: Their weights w, ``(m,)``.
        trees_: The boosted trees; None where they have no share.
        tree_share_: Share t of the trees; 0 where there are none.
        rows_: Training rows, ``(n, d)``.
        mean_: :math:`\bar y`, ``(c,)``.
        left_out_: Numbers of the rows that were left out in turn, ``(r,)``: all; from 2,000 on, those that had no part
            in the choice; of many, one fold of these.
        loo_: Their predictions, each without its own row, ``(r, c)``; the weights w, too, come from other rows.
        held_out_: The same with the whole fold of the row left out.
        weight_: Weights of the training rows, ``(n,)``, of mean 1; None where all are equal.
        looks: Every view that was tried; not saved.
        trials: Every machine that was tried on few rows; not saved.

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
    weight_: Tensor | None = None
    trees_: Boosting | None = None
    tree_share_: float = 0.0
    looks: list[Look]
    trials: list[Trial]

    flat_: bool = False  # whether the targets came as (n,)
    __metadata_request__fit = __metadata_request__predict = {"x": UNUSED}  # noqa: RUF012 - the rows, called X there

    def __init__(self, *, every_row: int = 4000, trees: bool | str = False, random_state: Any = None) -> None:
        self.every_row, self.trees, self.random_state = every_row, trees, random_state

    def fit(  # (n, d), (n, c), (n,)
        self,
        x: Data,
        y: Data,
        fold: Tensor | None = None,
        *,
        choose_by: str = "rows",
        sample_weight: Any = None,
        looks: Sequence[Look] = (),
        device: torch.device | str = "cpu",
    ) -> Self:
        """Choose and learn.

        Args:
            x: Rows: a tensor, an array or a frame.
            y: Targets ``(n,)`` or ``(n, c)``: numbers, or one column of 0 and 1 for each class.
            fold: Fold of each row, ``0..4``; None deals them in turn.
            choose_by: Predictions that choose kernels, ridges and shares: of each row without it, ``rows``; without its
                fold, ``folds``, where rows of a fold are alike and rows to come are not; or by the folds before it,
                ``earlier folds``, where rows to come are later. Then folds must ascend.
            sample_weight: Weights ``(n,)``: row i has the ridge over its weight as noise, and counts so many times
                in means, errors and shares; only ratios matter. A row of weight 2 is not two rows: leave-one-out would
                leave only one of these out.
            looks: Views that the caller has learned, each with those that predict the rows that taught it; more
                kernels are tried on them than on the views of a table.
            device: Where the Gram matrices of all rows are factored; what was learned is on the CPU.
        """
        training = read_training(self, None, x, y, None, reset=True)
        x, y, self.flat_ = training.x[:].double(), training.y, training.flat
        if len(x) < 2:
            raise ValueError(checks.sentence("StackedRidge", "x must have at least two rows", tuple(x.shape)))
        fold = torch.arange(len(x)) % _FOLDS if fold is None else fold
        checks.choice("StackedRidge", "choose_by", choose_by, CHOOSE_BY)
        forward = choose_by == "earlier folds"
        folds = None if choose_by == "rows" else Folds(fold, forward)
        if forward and (bool((fold.diff() < 0).any()) or int(fold[0]) == int(fold[-1])):
            raise ValueError(
                checks.sentence("StackedRidge", "fold must ascend, and hold several numbers", fold.tolist())
            )
        if isinstance(self.random_state, numbers.Integral):
            generator = torch.Generator().manual_seed(int(self.random_state))
        else:
            generator = seeded(self.random_state)
        weight = checks.weights("StackedRidge", "sample_weight", sample_weight, len(x))
        if weight is not None:  # a row of weight 0 stays, with as good as no say
            weight = (weight / weight.mean()).clamp_min(_LEAST_WEIGHT)
        self.weight_ = weight
        trees = check_trees("StackedRidge", self.trees)
        if trees == "auto":
            few_classes = y.shape[1] <= (TREE_CLASSES if are_classes(y) else 1)
            trees = len(x) >= _TREE_ROWS and x.shape[1] <= TREE_COLUMNS and few_classes
        raw = y
        self.mean_ = weighted_mean(y, weight)
        y = y - self.mean_
        with torch.no_grad():
            order = torch.randperm(len(x), generator=generator)
            few, untaught = order[:CHOOSING_ROWS], order[CHOOSING_ROWS:]
            if forward:
                few, untaught = few.sort().values, untaught.sort().values
            self.looks, self.trials = try_machines(x, y, few, weight, folds)
            metric = None
            if not forward:  # a metric is judged on random halves
                metric = try_metric(x, y, order[:_METRIC_ROWS], len(few), self.looks, self.trials, weight, folds)
            if metric is not None:
                self.looks.append(metric[0])
                self.trials += metric[1]
                untaught = order[_METRIC_ROWS:]
            for look in looks:
                kernels = candidate_kernels(look.view(x[few]), most_columns=_MOST_COLUMNS)
                self.trials += try_kernels(
                    len(self.looks),
                    look,
                    kernels,
                    x[few],
                    y[few],
                    few,
                    weight_of(weight, few),
                    None if folds is None else folds.of(few),
                )
                self.looks.append(look)
            stay = keep_heavy(self.trials, y[few], weight_of(weight, few))
            left_out = torch.arange(len(x))
            if len(x) >= _REFINED_FROM:
                # A caller's views come with few thousand rows: all of them choose the ridges.
                more = untaught if looks else untaught[:_REFINING_ROWS]
                if forward:
                    more = untaught[torch.linspace(0, len(untaught) - 1, _REFINING_ROWS).long().unique()]
                again = None if folds is None else folds.of(more)
                stay = retry(self.looks, stay[:_MACHINES], x[more], y[more], weight_of(weight, more), again)
                left_out = untaught.sort().values
            if forward:  # nothing comes before the first fold, and little before the second
                periods = fold.unique()
                left_out = left_out[fold[left_out] > periods[0 if len(periods) == 2 else 1]]
                left_out = left_out[torch.linspace(0, len(left_out) - 1, self.every_row).long().unique()]
            elif len(x) > self.every_row:
                left_out = left_out[fold[left_out] == fold[order[-1]]][:_LEFT_OUT]
            stay = stay[: _MACHINES if len(x) <= self.every_row else _LARGE_MACHINES]
            self.left_out_ = left_out
            self._learn(x, y, raw, stay, fold, choose_by, bool(trees), torch.device(device))
        return self

    def predict(self, x: Data) -> Any:  # (n, d) -> (n, c)
        """The average of the machines, shaped like the targets; a tensor for a tensor, else an array."""
        if not hasattr(self, "machines_"):
            raise NotFittedError(checks.sentence("StackedRidge", "must be fitted first", "no fit", "Call fit(x, y)."))
        # No bound on their size: views hold cells within reach of those in training.
        if isinstance(x, Tensor):
            rows = checks.matrix("StackedRidge", "x", validate_data(self, x, reset=False, skip_check_array=True))
        else:
            rows = torch.from_numpy(np.array(validate_data(self, x, reset=False, dtype=np.float64)))
        with torch.no_grad():
            out = self._average(rows)
        out = out[:, 0] if self.flat_ else out
        return out if isinstance(x, Tensor) else out.numpy()

    def without(self, rows: Tensor) -> Callable[[Tensor], Tensor]:  # (r,)
        r"""A function of ``(r, d)`` that predicts its i-th row by the machines without training row ``rows[i]``.

        Without row i a machine is :math:`f(x) - k(x)^T [A^{-1}]_{\cdot i} \, \alpha_i / [A^{-1}]_{ii}`. Means, kernels,
        trees and shares stay.
        """
        pulls = []
        with torch.no_grad():
            for machine, anchors in ((m, self._anchors()[m.view]) for m in self.machines_):
                factor = ridge_factor(machine.kernel, anchors, machine.penalty, weight=self.weight_)
                units = torch.zeros(len(anchors), len(rows), dtype=factor.dtype)
                units[rows, torch.arange(len(rows))] = 1
                columns = torch.cholesky_solve(units, factor)  # (n, r)
                own = columns[rows, torch.arange(len(rows))]
                pulls.append((columns, machine.weights[rows].to(factor) / own[:, None]))

        def predict(x: Tensor) -> Tensor:  # (r, d) -> (r, c)
            views = [view(x) for view in self.views_]
            with torch.no_grad():
                total = self._average(x)
                for share, machine, (columns, ratio) in zip(self.shares_.tolist(), self.machines_, pulls, strict=True):
                    gram = machine.kernel(views[machine.view].to(columns), self._anchors()[machine.view].to(columns))
                    total = total - share * ((gram * columns.mT).sum(1, keepdim=True) * ratio).double()
            return total

        return predict

    def _average(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        parts = slices(len(x), block_rows(16 * len(self.rows_)))
        return self.mean_ + torch.cat([self._sum(x[part]) for part in parts])

    def _sum(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        views = [view(x) for view in self.views_]
        anchors = self._anchors()
        total = x.new_zeros(len(x), len(self.mean_), dtype=torch.float64)
        for share, machine in zip(self.shares_.tolist(), self.machines_, strict=True):
            z, seen = views[machine.view].to(machine.weights), anchors[machine.view].to(machine.weights)
            total += share * (machine.level + table_product(machine.kernel, z, seen, machine.weights).double())
        if self.trees_ is not None:
            total += self.tree_share_ * (self.trees_.predict(x) - self.mean_)
        return total

    def _anchors(self) -> list[Tensor]:
        """The training rows in each view, made when first asked for."""
        if "_seen" not in self.__dict__:
            self.__dict__["_seen"] = [view(self.rows_) for view in self.views_]
        seen: list[Tensor] = self.__dict__["_seen"]
        return seen

    def _learn(
        self,
        x: Tensor,
        y: Tensor,
        raw: Tensor,
        stay: list[Trial],
        fold: Tensor,
        choose_by: str,
        trees: bool,
        device: torch.device,
    ) -> None:
        """Fit the chosen machines to all rows, and weigh them and the trees by the rows left out."""
        self.rows_ = x.contiguous()
        used = sorted({trial.look for trial in stay})
        self.views_ = [self.looks[i].view for i in used]
        truth, weight = y[self.left_out_], weight_of(self.weight_, self.left_out_)
        forward = choose_by == "earlier folds"
        self.machines_, singles, folds = [], [], []
        for trial in stay:
            look = self.looks[trial.look]
            # rows whose targets taught the view are predicted through that of other rows
            taught = [(torch.isin(self.left_out_, rows), view) for rows, view in look.honest]
            taught = [(own, view) for own, view in taught if bool(own.any())]
            by_all = torch.ones(len(truth), dtype=torch.bool)
            for own, _ in taught:
                by_all &= ~own
            weights, level, single, whole = self._solve(look.view, trial, y, fold, by_all, choose_by, device)
            for own, view in taught:
                _, _, other, others = self._solve(view, trial, y, fold, own, choose_by, device)
                single[own], whole[own] = other[own], others[own]
            error = float(weighted_mean((truth - single).square(), weight).mean())
            number = used.index(trial.look)
            self.machines_.append(StackedMachine(number, trial.kernel, trial.penalty, weights, level, error))
            singles.append(single)
            folds.append(whole)
        judges = singles if choose_by == "rows" else folds
        self.shares_ = convex_weights(judges, truth, weight, shrink=_SHRINK)

        # trees get a share beside the machines
        self.trees_, self.tree_share_, boosted = None, 0.0, None
        if trees:
            blend = torch.einsum("m,mrc->rc", self.shares_, torch.stack(folds))
            self.tree_share_, boosted = self._grow_without_folds(x, raw, fold, forward, blend)
        if self.tree_share_:
            self.trees_ = Boosting.grow(x, raw, self.weight_)
        else:
            boosted = None
        self.shares_ = (1 - self.tree_share_) * self.shares_

        # what the average says of rows left out, by shares of others
        part = torch.arange(len(truth)) % _FOLDS if choose_by == "rows" else fold[self.left_out_]
        self.loo_, self.held_out_ = _cross_fit(judges, singles, folds, boosted, truth, weight, part)
        self.loo_, self.held_out_ = self.mean_ + self.loo_, self.mean_ + self.held_out_
        self.__dict__.pop("_seen", None)

    def _grow_without_folds(
        self, x: Tensor, y: Tensor, fold: Tensor, forward: bool, blend: Tensor
    ) -> tuple[float, Tensor]:  # (n, d), (n, c), (n,), (r, c) -> (r, c)
        """Share of trees beside ``blend``, what machines predict of the rows left out, and what trees predict of them.

        Trees are grown without a row's fold, or on the folds before it, and their predictions are less the mean. As
        soon as the folds so far cannot tell that trees add anything, the share is 0 and no other fold is grown.
        """
        boosted, share, classes = torch.zeros_like(blend), 0.0, are_classes(y)
        for number in fold[self.left_out_].unique().flip(0):  # the last one first: the most rows come before it
            others = fold < number if forward else fold != number
            if bool(others.any()):
                rows = fold[self.left_out_] == number
                trees = Boosting.grow(x[others], y[others], weight_of(self.weight_, others))
                boosted[rows] = trees.predict(x[self.left_out_[rows]]) - self.mean_

            # the share by the folds so far
            rows = fold[self.left_out_] >= number
            p, q, truth = blend[rows], boosted[rows], y[self.left_out_[rows]]
            weight = weight_of(self.weight_, self.left_out_[rows])
            share = shrunk_share(p, q, truth - self.mean_, weight)
            if share and classes:
                # squares do not see what a sure mistake costs: the log loss of calibrated scores must fall, too
                labels = truth[:, 0].long() if truth.shape[1] == 1 else truth.argmax(1)
                before, after = (log_losses(self.mean_ + s, labels, weight) for s in (p, p + share * (q - p)))
                gain = before - after
                if float(gain.mean()) <= float(gain.std(correction=0)) / len(gain) ** 0.5:
                    share = 0.0
            if not share:
                break
        return share, boosted

    def _solve(
        self, view: View, trial: Trial, y: Tensor, fold: Tensor, asked: Tensor, choose_by: str, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""Weights and level of a machine, and predictions of the rows left out: without the row, and without its fold.

        Machines stand on the targets' mean. A linear one has a level of its own, for columns have means of their own:
        with :math:`A = K + \lambda W^{-1}` it is :math:`b = 1^T A^{-1} y / 1^T A^{-1} 1`, and the weights are
        :math:`A^{-1} (y - b)`. The mean and b, too, are fitted without the rows left out. Predictions of these count
        where ``asked``, ``(r,)``, is true; where no row asks they are not made.
        """
        z, rows, forward = view(self.rows_).to(device), self.left_out_, choose_by == "earlier folds"
        targets = torch.cat((y, torch.ones_like(y[:, :1])), 1)
        linear = isinstance(trial.kernel, Linear)
        if isinstance(trial.kernel, Scaled):
            linear = isinstance(trial.kernel.kernel, Linear)
        weight = y.new_ones(len(y)) if self.weight_ is None else self.weight_
        apart = torch.zeros(len(z), dtype=torch.bool)
        if forward or not bool(asked.any()):
            factor = ridge_factor(trial.kernel, z, trial.penalty, weight=self.weight_)
        else:
            # what is left out comes last: these rows; where folds choose, all of their folds, whose rows are alike
            apart[rows] = True
            if choose_by == "folds":
                apart = torch.isin(fold, fold[rows].unique())
            order = torch.cat(((~apart).nonzero()[:, 0], apart.nonzero()[:, 0]))
            ordered = weight_of(self.weight_, order)
            factor = ridge_factor(trial.kernel, z[order.to(device)], trial.penalty, weight=ordered)

        # the machine itself; of periods, and where no row asks, that is nearly all
        if not bool(asked.any()):
            solved = torch.cholesky_solve(targets.to(factor), factor).contiguous()
            single, whole = torch.zeros_like(y[rows]), torch.zeros_like(y[rows])
        elif forward:
            solved, whole = solve_forward(factor, targets, rows, fold, None if linear else weight)
            single = whole.clone()
        else:
            in_order, single, whole = solve_left_out(factor, targets[order], fold[apart])
            solved = torch.empty_like(in_order)
            solved[order.to(device)] = in_order
        solved = solved.cpu()
        u, level = solved[:, -1:].double(), torch.zeros_like(y[0])
        if linear:
            level = solved[:, :-1].double().sum(0) / u.sum().clamp_min(_LEAST_LEVEL)
        weights = (solved[:, :-1] - u.to(solved) * level.to(solved)).contiguous()
        if forward or not bool(asked.any()):
            return weights, level, single, whole

        # Without some rows predictions rise by the level of the others times r1, the residual of the constant 1. Their
        # mean is (w'y - sum of w y) / (w'1 - sum of w) over these rows; b is (1' A^-1 y - sum of u r) / (1' A^-1 1 -
        # sum of u r1) with the residuals r of y.
        predictions = []
        for p, number in ((single.cpu(), torch.arange(len(single))), (whole.cpu(), fold[apart])):
            missed = targets[apart] - p
            if linear:
                sums, share = solved.double().sum(0), u[apart] * missed
            else:
                sums, share = weight @ targets, weight[apart, None] * targets[apart]
            number = number.unique(return_inverse=True)[1]
            others = sums - torch.zeros(int(number.max()) + 1, len(sums), dtype=sums.dtype).index_add_(0, number, share)
            levels = others[:, :-1] / others[:, -1:].clamp_min(_LEAST_LEVEL)
            levels[number.bincount() == len(z)] = 0  # there are no others
            predictions.append(p[:, :-1] + levels[number] * missed[:, -1:])
        single, whole = predictions
        places = torch.isin(apart.nonzero()[:, 0], rows)
        return weights, level, single[places], whole[places]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in ("_seen", "looks", "trials"):
            state.pop(name, None)
        return state


def ridge_factor(
    kernel: Kernel, z: Tensor, penalty: float, many: int = _MANY_ROWS, *, weight: Tensor | None = None
) -> Tensor:  # (n, d) -> (n, n)
    r"""Cholesky factor of :math:`K + \lambda W^{-1}`.

    In float32 from 600 rows on where its rounding is a hundredth of the ridge, and of more than ``many`` rows where it
    is below the ridge; else in float64.
    """
    noise = z.new_full((len(z),), penalty) if weight is None else penalty / weight.to(z.device)
    rounding = len(z) * torch.finfo(torch.float32).eps
    least = rounding if len(z) > many else _ROUGH * rounding
    rough = len(z) > min(many, _FEW_ROWS) and float(noise.min()) >= least
    for dtype in (torch.float32, torch.float64)[not rough :]:
        gram = kernel(z.to(dtype))
        gram.diagonal().add_(noise.to(dtype))
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(gram)
        if int(info) == 0:
            return factor
    return cholesky(gram, where="StackedRidge").factor


def solve_left_out(
    factor: Tensor, y: Tensor, fold: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # (n, n), (n, c), (r,) -> (n, c), (r, c), (r, c)
    r"""Weights :math:`\alpha = A^{-1} y` of :math:`A = K + \lambda W^{-1}`, and the last r rows predicted without them.

    The fit without the rows B misses them by :math:`([A^{-1}]_{BB})^{-1} \alpha_B`: with B one row, and with B a fold.
    Of the factor :math:`A = L L^T` the last block alone says what is left when all other rows are known:
    :math:`[A^{-1}]_{RR} = (L_{RR} L_{RR}^T)^{-1}` for the last rows R.
    """
    y, first = y.to(factor), len(factor) - len(fold)
    weights = torch.cholesky_solve(y, factor).contiguous()  # in the order it is loaded in, to the last bit
    inverse = torch.cholesky_inverse(factor[first:, first:])
    own, truth = weights[first:], y[first:].double()
    single = truth - (own / inverse.diagonal()[:, None]).double()
    whole = truth.clone()
    for number in fold.unique():
        rows = (fold == number).nonzero()[:, 0]
        whole[rows] -= torch.linalg.solve(inverse[rows][:, rows].double(), own[rows].double())
    return weights, single, whole


def solve_forward(
    factor: Tensor, y: Tensor, left_out: Tensor, fold: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor]:  # (n, n), (n, c + 1), (r,), (n,), (n,) -> (n, c + 1), (r, c)
    r"""Weights as of :func:`solve_left_out`, and predictions of rows left out by all rows of the folds before theirs.

    The leading part of the factor L is the factor of the leading rows: with :math:`v = L^{-1} y` the rows before p
    predict row i by :math:`L_{i, :p} v_{:p}`. The last column of y is 1 and not among the predictions; it says how they
    rise by a level of these rows. That is their mean, or where ``weight`` is None the level of least loss,
    :math:`v_1 \cdot v / v_1 \cdot v_1` with :math:`v_1 = (L^{-1} 1)_{:p}`. Folds ascend; rows of the first one get 0.
    """
    half = torch.linalg.solve_triangular(factor, y.to(factor), upper=False)
    weights = torch.cholesky_solve(y.to(factor), factor).contiguous()
    whole = torch.zeros(len(left_out), y.shape[1] - 1, dtype=torch.float64)
    for number in fold[left_out].unique():
        rows, p = fold[left_out] == number, int((fold < number).sum())
        if p:
            before, one = half[:p, :-1], half[:p, -1:]
            level = (one.mT @ before) / one.square().sum()
            if weight is not None:
                level = weighted_mean(y[:p, :-1], weight[:p]).to(factor)
            whole[rows] = (factor[left_out[rows], :p] @ (before - one * level) + level).double().cpu()
    return weights, whole


def log_losses(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:  # (r, c), (r,) -> (r,)
    """The log loss of each row left out, times its weight, after calibration; one column stands for two classes."""
    full = scores if scores.shape[1] > 1 else torch.cat((1 - scores, scores), 1)
    p: Tensor = Calibration.of(full, labels, shares=True, mixes=False, weight=weight)(full)
    losses = -p.gather(1, labels[:, None])[:, 0].log()
    return losses if weight is None else weight * losses


def _cross_fit(
    judges: Sequence[Tensor],
    singles: Sequence[Tensor],
    folds: Sequence[Tensor],
    boosted: Tensor | None,
    y: Tensor,
    weight: Tensor | None,
    part: Tensor,
) -> tuple[Tensor, Tensor]:  # (r, c), (r, c)
    """Averages of predictions without the row, and without its fold; each by shares of other parts' ``judges``."""
    single, whole = torch.zeros_like(y), torch.zeros_like(y)
    for i in part.unique():
        own, others = part == i, part != i
        use = others if others.any() else own
        w = weight_of(weight, use)
        shares = convex_weights([p[use] for p in judges], y[use], w, shrink=_SHRINK)
        lone = torch.einsum("m,mrc->rc", shares, torch.stack(list(singles)))
        blend = torch.einsum("m,mrc->rc", shares, torch.stack(list(folds)))
        if boosted is not None:
            share = shrunk_share(blend[use], boosted[use], y[use], w)
            lone, blend = lone + share * (boosted - lone), blend + share * (boosted - blend)
        single[own], whole[own] = lone[own], blend[own]
    return single, whole
