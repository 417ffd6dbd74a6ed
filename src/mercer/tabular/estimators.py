"""The table's model as scikit-learn estimators: raw frames and arrays in, arrays out."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError

from .. import checks
from ..storage import Savable
from .columns import Array
from .frames import as_pandas
from .model import TabularModel

_TARGET = "target"


class _TabularEstimator(Savable, BaseEstimator):  # type: ignore[misc]
    """What both have in common: columns as they are, a model behind."""

    model_: TabularModel
    n_features_in_: int
    feature_names_in_: Array
    _task: str

    def __init__(self, *, random_state: int = 0) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from a table without its target.

        Args:
            X: A pandas or polars frame with columns of any kind, or an array ``(n, d)``.
            y: Targets ``(n,)``.
        """
        frame = self._frame(X)
        target = np.asarray(y)
        if target.ndim == 2 and target.shape[1] == 1:
            target = target[:, 0]
        if target.ndim != 1:
            raise ValueError(checks.sentence(type(self).__name__, "y must have shape (n,)", target.shape))
        if len(target) != len(frame):
            need = f"y must have a value for each of the {len(frame)} rows of X"
            raise ValueError(checks.sentence(type(self).__name__, need, len(target)))
        if pd.isna(target).any():
            need = "y must have a value in every row"
            raise ValueError(checks.sentence(type(self).__name__, need, f"none in row {int(pd.isna(target).argmax())}"))
        name = _TARGET
        while name in frame.columns:
            name += "_"
        self.model_ = TabularModel(task=self._task, random_state=self.random_state)
        self.model_.fit(frame.assign(**{name: self._encoded(target)}), name)
        self.n_features_in_ = frame.shape[1]
        self.feature_names_in_ = np.array(frame.columns, dtype=object)
        return self

    def explain(self) -> pd.DataFrame:
        """How much each column moves the prediction, the largest first."""
        return self._fitted().explain()

    def _encoded(self, y: Array) -> Array:
        return y

    def _answers(self, X: Any, level: float = 0.9) -> pd.DataFrame:
        model, frame = self._fitted(), self._frame(X)
        if frame.shape[1] < self.n_features_in_:
            need = f"X has {frame.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_}"
            raise ValueError(f"{need} features as input.")
        return model.predict_with_surprises(frame, level=level)[0]

    def _fitted(self) -> TabularModel:
        if not hasattr(self, "model_"):
            need, fix = "must be fitted first", "Call fit(X, y)."
            raise NotFittedError(checks.sentence(type(self).__name__, need, "no fit", fix))
        return self.model_

    def _frame(self, X: Any) -> pd.DataFrame:
        if isinstance(X, np.ndarray | list):
            array = np.asarray(X)
            if array.ndim != 2:
                fix = "Use X.reshape(-1, 1) for a single column, X.reshape(1, -1) for a single row."
                raise ValueError(checks.sentence(type(self).__name__, "X must have shape (n, d)", array.shape, fix))
            return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])]).infer_objects()
        frame = as_pandas(type(self).__name__, X)
        return frame.set_axis([str(name) for name in frame.columns], axis=1)


class TabularClassifier(ClassifierMixin, _TabularEstimator):  # type: ignore[misc]
    """Classes from raw columns (numbers, words, dates, missing values), by stacked kernel machines without tuning.

    Args:
        random_state: Random seed of folds and subsets.

    Attributes:
        classes_: The classes, sorted.
        model_: The fitted :class:`TabularModel`.

    >>> frame = pd.DataFrame({"x": [0, 1, 2, 3] * 10, "colour": ["red", "blue"] * 20})
    >>> model = TabularClassifier().fit(frame, ["low", "low", "high", "high"] * 10)
    >>> model.predict(frame[:4]).tolist()
    ['low', 'low', 'high', 'high']
    """

    classes_: Array
    _task = "classification"

    def predict(self, X: Any) -> Array:
        """The likeliest class of each row, ``(n,)``."""
        found: Array = self.classes_[self.predict_proba(X).argmax(1)]
        return found

    def predict_proba(self, X: Any) -> Array:
        """Probabilities ``(n, c)``, in the order of ``classes_``."""
        answers = self._answers(X)
        found: Array = answers[[f"p_{i}" for i in range(len(self.classes_))]].to_numpy(dtype=np.float64)
        return found

    def _encoded(self, y: Array) -> Array:
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            need = "y must hold at least two classes"
            raise ValueError(checks.sentence("TabularClassifier", need, f"one class, {self.classes_[0]!r}"))
        found: Array = codes
        return found


class TabularRegressor(RegressorMixin, _TabularEstimator):  # type: ignore[misc]
    """Numbers from raw columns, with the interval each may lie in.

    Args:
        random_state: Random seed of folds and subsets.

    Attributes:
        model_: The fitted :class:`TabularModel`.

    >>> frame = pd.DataFrame({"x": range(40), "colour": ["red", "blue"] * 20})
    >>> model = TabularRegressor().fit(frame, [2.5 * i for i in range(40)])
    >>> bool(abs(model.predict(frame[20:21])[0] - 50) < 3)
    True
    """

    _task = "regression"

    def predict(self, X: Any) -> Array:
        """Predicted numbers, ``(n,)``."""
        found: Array = self._answers(X)["prediction"].to_numpy(dtype=np.float64)
        return found

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Lower and upper ends ``(n, 2)`` that hold the true value in a share ``level`` of rows."""
        found: Array = self._answers(X, level)[["low", "high"]].to_numpy(dtype=np.float64)
        return found
