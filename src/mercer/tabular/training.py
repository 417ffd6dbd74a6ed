"""How a table's model is made: from a frame at once, or from a sample that chooses and parts that are added."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import __version__, checks
from ..machines import StackedRidge
from ..machines.local import LocalStack
from ..machines.stacking import TREE_CLASSES, TREE_COLUMNS
from .columns import Preparation, Target, TargetMeans, Writing, find_target, name_by_text, present
from .familiarity import Familiarity
from .learner import Learner, Machine, cross_calibrated, one_hot
from .pair_means import PairMeans
from .scoring import FOLDS, beside, deal, deal_groups, rank_scores, score_classes, score_values, why_no_boosting
from .two_scales import TwoScales

STATE = ("preparation", "means", "target", "learner", "familiarity", "scores", "seconds", "rows", "notes", "made_with")
"""What a model holds."""

LEVEL = 0.9
"""Level of the intervals unless another is asked for."""

FEWEST = 5  # rows from which on they can be left out in turn
_LONG = 10  # seconds from which on a fit is announced with its time

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """Where the way of learning changes with the number of rows.

    Attributes:
        exact: Rows up to which all machines are fitted to all rows.
        leaf: Rows of a leaf of a longer table, in which a machine is fitted.
        left_out: Rows of a longer table that are not learned from, but weigh, calibrate and score.
        every_row: Rows up to which every row is left out in turn.
    """

    exact: int = 10_000
    leaf: int = 2500
    left_out: int = 2000
    every_row: int = 4000


class Training:
    """Learns from rows and ends with a model's state.

    Args:
        task: ``auto``, ``classification`` or ``regression``.
        random_state: Random seed.
        progress: Callback that receives progress messages.
        sizes: Where the way of learning changes; None for the defaults.
        device: Where matrices are factored.
        trees: Whether boosted trees may join the kernel machines: ``auto``, True, False.
        scored: Whether to score what is learned on rows left out; not needed where it predicts others to be scored.
    """

    preparation: Preparation
    means: TargetMeans
    target: Target
    learner: Learner
    familiarity: Familiarity
    scores: dict[str, Any]
    x: Tensor  # rows of `learn`, prepared
    y: Tensor  # their targets
    weight: Tensor | None  # of the rows that `read` has read
    groups: NDArray[Any] | None = None  # names of the groups of the rows that `read` is given
    periods: NDArray[Any] | None = None  # numbers of the periods of these rows, ascending

    def __init__(
        self,
        task: str,
        random_state: int,
        progress: Progress,
        sizes: Sizes | None = None,
        device: str = "cpu",
        trees: bool | str = False,
        scored: bool = True,
    ) -> None:
        self.trees, self.scored = trees, scored
        self.task, self.random_state, self.progress = task, random_state, progress
        self.device = checks.device("TabularModel", device, torch.float64)
        self.sizes = sizes or Sizes()
        self.notes: list[str] = []
        self.rows = 0
        self._start = time.perf_counter()

    def learn(
        self,
        frame: pd.DataFrame,
        target: str,
        weight: Any = None,
        *,
        writings: Mapping[str, Writing] | None = None,
        compare: bool = False,
        groups: NDArray[Any] | None = None,
        moments: NDArray[Any] | None = None,
    ) -> None:
        """Learn from a table.

        Args:
            frame: The rows.
            target: Name of a column.
            weight: The rows' weights ``(n,)``; None for 1.
            writings: For each column how it writes numbers and dates, where ``frame`` is a part of the table.
            compare: Score a linear model and boosted trees on the same rows, too.
            groups: Names of the rows' groups, ``(n,)``: rows of a group are left out together. None for no groups.
            moments: When the rows came, ``(n,)``: five periods, each predicted by those before it, choose the machines
                of a table that is not long. None where time does not matter.
        """
        weight = checks.weights("TabularModel", "sample_weight", weight, len(frame))
        content = frame
        if groups is not None:  # rows alike may be of different groups
            content = pd.concat((frame.reset_index(drop=True), pd.Series(groups)), axis=1)
        order = order_by_content(content, weight)
        self.groups = None if groups is None else groups[order]
        if moments is not None and len(frame) <= self.sizes.exact:
            # periods of equal numbers of rows, the earliest first
            ends = np.nanquantile(moments, np.arange(1, FOLDS) / FOLDS, method="lower")
            periods = np.searchsorted(np.unique(ends), np.nan_to_num(moments, nan=-np.inf))
            if periods.min() < periods.max():
                order = order[np.argsort(periods[order], kind="stable")]
                self.periods = periods[order]
        self.x, self.y = self.read(frame.iloc[order], target, None if weight is None else weight[order], writings)
        if len(self.x) <= self.sizes.exact:
            self.stack(self.x, self.y, self.weight, compare=compare)
        else:
            self.stack_long(self.x, self.y, self.weight, compare=compare)
        self.rows = len(self.x)

    def state(self) -> dict[str, Any]:
        """Everything that was learned."""
        versions = {"python": platform.python_version(), "mercer": __version__, "torch": str(torch.__version__)}
        self.made_with = {**versions, "numpy": np.__version__, "pandas": pd.__version__}
        self.seconds = time.perf_counter() - self._start
        return {name: getattr(self, name) for name in STATE}

    def read(
        self, frame: pd.DataFrame, target: str, weight: Any = None, writings: Mapping[str, Writing] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Learn columns and target; the rows as a matrix ``(n, d)`` and its target ``(n,)``.

        Rows without a target or of weight 0 are left out, as if they had not been there; the weights of the others,
        over their mean, are kept.

        Args:
            frame: The table.
            target: Name of a column.
            weight: The rows' weights; None for 1.
            writings: For each column how it writes numbers and dates, where ``frame`` is a part of the table.
        """
        frame = name_by_text(frame)
        target = find_target(frame.columns, target)
        # rows without a target have a say in how their columns are written
        known = {name: Writing.of(frame[name]) for name in frame.columns} if writings is None else writings
        there = present(frame[target])
        self.notes = [f"{_rows(int((~there).sum()))} without {target} left out."] * bool((~there).any())
        self._used, self.weight = there, None
        given = checks.weights("TabularModel", "sample_weight", weight, len(frame))
        if given is not None:
            weightless = there & (given == 0).numpy()
            self.notes += [f"{_rows(int(weightless.sum()))} of weight 0 left out."] * bool(weightless.any())
            self._used = there & ~weightless
            used = given[torch.from_numpy(self._used)]
            self.weight = used / used.mean()
        frame = frame[self._used]
        if len(frame) < 2:
            need = f"at least two rows must have a value in {target!r}"
            raise ValueError(checks.sentence("TabularModel", need, len(frame)))
        self.target = Target.of(frame[target], task=self.task, writing=known.get(target))
        read = np.asarray(self.target.known(frame[target]))  # a stray word among numbers is not
        frame = frame[read]
        self.weight = None if self.weight is None else self.weight[torch.from_numpy(read)]
        self._used = np.asarray(self._used).copy()
        self._used[self._used] = read
        columns = frame.drop(columns=target)
        self.preparation = Preparation().fit(columns, known)
        y = self.target.encode(frame[target])
        self.notes += [*self.target.notes, *self.preparation.notes, *_lonely(self.target, y)]
        self.means = PairMeans()
        fold = self.fold(y)
        more = self.means.fit_transform(columns, self.preparation.columns, self._targets(y), fold, self.weight)
        return torch.cat((self.preparation.prepare(columns).x, more), 1), y

    def stack(self, x: Tensor, y: Tensor, weight: Tensor | None = None, *, compare: bool = False) -> StackedRidge:
        """Fit the machines to all rows given, and score them on rows left out; scores count each row once."""
        fold = self.fold(y)
        self.progress(_announce(x, self.sizes.exact))
        choose_by = "rows"
        if self.groups is not None:
            choose_by = "folds"
        elif self.periods is not None and len(fold.unique()) > 1:
            choose_by = "earlier folds"

        def learn(targets: Tensor) -> StackedRidge:
            stack = StackedRidge(every_row=self.sizes.every_row, trees=self.trees, random_state=self.random_state)
            return stack.fit(x, targets, fold, choose_by=choose_by, sample_weight=weight, device=self.device)

        stack = learn(self._targets(y))
        machine = stack if self._classes else TwoScales.of(stack, learn, y)
        self._finish(machine, machine.loo_, machine.held_out_, x, y, fold, machine.left_out_, stack.weight_, compare)
        return stack

    def stack_long(self, x: Tensor, y: Tensor, weight: Tensor | None = None, *, compare: bool = False) -> None:
        """Fit local machines and trees to all rows but some of each class, which weigh, calibrate and score them."""
        self.progress(_announce(x, self.sizes.exact))
        generator = torch.Generator().manual_seed(self.random_state)
        left_out = draw_evenly(y, self._classes, self.sizes.left_out, generator)
        fold = torch.zeros(len(x), dtype=torch.int64)
        fold[left_out] = 1
        few_classes = self._classes <= TREE_CLASSES
        affordable = bool(few_classes and x.shape[1] <= TREE_COLUMNS)
        stack = LocalStack.fit(
            x,
            self._targets(y),
            weight,
            left_out=left_out,
            trees=affordable if self.trees == "auto" else bool(self.trees),
            leaf=self.sizes.leaf,
            seed=self.random_state % 2**31,
            device=self.device,
        )
        self._finish(stack, stack.held_out_, stack.held_out_, x, y, fold, left_out, weight, compare)

    def _finish(
        self,
        machine: Machine,
        left_out: Tensor,
        held_out: Tensor,
        x: Tensor,
        y: Tensor,
        fold: Tensor,
        rows: Tensor,
        weight: Tensor | None,
        compare: bool,
    ) -> None:
        """Calibrate a machine by its predictions ``left_out`` of some rows, and score it by ``held_out``."""
        own = None if weight is None else weight[rows]
        # a row alone is predicted by the rest of its group; rows to come have groups of their own
        apart = None if self.groups is None and self.periods is None else (fold[rows], held_out)
        forward = self.periods is not None
        self.learner = Learner.of(machine, left_out, x[rows], y[rows], y, self._classes, own, apart, forward=forward)
        self.familiarity = Familiarity.of(self.learner.seen(x), torch.Generator().manual_seed(self.random_state))
        self.scores = self._scores(held_out, y, rows, fold, own) if self.scored else {}
        if not self._classes:
            endless = self.learner.why_endless(LEVEL)
            self.notes += [f"{endless}."] * bool(endless)
        if compare and self.scores["folds"]:
            classes = self.target.classes
            self.scores["beside"] = beside(x, y, fold, rows, classes, self.progress, weight)
            reason = why_no_boosting(x.shape[1], self._classes)
            self.notes += [reason] * bool(reason)

    def _scores(self, held_out: Tensor, y: Tensor, rows: Tensor, fold: Tensor, weight: Tensor | None) -> dict[str, Any]:
        if len(y) < FEWEST:
            return {"rows": len(y), "folds": 0, "note": "too few rows of each class to cross-validate"}
        counts = {"rows": len(rows), "folds": len(fold[rows].unique())}
        if self._classes:
            near = isinstance(self.learner.machine, LocalStack)
            p = cross_calibrated(held_out, y[rows], len(y), weight, near=near)
            scores = {**counts, **score_classes(p, y[rows], fold[rows])}
            if self._classes == 2:
                # One calibration keeps the order of the scores; those of five parts would mix it up.
                scores |= rank_scores(self.learner.answer(held_out), y[rows], fold[rows])
            return scores
        return {**counts, **score_values(self.learner.answer(held_out), y[rows])}

    def fold(self, y: Tensor) -> Tensor:  # (n,) -> (n,)
        """The fold of each row."""
        if self.groups is not None:
            return deal_groups(self.groups[self._used], self.random_state)
        if self.periods is not None:
            return torch.from_numpy(self.periods[self._used])
        return deal(y, self._classes, self.random_state)

    @property
    def _classes(self) -> int:
        return 0 if self.target.classes is None else len(self.target.classes)

    def _targets(self, y: Tensor) -> Tensor:
        return one_hot(y, self._classes)


def order_by_content(frame: pd.DataFrame, weight: Tensor | None = None) -> NDArray[np.int64]:  # (n,)
    """The rows in an order that depends on what they hold, not on where they stand: draws are the same for any order.

    Rows are ordered by a hash, so neighbors have nothing in common; numbers by that of their ranks, so that units
    do not matter either.
    """
    keys: NDArray[Any] = np.zeros(len(frame), dtype=np.uint64)
    if weight is not None:
        # by ranks, too: of weights only the ratios matter
        keys = pd.util.hash_array(pd.Series(weight.double().numpy()).rank(method="dense").to_numpy())
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        if column.dtype.kind in "iuf":
            column = column.rank(method="dense")
        keys = add_hash(keys, column)
    return np.argsort(keys, kind="stable")


def add_hash(keys: NDArray[Any], column: pd.Series[Any]) -> NDArray[Any]:  # (n,), (n,) -> (n,)
    """Hashes of rows that tell one more column: another column has another place in the sum."""
    try:
        values = pd.util.hash_pandas_object(column, index=False).to_numpy()
    except TypeError:  # lists and the like
        values = pd.util.hash_pandas_object(column.map(repr), index=False).to_numpy()
    hashes: NDArray[Any] = keys * np.uint64(0x9E3779B97F4A7C15) + values
    return hashes


def draw_evenly(y: Tensor, classes: int, most: int, generator: torch.Generator) -> Tensor:  # (n,) -> (r,)
    """Numbers of some rows, ascending, at most a fifth of the table; classes in proportion."""
    share = min(most / len(y), 0.2)
    order = torch.randperm(len(y), generator=generator)
    if not classes:
        return order[: round(share * len(y))].sort().values
    labels = y[order]
    drawn = []
    for number in range(classes):
        rows = order[labels == number]
        drawn.append(rows[: round(share * len(rows))])
    return torch.cat(drawn).sort().values


def expected_seconds(n: int, d: int, exact: int) -> float:
    """A rough guess at the time of a fit on one core: factors of all rows up to ``exact``, leaves of one size beyond.

    From fits of 300 to 20,000 rows of 12 features and one of 100,000; right within a factor of two or so.
    """
    rows = 2 + 1e-11 * n**3 if n <= exact else 3.3e-4 * n
    return (1 + d / 40) * rows


def _announce(x: Tensor, exact: int) -> str:
    seconds = expected_seconds(len(x), x.shape[1], exact)
    about = f", about {seconds:.0f} s" if seconds < 90 else f", about {seconds / 60:.0f} min"
    return f"learning from {_rows(len(x))}" + about * (seconds >= _LONG)


def _lonely(target: Target, y: Tensor) -> list[str]:
    if target.classes is None:
        return []
    counts = torch.bincount(y, minlength=len(target.classes))
    alone = [str(target.classes[i]) for i in (counts == 1).nonzero()[:, 0].tolist()]
    if not alone:
        return []
    return [f"{target.name}: {', '.join(alone[:5])} has a single row, so it cannot be both learned and checked."]


def _rows(count: int) -> str:
    return f"{count} row" + "s" * (count != 1)
