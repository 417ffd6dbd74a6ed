"""A model of a user's table: learn from it, say how well, predict with probabilities and a warning of strange rows."""

from __future__ import annotations

import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from .. import __version__, checks
from ..distributed import shard
from ..layerwise import KernelNetworkClassifier, KernelNetworkRegressor
from ..storage import Savable
from .familiarity import Familiarity
from .preparation import Preparation
from .scoring import Estimator, class_probabilities, cross_validate
from .target import TASKS, Target, find_target, present

__all__ = ["TabularModel"]

SCHEMA = 1
"""Version of what a saved model holds; a newer one is refused."""

_UNSEEN = 0.5  # a row with a category that no training row had is at least so unfamiliar
_STATE = ("preparation", "target", "estimator", "familiarity", "scores", "seconds", "rows", "notes", "made_with")
_log = logging.getLogger("mercer")


class TabularModel(Savable):
    """Classes or a number by a table's other columns, with a network of kernels that needs no tuning.

    Args:
        task: ``auto`` takes it from the target; or ``classification``, ``regression``.
        random_state: A whole number that decides folds, subsets and landmarks.

    Attributes:
        preparation: What was made of the columns.
        target: The column to predict.
        estimator: The classifier or regressor on the prepared matrix.
        familiarity: What ``unfamiliar`` comes from.
        scores: Cross-validated scores, the confusion matrix and reliability bins, or pairs of value and prediction.
        seconds: What fit took.
        rows: Rows that were learned from.
        notes: Sentences for the user.
        made_with: Versions of Python and the packages.

    >>> frame = pd.DataFrame({"x": [0, 1, 2, 3] * 10, "sort": ["low", "low", "high", "high"] * 10})
    >>> model = TabularModel().fit(frame, "sort")
    >>> model.predict(pd.DataFrame({"x": [0, 3]}))["prediction"].tolist()
    ['low', 'high']
    """

    preparation: Preparation
    target: Target
    estimator: Estimator
    familiarity: Familiarity
    scores: dict[str, Any]
    seconds: float
    rows: int
    notes: list[str]
    made_with: dict[str, str]

    def __init__(self, *, task: str = "auto", random_state: int = 0) -> None:
        self.task = checks.choice("TabularModel", "task", task, TASKS)
        self.random_state = checks.integer("TabularModel", "random_state", random_state, 0)

    def fit(self, frame: pd.DataFrame, target: str, *, progress: Callable[[str], None] | None = None) -> Self:
        """Learn to predict the column ``target`` from the others; rows where it is missing are left out.

        Args:
            frame: The table; of several ranks all give the same, and share its rows.
            target: Name of a column.
            progress: Told in words of what is being done.
        """
        start = time.perf_counter()
        progress = progress or _log.debug
        x, y = self.begin(frame, target)
        self.scores = self.validate(x, y, progress)
        progress(f"learning from {len(x)} rows")
        mine = shard(len(x))
        self.estimator = self.fresh().fit(x[mine].numpy(), y[mine].numpy())
        self.end(len(x), time.perf_counter() - start)
        return self

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Columns ``prediction``, for classes ``p_<class>`` for each, and ``unfamiliar`` from 0 to 1.

        What is strange about the rows (categories never seen, columns not needed) is logged as warnings.
        """
        answer, surprises = self.predict_with_surprises(frame)
        for what, rows in surprises.items():
            _log.warning("%s (%d rows)", what, rows)
        return answer

    def predict_with_surprises(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, Counter[str]]:
        """The same, with what is strange counted: sentence -> rows."""
        self._check_fitted()
        found = self.preparation.prepare(frame)
        x = checks.squarable("TabularModel", "the table", found.x)
        columns: dict[str, Any] = {}
        if isinstance(self.estimator, KernelNetworkClassifier):
            assert self.target.classes is not None
            p = class_probabilities(self.estimator, x, len(self.target.classes))
            columns["prediction"] = self.target.decode(p.argmax(1))
            columns |= {f"p_{name}": p[:, i].numpy() for i, name in enumerate(self.target.classes)}
        else:
            columns["prediction"] = self.estimator.predict(x.numpy())
        unfamiliar = self.unfamiliar(x).numpy()
        columns["unfamiliar"] = np.where(found.unseen, np.maximum(unfamiliar, _UNSEEN), unfamiliar)
        surprises = Counter(found.surprises)
        for name in self.preparation.extra_columns(frame):
            if name != self.target.name:
                surprises[f"{name}: a column that the model does not know is passed over"] += len(frame)
        return pd.DataFrame(columns, index=frame.index), surprises

    def unfamiliar(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        """0 to 1 for prepared rows, see :class:`~mercer.tabular.familiarity.Familiarity`."""
        before = nn.Sequential(*list(self.estimator.network_.layers)[:-1])
        with torch.no_grad():
            answer: Tensor = self.familiarity(before(x))
        return answer

    def begin(self, frame: pd.DataFrame, target: str) -> tuple[Tensor, Tensor]:
        """Learn columns and target; the rows as a matrix ``(n, d)`` and its target ``(n,)``."""
        target = find_target(frame.columns, target)
        there = present(frame[target])
        self.notes = [f"{_rows(int((~there).sum()))} without {target} left out."] * bool((~there).any())
        frame = frame[there]
        if len(frame) < 2:
            need = f"at least two rows must have a value in {target!r}"
            raise ValueError(checks.sentence("TabularModel", need, len(frame)))
        self.target = Target.of(frame[target], task=self.task)
        self.preparation = Preparation().fit(frame.drop(columns=target))
        self.notes += self.preparation.notes
        y = self.target.encode(frame[target])
        if self.target.classes is not None:
            self.notes += _lonely(self.target, y)
        return self.preparation.prepare(frame).x, y

    def validate(self, x: Tensor, y: Tensor, progress: Callable[[str], None]) -> dict[str, Any]:
        """The cross-validated scores."""
        return cross_validate(self.fresh, x, y, self.target.classes, seed=self.random_state, progress=progress)

    def fresh(self) -> Estimator:
        """An estimator that has learned nothing yet."""
        if self.target.task == "classification":
            return KernelNetworkClassifier(random_state=self.random_state)
        return KernelNetworkRegressor(random_state=self.random_state)

    def end(self, rows: int, seconds: float) -> None:
        """What is known once the estimator has learned."""
        self.familiarity = Familiarity.of(self.estimator, torch.Generator().manual_seed(self.random_state))
        self.rows, self.seconds = rows, seconds
        versions = {"python": platform.python_version(), "mercer": __version__, "torch": str(torch.__version__)}
        self.made_with = {**versions, "numpy": np.__version__, "pandas": pd.__version__}

    def get_state(self) -> dict[str, Any]:
        """Everything that was learned, with the schema's version."""
        self._check_fitted()
        return {"schema": SCHEMA, **{name: getattr(self, name) for name in _STATE}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take it back.

        Raises:
            ValueError: The schema is newer than this version of Mercer.
        """
        if state["schema"] > SCHEMA:
            need, fix = f"the model must have schema {SCHEMA} or before", "Upgrade Mercer to read it."
            raise ValueError(checks.sentence("TabularModel", need, state["schema"], fix))
        for name in _STATE:
            setattr(self, name, state[name])

    def _check_fitted(self) -> None:
        if not hasattr(self, "familiarity"):
            raise ValueError(checks.sentence("TabularModel", "fit must come first", "a model that has learned nothing"))


def _lonely(target: Target, y: Tensor) -> list[str]:
    assert target.classes is not None
    counts = torch.bincount(y, minlength=len(target.classes))
    alone = [str(target.classes[i]) for i in (counts == 1).nonzero()[:, 0].tolist()]
    if not alone:
        return []
    return [f"{target.name}: {', '.join(alone[:5])} has a single row, so it cannot be both learned and checked."]


def _rows(count: int) -> str:
    return f"{count} row" + "s" * (count != 1)
