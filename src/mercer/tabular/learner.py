"""From prepared rows to answers: probabilities that can be believed, numbers with the range they may lie in."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import checks
from ..distributed import alone
from ..kernels import RBF, Kernel, Laplacian, Matern
from ..machines import KernelRidge, StackedRidge
from ..machines.calibration import Calibration
from ..machines.local import LocalMachine, LocalStack
from ..machines.selection import median_distance
from ..machines.views import View
from ..storage.savable import Savable
from .two_scales import TwoScales

_BEYOND = 0.1  # of the training targets' range, that a prediction may lie outside it
_FOLDS = 5
_SPREAD_FROM, _SPREAD_ROWS = 60, 600  # left-out rows from which, and up to which, errors teach how wide intervals are
_SPREAD_FLOOR = 0.1  # of the median error, added to each: an error of 0 has no logarithm
_SPREAD_MOST = 2.0
_BOOSTING = "Boosted trees: steps at thresholds of the columns."
_PERIOD_ROWS = 20  # of the last period, that are enough for the widths of intervals


class Machine(Protocol):
    """What a learner stands on."""

    @property
    def rows_(self) -> Tensor:
        """The training rows that it keeps, ``(r, d)``."""

    def predict(self, x: Tensor) -> Tensor:
        """Scores ``(n, c)``."""


class Spread(Savable):
    r"""How far off predictions are at a row, over a typical row: :math:`s(z) = e^{g(z) - m}`, within :math:`e^{\pm 2}`.

    g is kernel ridge with a Laplacian kernel on the logarithms of left-out rows' absolute errors, m its median there.

    Args:
        machine: g.
        middle: m.
    """

    def __init__(self, machine: KernelRidge, middle: float) -> None:
        self.machine, self.middle = machine, middle

    @classmethod
    def of(
        cls, z: Tensor, errors: Tensor, fold: Tensor | None = None
    ) -> tuple[Spread | None, Tensor]:  # (r, d), (r,), (r,) -> (r,)
        """The machine, and s of these rows, each by rows without it; None and 1 where errors cannot be told apart.

        With ``fold``, s of a row comes from the rows of other folds: rows of one group are wrong together.
        """
        even = torch.ones_like(errors)
        if len(errors) < _SPREAD_FROM or not float(errors.median()) > 0:
            return None, even
        logs = (errors + _SPREAD_FLOOR * errors.median()).log()
        few = torch.linspace(0, len(z) - 1, min(len(z), _SPREAD_ROWS)).round().long()
        with alone():  # every rank has all of these rows
            kernel = Laplacian(1 / (1.5 * median_distance(z, 1.0)))
            machine = KernelRidge(kernel, solver="exact").fit(z[few], logs[few])
            found = machine.predict(z)
            found[few] = machine.loo_
            if fold is not None:
                for number in fold.unique().tolist():
                    inside, others = fold == number, few[fold[few] != number]
                    if len(others):
                        machine_of_others = KernelRidge(kernel, solver="exact").fit(z[others], logs[others])
                        found[inside] = machine_of_others.predict(z[inside])
        if float((logs - found).square().mean()) >= float((logs - logs.mean()).square().mean()):
            return None, even
        spread = cls(machine, float(found.median()))
        return spread, spread.scaled(found)

    def scaled(self, logs: Tensor) -> Tensor:
        """The factor s of each row's interval, from the predicted logs g of its error."""
        return (logs - self.middle).clamp(-_SPREAD_MOST, _SPREAD_MOST).exp()

    def __call__(self, z: Tensor) -> Tensor:  # (n, d) -> (n,)
        """The factor s of each row's interval."""
        return self.scaled(self.machine.predict(z))

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}


class Learner(Savable):
    r"""A machine with what was learned from its predictions of rows left out.

    Classes: probabilities by :class:`~mercer.machines.Calibration`. Numbers: predictions are held within the training
    targets' range and a tenth, and the interval of level p is :math:`f(x) \pm q \, s(x)`. q is the quantile of the
    left-out rows' absolute errors over s whose rank is :math:`\lceil p (r + 1) \rceil` of r (the jackknife); of
    weighted rows, the least error up to which the weights, of mean 1, add up to :math:`p (r + 1)`.

    Args:
        machine: Scores of prepared rows.
        view: The columns on one scale, for distances.
        calibration: For classes; None for numbers.
        errors: Absolute errors of rows left out over s, ascending, ``(r,)``; empty for classes.
        low: The least prediction; for numbers.
        high: The largest.
        spread: s; None for 1.
        error_weights: Weights of the rows of ``errors``, ``(r,)``, of mean 1; None for 1.
    """

    def __init__(
        self,
        machine: Machine,
        view: View,
        calibration: Calibration | None,
        errors: Tensor,
        low: float,
        high: float,
        spread: Spread | None = None,
        error_weights: Tensor | None = None,
    ) -> None:
        self.error_weights = error_weights
        self.machine, self.view, self.calibration = machine, view, calibration
        self.errors, self.low, self.high, self.spread = errors, low, high, spread

    @classmethod
    def of(
        cls,
        machine: Machine,
        left_out: Tensor,
        x: Tensor,
        truth: Tensor,
        y: Tensor,
        classes: int,
        weight: Tensor | None = None,
        apart: tuple[Tensor, Tensor] | None = None,
        *,
        forward: bool = False,
    ) -> Learner:
        """Learn from predictions ``(r, c)`` of rows left out.

        Args:
            machine: The machine.
            left_out: Its predictions without them.
            x: These rows, ``(r, d)``.
            truth: Their class numbers or values, ``(r,)``.
            y: Class numbers or values of all rows, ``(n,)``.
            classes: The number of classes; 0 for numbers.
            weight: Weights of the rows left out, ``(r,)``; None for 1.
            apart: Folds of the rows left out, ``(r,)``, and predictions ``(r, c)`` without the whole fold, which
                calibrate and set the widths where rows to come are like no row of another fold. None elsewhere.
            forward: Whether folds are periods. Rows of one period err alike: where those of the last one err more than
                all, they alone set the widths.
        """
        view = View.of(machine.rows_)
        fold, without_fold = (None, left_out) if apart is None else apart
        if classes:
            near = isinstance(machine, LocalStack)
            calibration = Calibration.of(
                class_scores(without_fold), truth, rows=len(y), shares=True, near=near, weight=weight
            )
            return cls(machine, view, calibration, left_out.new_zeros(0), -math.inf, math.inf)
        low, high = float(y.min()), float(y.max())
        reach = _BEYOND * (high - low)
        # counts and prices: what was never negative is not predicted so
        least = max(low - reach, 0.0) if low >= 0 else low - reach
        errors = (truth - left_out[:, 0].clamp(least, high + reach)).abs()
        spread, scale = Spread.of(view(x), errors, fold)
        if apart is not None:
            errors = (truth - without_fold[:, 0].clamp(least, high + reach)).abs()
        errors = errors / scale
        if forward and fold is not None:
            last = fold == fold.max()
            if int(last.sum()) >= _PERIOD_ROWS and errors[last].quantile(0.9) > errors.quantile(0.9):
                errors, weight = errors[last], None if weight is None else weight[last]
        errors, order = errors.sort()
        weight = None if weight is None else (weight / weight.mean())[order]
        return cls(machine, view, None, errors, least, high + reach, spread, weight)

    def predict(self, x: Tensor) -> Tensor:
        """Probabilities ``(n, c)``, or numbers ``(n,)``."""
        return self.answer(self.machine.predict(x))

    def answer(self, scores: Tensor) -> Tensor:
        """The same from the machine's scores ``(n, c)``."""
        if self.calibration is None:
            return scores[:, 0].clamp(self.low, self.high)
        found: Tensor = self.calibration(class_scores(scores))
        return found

    def scores(self, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
        """The machine's own scores, before calibration: what is explained."""
        return self.machine.predict(x)

    @property
    def rows(self) -> Tensor:
        """Training rows that the machine keeps, ``(r, d)``."""
        return self.machine.rows_

    @property
    def width(self) -> int:
        """Features of a row, d."""
        return int(self.rows.shape[1])

    def seen(self, x: Tensor) -> Tensor:  # (n, d) -> (n, d)
        """The rows on scales where distances mean something."""
        found: Tensor = self.view(x)
        return found

    def parts(self) -> list[dict[str, Any]]:
        """Each machine in words, with its share of the answer, its ridge and its error on rows left out."""
        machine = self.machine
        if isinstance(machine, LocalStack):
            lines = []
            for share, member in zip(machine.shares.tolist(), machine.members, strict=True):
                what = _BOOSTING
                if isinstance(member, LocalMachine):
                    leaves = f"; {len(member.anchors)} parts of the table, each learned by itself"
                    what = f"{_words(member.kernels[0])}{_seen_through(member.view)}{leaves}."
                lines.append({"what": what, "share": share, "penalty": None, "error": None})
            return sorted(lines, key=lambda line: -float(line["share"] or 0))
        if isinstance(machine, TwoScales):
            logs = _list_parts(machine.curved, machine.share, " Of the target's logarithm.")
            lines = [*_list_parts(machine.plain, 1 - machine.share), *({**line, "error": None} for line in logs)]
            return sorted(lines, key=lambda line: -float(line["share"]))
        assert isinstance(machine, StackedRidge)
        return _list_parts(machine)

    def half_widths(self, x: Tensor, level: float) -> Tensor:  # (n, d) -> (n,)
        """Half the width of each row's interval: a quantile of left-out errors, times the row's factor."""
        if not 0 < level < 1:
            raise ValueError(checks.sentence("TabularModel", "level must lie between 0 and 1", level, "Say 0.9."))
        r = len(self.errors)
        place = math.ceil(level * (r + 1))
        if self.error_weights is not None:
            place = 1 + int((self.error_weights.cumsum(0) < level * (r + 1)).sum())
        q = math.inf if place > r else float(self.errors[place - 1])
        return q * self.spreads(x)

    def why_endless(self, level: float) -> str:
        """Why intervals of this level are infinite; empty where they are not."""
        r = len(self.errors)
        if math.ceil(level * (r + 1)) <= r:
            return ""
        most = math.floor(100 * r / (r + 1)) / 100
        return (
            f"low and high are infinite: {r} rows left out are too few for intervals of level {level:g}; "
            f"levels up to {most:g} are finite"
        )

    def spreads(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        """How far off predictions are at each row, over a typical row: s(x)."""
        if self.spread is None:
            return torch.ones(len(x), dtype=torch.float64)
        return self.spread(self.view(x))

    def get_state(self) -> dict[str, object]:
        """All of it is in the arguments."""
        return {}


def one_hot(y: Tensor, classes: int) -> Tensor:  # (n,) -> (n, c)
    """Targets of the machine: numbers as one column; two classes too; of more classes one column each."""
    if classes == 0:
        return y.double()[:, None]
    if classes == 2:
        return y.double()[:, None]
    return torch.nn.functional.one_hot(y, classes).double()


def class_scores(scores: Tensor) -> Tensor:  # (n, 1) or (n, c) -> (n, c)
    """One score for each class; of two classes the machine has only that of the second."""
    return scores if scores.shape[1] > 1 else torch.cat((1 - scores, scores), 1)


def cross_calibrated(
    scores: Tensor, y: Tensor, rows: int, weight: Tensor | None = None, *, near: bool = False
) -> Tensor:  # (r, c)
    """Probabilities of rows left out, each by a calibration that was fitted to the others; see :class:`Calibration`."""
    full = class_scores(scores)
    part = torch.arange(len(y)) % _FOLDS
    p = torch.zeros_like(full)
    mixes = True
    for number in part.unique():
        own, others = part == number, part != number
        use = others if others.any() else own
        some = None if weight is None else weight[use]
        calibration = Calibration.of(full[use], y[use], rows=rows, shares=True, mixes=mixes, near=near, weight=some)
        mixes = len(calibration.mixing) > 0  # the first part tells whether a map between classes is worth its cost
        p[own] = calibration(full[own])
    return p


def _list_parts(stack: StackedRidge, share: float = 1.0, more: str = "") -> list[dict[str, Any]]:
    """The members of a stack, which has this share of the answer, in words; the heaviest first, trees last."""
    found: list[dict[str, Any]] = []
    for i in stack.shares_.argsort(descending=True).tolist():
        one = stack.machines_[i]
        what = f"{_words(one.kernel)}{_seen_through(stack.views_[one.view])}.{more}"
        part = share * float(stack.shares_[i])
        found.append({"what": what, "share": part, "penalty": one.penalty, "error": one.error})
    if stack.trees_ is not None:
        part = share * stack.tree_share_
        found.append({"what": f"{_BOOSTING}{more}", "share": part, "penalty": None, "error": None})
    return found


def _words(kernel: Kernel) -> str:
    if isinstance(kernel, Laplacian):
        return "Near rows have near answers, column by column, with sharp edges"
    if isinstance(kernel, Matern):
        return "Near rows have near answers, with sharp edges"
    if isinstance(kernel, RBF):
        return "Near rows have near answers, smoothly"
    return "A weighted sum of the columns"


def _seen_through(view: View) -> str:
    straight = "; long tails are straightened" if len(view.columns) else ""
    if view.weight.ndim == 2:
        return f"{straight}; sums of columns that matter count more"
    weighted = "; columns that matter count more" if float(view.weight.max() - view.weight.min()) > 0 else ""
    return straight + weighted
