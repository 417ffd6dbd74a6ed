"""The table's model as scikit-learn estimators: raw frames and arrays in, arrays out."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import assert_all_finite, check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from .. import checks
from ..storage.savable import Savable
from .columns import Array
from .frames import as_pandas, is_table
from .model import TabularModel

_TARGET = "target"


class _TabularEstimator(Savable, BaseEstimator):  # type: ignore[misc]
    """What both have in common: columns as they are, a model behind."""

    model_: TabularModel
    n_features_in_: int
    feature_names_in_: Array
    _task: str

    def __init__(
        self,
        *,
        trees: bool | str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        time: str | None = None,
        groups: str | None = None,
    ) -> None:
        self.trees, self.random_state, self.time, self.groups = trees, random_state, time, groups

    def _weights(self) -> str | dict[str, float] | None:
        """``class_weight`` by the codes that stand for the classes."""
        return None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from a table without its target.

        Args:
            X: A pandas or polars frame with columns of any kind, or an array ``(n, d)``.
            y: Targets ``(n,)``.
            sample_weight: Weights ``(n,)``, 0 or more, as of :meth:`TabularModel.fit`. A row of weight 0 is left out.
                One of weight 2 is not two rows: leave-one-out would leave out only one of these.
        """
        # The table and its target, checked as scikit-learn checks them.
        where = type(self).__name__
        if y is None:
            raise ValueError(f"{where} requires y to be passed, but the target y is None")
        frame = self._read(X, reset=True)
        target = column_or_1d(y, warn=True)
        if len(target) != len(frame):
            need = f"y must have a value for each of the {len(frame)} rows of X"
            raise ValueError(checks.sentence(where, need, len(target)))
        if target.dtype.kind == "f":
            assert_all_finite(target, input_name="y")
        if pd.isna(target).any():
            need = "y must have a value in every row"
            raise ValueError(checks.sentence(where, need, f"none in row {int(pd.isna(target).argmax())}"))
        if len(frame) < 2:
            raise ValueError(checks.sentence(where, "X must have at least two rows", f"{len(frame)} sample"))
        if target.dtype.kind == "O":  # numbers that came as objects are numbers
            target = pd.Series(target, dtype=object).infer_objects().to_numpy()

        # The rows that count, in one table with the target.
        weight = checks.weights(where, "sample_weight", sample_weight, len(frame))
        if weight is not None:  # rows of weight 0 have no class and no say
            used = (weight > 0).numpy()
            frame, target, weight = frame[used], target[used], weight[used]
        name = _TARGET
        while name in frame.columns:
            name += "_"
        table = frame.assign(**{name: self._encode(target)})
        weights = self._weights()

        # The model behind.
        seed = self.random_state
        if not isinstance(seed, numbers.Integral):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        self.model_ = TabularModel(
            task=self._task,
            trees=self.trees,
            random_state=seed,
            class_weight=weights,
            time=self.time,
            groups=self.groups,
        )
        self.model_.fit(table, name, weight)
        return self

    @property
    def columns_(self) -> pd.DataFrame:
        """What each column is and how it is used, or why it is not: ``kind``, ``how``, ``dropped`` by column."""
        self._check_fitted()
        columns = self.model_.preparation.columns
        index = pd.Index([column.name for column in columns], name="column")
        return pd.DataFrame([(c.kind, c.how, c.dropped) for c in columns], index, ["kind", "how", "dropped"])

    def explain(self) -> pd.DataFrame:
        """How much each column moves the prediction, the largest first."""
        self._check_fitted()
        return self.model_.explain()

    def unfamiliar(self, X: Any) -> Array:
        """How unlike the training rows each row is, ``(n,)``: 0 like them, 0.5 farther than 95 % of them, at most 1."""
        scores: Array = self._answer(X)["unfamiliar"].to_numpy(dtype=np.float64, copy=True)
        return scores

    def _encode(self, y: Array) -> Array:
        return y

    def _answer(self, X: Any, level: float = 0.9) -> pd.DataFrame:
        self._check_fitted()
        return self.model_.predict(self._read(X, reset=False), level=level)  # logs what was strange

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            need, fix = "must be fitted first", "Call fit(X, y)."
            raise NotFittedError(checks.sentence(type(self).__name__, need, "no fit", fix))

    def _read(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """The table as a frame whose columns have the names of the fit, in that order.

        Columns of a frame are found by name, columns of an array by place. Every other difference is scikit-learn's
        error or warning.
        """
        where, table = type(self).__name__, is_table(X)
        if table:
            rows = frame = as_pandas(where, X)
            for count, what in zip(frame.shape, ("sample(s)", "feature(s)"), strict=True):
                if not count:
                    need = f"Found array with 0 {what} (shape={frame.shape}) while a minimum of 1 is required"
                    raise ValueError(f"{need} by {where}.")
            names = [str(name) for name in frame.columns]
        else:
            rows = check_array(X, dtype=None, ensure_all_finite=False, estimator=self)
            frame = as_pandas(where, pd.DataFrame(rows).infer_objects())
            names = [f"x{i}" for i in range(frame.shape[1])]

        # At fit scikit-learn notes the number of columns and their names; later it compares them.
        if reset:
            validate_data(self, rows, skip_check_array=True)
            return frame.set_axis(names, axis=1)

        names_at_fit = [column.name for column in self.model_.preparation.columns]
        if table and sorted(names) == sorted(names_at_fit):
            rows = frame = frame.iloc[:, [names.index(name) for name in names_at_fit]]
        elif table and not hasattr(self, "feature_names_in_") and names_at_fit[0] != "x0":
            # scikit-learn compares names only where all are text; the numbers that named the columns must agree, too.
            need = f"X must have the columns of the fit, {', '.join(names_at_fit[:6])}"
            raise ValueError(checks.sentence(where, need, ", ".join(names[:6])))
        validate_data(self, rows, reset=False, skip_check_array=True)
        return frame.set_axis(names_at_fit, axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = True
        return tags


class TabularClassifier(ClassifierMixin, _TabularEstimator):  # type: ignore[misc]
    """Classes from raw columns (numbers, words, dates, missing values), by stacked kernel machines without tuning.

    Use it for classes in a table of your own. Words, money, dates and holes go in as they are.

    Args:
        trees: Whether boosted trees may join the kernel machines, as of :class:`TabularModel`.
        random_state: Random seed of folds and subsets; None draws one at each fit.
        class_weight: ``balanced`` weights rows by the inverse of their class's frequency; a dict gives the weight of
            each class, 1 where it has none.
        time: Column of X by which rows come, as of :class:`TabularModel`: ``model_.scores`` are of later rows.
        groups: Column of X that names groups, as of :class:`TabularModel`: ``model_.scores`` are of whole groups.

    Attributes:
        classes_: The classes, sorted.
        model_: The fitted :class:`TabularModel`.
        columns_: What each column is and how it is used, or why it is not.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where a frame with text as names was given. Later frames are read by name, in
            any order; arrays by place.

    >>> frame = pd.DataFrame({"x": [0, 1, 2, 3] * 10, "colour": ["red", "blue"] * 20})
    >>> model = TabularClassifier().fit(frame, ["low", "low", "high", "high"] * 10)
    >>> model.predict(frame[:4]).tolist()
    ['low', 'low', 'high', 'high']
    """

    classes_: Array
    _task = "classification"

    def __init__(
        self,
        *,
        trees: bool | str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        class_weight: str | Mapping[Any, float] | None = None,
        time: str | None = None,
        groups: str | None = None,
    ) -> None:
        super().__init__(trees=trees, random_state=random_state, time=time, groups=groups)
        self.class_weight = class_weight

    def _weights(self) -> str | dict[str, float] | None:
        if self.class_weight is None or isinstance(self.class_weight, str):
            return self.class_weight
        codes = {name: str(code) for code, name in enumerate(self.classes_.tolist())}
        unknown = [name for name in self.class_weight if name not in codes]
        if unknown:
            need = f"class_weight must name classes, {', '.join(map(str, list(codes)[:8]))}"
            raise ValueError(checks.sentence("TabularClassifier", need, repr(unknown[0])))
        return {codes[name]: float(value) for name, value in self.class_weight.items()}

    def predict(self, X: Any) -> Array:
        """The likeliest class of each row, ``(n,)``."""
        p = self.predict_proba(X)
        labels: Array = self.classes_[p.argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Probabilities ``(n, c)``, in the order of ``classes_``."""
        answers = self._answer(X)
        p: Array = answers[[f"p_{i}" for i in range(len(self.classes_))]].to_numpy(dtype=np.float64, copy=True)
        return p

    def _encode(self, y: Array) -> Array:
        codes: Array
        try:
            check_classification_targets(y)
            self.classes_, codes = np.unique(y, return_inverse=True)
        except TypeError as error:  # numbers and text have no order
            need, fix = "Unknown label type: labels must be all numbers or all text", "Use y.astype(str)."
            raise ValueError(checks.sentence("TabularClassifier", need, error, fix)) from error
        if len(self.classes_) < 2:
            need = "y must hold at least two classes"
            raise ValueError(checks.sentence("TabularClassifier", need, f"one class, {self.classes_[0]!r}"))
        return codes


class TabularRegressor(RegressorMixin, _TabularEstimator):  # type: ignore[misc]
    """Numbers from raw columns, with the interval each may lie in.

    Use it for numbers in a table of your own. Words, money, dates and holes go in as they are.

    Args:
        trees: Whether boosted trees may join the kernel machines, as of :class:`TabularModel`.
        random_state: Random seed of folds and subsets; None draws one at each fit.
        time: Column of X by which rows come, as of :class:`TabularModel`: ``model_.scores`` are of later rows.
        groups: Column of X that names groups, as of :class:`TabularModel`: ``model_.scores`` are of whole groups.

    Attributes:
        model_: The fitted :class:`TabularModel`.
        columns_: What each column is and how it is used, or why it is not.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where a frame with text as names was given. Later frames are read by name, in
            any order; arrays by place.

    >>> frame = pd.DataFrame({"x": range(40), "colour": ["red", "blue"] * 20})
    >>> model = TabularRegressor().fit(frame, [2.5 * i for i in range(40)])
    >>> bool(abs(model.predict(frame[20:21])[0] - 50) < 3)
    True
    """

    _task = "regression"

    def predict(self, X: Any) -> Array:
        """Predicted numbers, ``(n,)``."""
        values: Array = self._answer(X)["prediction"].to_numpy(dtype=np.float64, copy=True)
        return values

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Lower and upper ends ``(n, 2)`` that hold the true value in a share ``level`` of rows."""
        ends: Array = self._answer(X, level)[["low", "high"]].to_numpy(dtype=np.float64, copy=True)
        return ends

    def predict_quantiles(self, X: Any, levels: Sequence[float] = (0.1, 0.5, 0.9)) -> Array:
        r"""Values below which the true one lies in a share q of rows, ``(n, q)``, one column for each of ``levels``.

        They are the ends of the intervals of level :math:`|2q - 1|`, so they never cross; 0.5 is the prediction.
        """
        asked = np.asarray(levels, dtype=np.float64).reshape(-1)
        if not len(asked) or not ((asked > 0) & (asked < 1)).all():
            raise ValueError(checks.sentence("TabularRegressor", "levels must lie between 0 and 1", levels))
        columns = []
        for q in asked:
            if q == 0.5:
                quantile = self._answer(X)["prediction"]
            elif q < 0.5:
                quantile = self._answer(X, 1 - 2 * q)["low"]
            else:
                quantile = self._answer(X, 2 * q - 1)["high"]
            columns.append(quantile.to_numpy(dtype=np.float64))
        return np.column_stack(columns)
