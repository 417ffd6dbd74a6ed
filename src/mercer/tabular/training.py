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
from torch import Tensor

from .. import __version__, checks
from ..distributed import shard
from ..linalg import slices
from ..machines import MOST_ROWS, StackedRidge
from .columns import Preparation, Target, TargetMeans, Writing, find_target, name_by_text, present
from .familiarity import Familiarity
from .learner import Learner, LongMachine, cross_calibrated, one_hot
from .scoring import beside, deal, score_classes, score_values, why_no_boosting

STATE = ("preparation", "means", "target", "learner", "familiarity", "scores", "seconds", "rows", "notes", "made_with")
"""What a model holds."""

LEVEL = 0.9
"""Level of the intervals unless another is asked for."""

FEWEST = 5  # rows from which on they can be left out in turn
_BLOCK = 20_000

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """Where the way of learning changes with the number of rows.

    Attributes:
        exact: Rows up to which all machines are fitted to all rows.
        first: Rows that choose the machine of a longer table.
        landmarks: Landmarks of that machine.
        every_row: Rows up to which every row is left out in turn.
    """

    exact: int = MOST_ROWS
    first: int = 5000
    landmarks: int = 2500
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
    """

    preparation: Preparation
    means: TargetMeans
    target: Target
    learner: Learner
    familiarity: Familiarity
    scores: dict[str, Any]
    weight: Tensor | None  # of the rows that `read` has read

    def __init__(
        self,
        task: str,
        random_state: int,
        progress: Progress,
        sizes: Sizes | None = None,
        device: str = "cpu",
        trees: bool | str = False,
    ) -> None:
        self.trees = trees
        self.task, self.random_state, self.progress = task, random_state, progress
        self.device = checks.device("TabularModel", device, torch.float64)
        self.sizes = sizes or Sizes()
        self.notes: list[str] = []
        self.rows = 0
        self._start = time.perf_counter()

    def learn(self, frame: pd.DataFrame, target: str, weight: Any = None, *, compare: bool = False) -> None:
        """Learn from a whole table; ``weight`` are the rows' weights ``(n,)``."""
        x, y = self.read(frame, target, weight)
        w = self.weight
        if len(x) <= self.sizes.exact:
            self.stack(x, y, w, compare=compare)
            self.rows = len(x)
            return
        few = self._few(len(x))
        self._first(x[few], y[few], None if w is None else w[few], compare=compare)
        rest = torch.ones(len(x), dtype=torch.bool)
        rest[few] = False
        for part in slices(int(rest.sum()), _BLOCK):
            self._add(x[rest][part], y[rest][part], None if w is None else w[rest][part])

    def choose(
        self, sample: pd.DataFrame, target: str, weight: Any = None, writings: Mapping[str, Writing] | None = None
    ) -> list[int]:
        """Learn from some rows of a long table what its machine is to be; the index of those it has learned from.

        Args:
            sample: The rows.
            target: Name of a column.
            weight: The rows' weights; None for 1.
            writings: For each column how the whole table writes numbers and dates.
        """
        x, y = self.read(sample, target, weight, writings)
        few = self._few(len(x))
        self._first(x[few], y[few], None if self.weight is None else self.weight[few], compare=False)
        index: list[int] = sample.index[self._used][few.numpy()].tolist()
        return index

    def add(self, frame: pd.DataFrame, weight: Any = None) -> None:
        """Learn from more rows; all must have a target that is known."""
        w = None
        if weight is not None:
            w = torch.from_numpy(np.array(weight, dtype=np.float64)) / self._unit
            frame, w = frame[(w > 0).numpy()], w[w > 0]
        x = torch.cat((self.preparation.prepare(frame).x, self.means.transform(frame)), 1)
        self._add(x, self.target.encode(frame[self.target.name]), w)

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
        self._used, self.weight, self._unit = there, None, 1.0
        given = checks.weights("TabularModel", "sample_weight", weight, len(frame))
        if given is not None:
            weightless = there & (given == 0).numpy()
            self.notes += [f"{_rows(int(weightless.sum()))} of weight 0 left out."] * bool(weightless.any())
            self._used = there & ~weightless
            used = given[torch.from_numpy(self._used)]
            self._unit = float(used.mean()) if len(used) else 1.0
            self.weight = used / self._unit
        elif weight is not None:
            self._unit = float(np.asarray(weight).mean())
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
        self.means = TargetMeans()
        fold = self.fold(y)
        more = self.means.fit_transform(columns, self.preparation.columns, self._targets(y), fold, self.weight)
        return torch.cat((self.preparation.prepare(columns).x, more), 1), y

    def stack(self, x: Tensor, y: Tensor, weight: Tensor | None = None, *, compare: bool = False) -> StackedRidge:
        """Fit the machines to all rows given, and score them on rows left out; scores count each row once."""
        fold = self.fold(y)
        self.progress(f"learning from {_rows(len(x))}")
        stack = StackedRidge(every_row=self.sizes.every_row, trees=self.trees, random_state=self.random_state)
        stack.fit(x, self._targets(y), fold, sample_weight=weight, device=self.device)
        out = stack.left_out_
        self.learner = Learner.of(stack, stack.loo_, out, y, self._classes, stack.weight_)
        self.familiarity = Familiarity.of(self.learner.seen(x), torch.Generator().manual_seed(self.random_state))
        self.scores = self._scores(stack, y, fold)
        if not self._classes:
            endless = self.learner.why_endless(LEVEL)
            self.notes += [f"{endless}."] * bool(endless)
        if compare and self.scores["folds"]:
            self.scores["beside"] = beside(x, y, fold, out, self.target.classes, self.progress, weight)
            reason = why_no_boosting(x.shape[1], self._classes)
            self.notes += [reason] * bool(reason)
        return stack

    def _first(self, x: Tensor, y: Tensor, weight: Tensor | None, *, compare: bool) -> None:
        """Let some rows choose, and begin a machine that more rows can be added to."""
        stack = self.stack(x, y, weight, compare=compare)
        self.learner.machine = LongMachine.of(stack, min(self.sizes.landmarks, len(x)))
        self._add(x, y, weight)

    def _add(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        machine = self.learner.machine
        assert isinstance(machine, LongMachine)
        mine = shard(len(x))
        machine.add(x[mine], self._targets(y)[mine], None if weight is None else weight[mine], device=self.device)
        self.rows += len(x)

    def _scores(self, stack: StackedRidge, y: Tensor, fold: Tensor) -> dict[str, Any]:
        out = stack.left_out_
        truth = y[out]
        if len(y) < FEWEST:
            return {"rows": len(y), "folds": 0, "note": "too few rows of each class to cross-validate"}
        kept = {"rows": len(out), "folds": len(fold[out].unique())}
        if self._classes:
            weight = None if stack.weight_ is None else stack.weight_[out]
            return {**kept, **score_classes(cross_calibrated(stack.held_out_, truth, len(y), weight), truth)}
        return {**kept, **score_values(self.learner.answer(stack.held_out_), truth)}

    def _few(self, n: int) -> Tensor:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.random_state))
        return order[: self.sizes.first].sort().values

    def fold(self, y: Tensor) -> Tensor:  # (n,) -> (n,)
        """The fold of each row."""
        return deal(y, self._classes, self.random_state)

    @property
    def _classes(self) -> int:
        return 0 if self.target.classes is None else len(self.target.classes)

    def _targets(self, y: Tensor) -> Tensor:
        return one_hot(y, self._classes)


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
