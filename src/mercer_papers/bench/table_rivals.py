"""What people would fit to a table instead, each as its authors would run it: raw columns in, scores out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from sklearn.svm import SVC, SVR

Array = NDArray[Any]
Predict = Callable[[pd.DataFrame], Array]
LEVEL = 0.9  # of the intervals
_MOST_CATEGORIES = 250  # HistGradientBoosting takes 255 at most
_DATE = r"(\d{4}[-/]\d\d?[-/]\d\d?|\d\d?/\d\d?/\d{4})([T ]\d.*)?"  # not a span, "10/21/2011 - 10/28/2011"


@dataclass(frozen=True)
class Rival:
    """A method on tables.

    Args:
        fit: ``(x, y, c)`` to a function that answers new rows with probabilities ``(n, c)``, or where c is 0 with
            numbers ``(n,)``, or with numbers and the ends of their intervals ``(n, 3)``.
        packages: Distributions it needs; their versions are stored beside its scores.
        settings: How it is run.
        raw: Whether it reads dates itself.
        task: ``classification`` or ``regression`` where it can do one alone.
        most_rows: Training rows beyond which it is not run.
        most_classes: Classes beyond which it is not run.
    """

    fit: Callable[[pd.DataFrame, Array, int], Predict]
    packages: tuple[str, ...] = ("scikit-learn",)
    settings: str = "defaults"
    raw: bool = False
    task: str = ""
    most_rows: int = 1_000_000
    most_classes: int = 1_000


def readable(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as numbers (days, day of year, weekday, hour), words as pandas categories: what tree libraries ask for."""
    columns: dict[str, Any] = {}
    for name, series in frame.items():
        key = str(name)
        if pd.api.types.is_numeric_dtype(series) and series.dtype != bool:
            columns[key] = series
            continue
        text = series.astype(str).where(series.notna())
        if text.notna().any() and bool(text.dropna().str.fullmatch(_DATE).all()):
            date = pd.to_datetime(series, utc=True)
            columns[key] = (date - date.min()) / pd.Timedelta(days=1)
            columns[f"{key} day of year"] = date.dt.day_of_year.astype(float)
            columns[f"{key} weekday"] = date.dt.day_of_week.astype(float)
            columns[f"{key} hour"] = date.dt.hour.astype(float)
        else:
            columns[key] = text.astype("category")
    return pd.DataFrame(columns, index=frame.index)


def _words(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as words, a missing one as a word of its own."""
    columns = frame.copy()
    for name in _categories(frame):
        columns[name] = frame[name].astype(object).where(frame[name].notna(), "missing").astype(str)
    return columns


def _categories(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame.columns if isinstance(frame[name].dtype, pd.CategoricalDtype)]


def _columns(*, one_hot: bool) -> Any:
    if one_hot:
        numbers: Any = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
        words: Any = OneHotEncoder(handle_unknown="ignore", min_frequency=3, max_categories=60)
    else:
        numbers = SimpleImputer(strategy="median")
        words = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (words, make_column_selector(dtype_exclude="number")),
        sparse_threshold=0,
    )


def _predictor(model: Any, c: int, prepare: Callable[[pd.DataFrame], Any] = lambda frame: frame) -> Predict:
    """Probabilities ``(n, c)``, with a column of 0 for a class that was not in training, or numbers ``(n,)``."""

    def predict(frame: pd.DataFrame) -> Array:
        rows = prepare(frame)
        if c == 0:
            return np.asarray(model.predict(rows), dtype=float).ravel()
        p = np.zeros((len(frame), c))
        p[:, np.asarray(model.classes_).astype(int)] = model.predict_proba(rows)
        return p

    return predict


def _hist(x: pd.DataFrame, y: Array, c: int) -> Predict:
    make: Any = HistGradientBoostingClassifier if c else HistGradientBoostingRegressor
    model = make(categorical_features="from_dtype", random_state=0)
    many = [name for name in _categories(x) if x[name].nunique() > _MOST_CATEGORIES]
    if many:
        # Target means of columns with more categories than it takes, as scikit-learn's guide says.
        means = TargetEncoder(target_type=("multiclass" if c > 2 else "binary") if c else "continuous", random_state=0)
        columns = make_column_transformer((means, many), remainder="passthrough", verbose_feature_names_out=False)
        model = make_pipeline(columns.set_output(transform="pandas"), model)
    return _predictor(model.fit(x, y), c)


def _lightgbm(x: pd.DataFrame, y: Array, c: int) -> Predict:
    import lightgbm

    make: Any = lightgbm.LGBMClassifier if c else lightgbm.LGBMRegressor
    return _predictor(make(n_jobs=1, verbose=-1, random_state=0).fit(x, y), c)


def _xgboost(x: pd.DataFrame, y: Array, c: int) -> Predict:
    import xgboost

    make: Any = xgboost.XGBClassifier if c else xgboost.XGBRegressor
    return _predictor(make(n_jobs=1, enable_categorical=True, random_state=0).fit(x, y), c)


def _catboost(x: pd.DataFrame, y: Array, c: int) -> Predict:
    import catboost

    make: Any = catboost.CatBoostClassifier if c else catboost.CatBoostRegressor
    model = make(thread_count=1, verbose=0, random_seed=0, allow_writing_files=False)
    return _predictor(model.fit(_words(x), y, cat_features=_categories(x)), c, _words)


def _forest(x: pd.DataFrame, y: Array, c: int) -> Predict:
    make: Any = RandomForestClassifier if c else RandomForestRegressor
    model = make_pipeline(_columns(one_hot=False), make(n_estimators=300, n_jobs=1, random_state=0))
    return _predictor(model.fit(_words(x), y), c, _words)


def _linear(x: pd.DataFrame, y: Array, c: int) -> Predict:
    if c:
        model: Any = LogisticRegressionCV(Cs=[1e-3, 1e-2, 0.1, 1, 10], cv=3, scoring="neg_log_loss", max_iter=500)
    else:
        model = RidgeCV(np.logspace(-3, 3, 13))
    return _predictor(make_pipeline(_columns(one_hot=True), model).fit(_words(x), y), c, _words)


def _svm(x: pd.DataFrame, y: Array, c: int) -> Predict:
    """The cost by three folds; probabilities by a sigmoid on held-out decisions."""
    columns = _columns(one_hot=True)
    rows = columns.fit_transform(_words(x))
    if c:
        best = GridSearchCV(SVC(), {"C": [0.3, 1, 10]}, cv=3, refit=False).fit(rows, y).best_params_
        model: Any = CalibratedClassifierCV(SVC(**best), ensemble=False, cv=3)
    else:
        search = GridSearchCV(make_pipeline(SVR()), {"svr__C": [1, 10, 100]}, cv=3)
        model = TransformedTargetRegressor(search, transformer=StandardScaler())
    return _predictor(model.fit(rows, y), c, lambda frame: columns.transform(_words(frame)))


def _tabpfn(members: int) -> Callable[[pd.DataFrame, Array, int], Predict]:
    def fit(x: pd.DataFrame, y: Array, c: int) -> Predict:
        """TabPFN v1 on numbers and ordinal codes; its code of 2023 asks for names that libraries have changed since."""
        import typing

        import sklearn.utils.validation as validation
        import torch
        import torch.nn.modules.transformer as transformer

        for name in ("Optional", "Any", "Union", "Callable"):
            setattr(transformer, name, getattr(typing, name))
        load = torch.load
        torch.load = lambda *a, **k: load(*a, **{**k, "weights_only": False})
        import tabpfn.scripts.transformer_prediction_interface as interface

        def rename(check: Callable[..., Any]) -> Callable[..., Any]:
            def call(*a: Any, force_all_finite: Any = True, **k: Any) -> Any:
                return check(*a, ensure_all_finite=force_all_finite, **k)

            return call

        interface.check_X_y = rename(validation.check_X_y)
        interface.check_array = rename(validation.check_array)
        columns = _columns(one_hot=False)
        rows = columns.fit_transform(_words(x)).astype(float)
        chosen = np.random.default_rng(0).permutation(len(y))[:1000]
        try:
            model = interface.TabPFNClassifier(device="cpu", N_ensemble_configurations=members)
            model.fit(rows[chosen], y[chosen])
        finally:
            torch.load = load
        return _predictor(model, c, lambda frame: columns.transform(_words(frame)).astype(float))

    return fit


def _pytabkit(name: str) -> Callable[[pd.DataFrame, Array, int], Predict]:
    def fit(x: pd.DataFrame, y: Array, c: int) -> Predict:
        import pytabkit

        # Its networks take no holes: the median, and a word of its own for a missing word.
        medians = x.median(numeric_only=True)

        def fill(frame: pd.DataFrame) -> pd.DataFrame:
            return _words(frame).fillna(medians).astype(dict.fromkeys(_categories(x), "category"))

        make = getattr(pytabkit, f"{name}_{'Classifier' if c else 'Regressor'}")
        options: dict[str, Any] = {"device": "cpu", "n_threads": 1, "random_state": 0, "verbosity": 0}
        if c:  # for good probabilities: stop by log loss, and smooth no labels
            options["val_metric_name"] = "cross_entropy"
            if name == "RealMLP_TD":
                options["use_ls"] = False
        return _predictor(make(**options).fit(fill(x), y), c, fill)

    return fit


def _autogluon(x: pd.DataFrame, y: Array, c: int) -> Predict:
    from autogluon.tabular import TabularPredictor

    label = "the target of this bench"
    task = {0: "regression", 2: "binary"}.get(c, "multiclass")
    metric = "log_loss" if c else "root_mean_squared_error"
    folder = tempfile.TemporaryDirectory()
    model = TabularPredictor(label, problem_type=task, eval_metric=metric, path=folder.name, verbosity=0)
    model.fit(x.assign(**{label: y}), presets="medium_quality", time_limit=300, num_cpus=1, num_gpus=0)

    def predict(frame: pd.DataFrame) -> Array:
        with folder:  # its models are files: they go when the rows are predicted
            if c == 0:
                return np.asarray(model.predict(frame), dtype=float)
            answer = model.predict_proba(frame)
        p = np.zeros((len(frame), c))
        p[:, [int(name) for name in answer.columns]] = answer.to_numpy()
        return p

    return predict


def _ngboost(x: pd.DataFrame, y: Array, c: int) -> Predict:
    """A normal distribution for each row, on numbers and one-hot words."""
    from ngboost import NGBRegressor

    columns = _columns(one_hot=True)
    model = NGBRegressor(verbose=False, random_state=0).fit(columns.fit_transform(_words(x)), y)

    def predict(frame: pd.DataFrame) -> Array:
        normal = model.pred_dist(columns.transform(_words(frame)))
        low, high = normal.interval(LEVEL)
        return np.column_stack([normal.mean(), low, high])

    return predict


def _cross_conformal(x: pd.DataFrame, y: Array, c: int) -> Predict:
    """MAPIE's CV+ around LightGBM."""
    import lightgbm
    from mapie.regression import CrossConformalRegressor

    learner = lightgbm.LGBMRegressor(n_jobs=1, verbose=-1, random_state=0)
    columns = _columns(one_hot=False)
    model = CrossConformalRegressor(learner, confidence_level=LEVEL, method="plus", cv=5, random_state=0)
    model.fit_conformalize(columns.fit_transform(_words(x)), y)
    return lambda frame: _ends(*model.predict_interval(columns.transform(_words(frame))))


def _conformal_quantiles(x: pd.DataFrame, y: Array, c: int) -> Predict:
    """MAPIE's conformalized quantile regression of HistGradientBoosting, a fifth of the rows for the correction."""
    from mapie.regression import ConformalizedQuantileRegressor

    columns = _columns(one_hot=False)
    learn, correct, y_learn, y_correct = train_test_split(
        columns.fit_transform(_words(x)), y, test_size=0.2, random_state=0
    )
    learner = HistGradientBoostingRegressor(loss="quantile", quantile=0.5, random_state=0)
    model = ConformalizedQuantileRegressor(learner, confidence_level=LEVEL)
    model.fit(learn, y_learn).conformalize(correct, y_correct)
    return lambda frame: _ends(*model.predict_interval(columns.transform(_words(frame))))


def _ends(middle: Array, ends: Array) -> Array:
    """MAPIE's numbers ``(n,)`` and ends ``(n, 2, 1)`` side by side."""
    return np.column_stack([middle, ends[:, 0, 0], ends[:, 1, 0]])


_NATIVE = "defaults, native categories"
RIVALS = {
    "HistGradientBoosting": Rival(_hist, settings=f"{_NATIVE}; target means above 250 levels"),
    "LightGBM": Rival(_lightgbm, ("lightgbm",), _NATIVE),
    "XGBoost": Rival(_xgboost, ("xgboost",), _NATIVE),
    "CatBoost": Rival(_catboost, ("catboost",), f"{_NATIVE} (cat_features), 1,000 trees"),
    "random forest": Rival(_forest, settings="300 trees, ordinal codes", most_rows=30_000),
    "SVM": Rival(_svm, settings="RBF, cost by 3 folds, one-hot", most_rows=4_000),
    "linear": Rival(_linear, settings="ridge or logistic, penalty by cross-validation, one-hot of 60 levels"),
    "TabPFN v1": Rival(
        _tabpfn(3),
        ("tabpfn",),
        "3 members (its default), at most 1,000 rows, ordinal codes",
        task="classification",
        most_rows=1_300,
        most_classes=10,
    ),
    "TabPFN v1 x 32": Rival(
        _tabpfn(32),
        ("tabpfn",),
        "32 members (the paper's), at most 1,000 rows, ordinal codes",
        task="classification",
        most_rows=1_300,
        most_classes=10,
    ),
    "RealMLP": Rival(
        _pytabkit("RealMLP_TD"),
        ("pytabkit", "torch"),
        "RealMLP-TD, its defaults; classes stop by log loss, no label smoothing",
    ),
    "TabM": Rival(_pytabkit("TabM_D"), ("pytabkit", "torch"), "TabM-D, its defaults; classes stop by log loss"),
    "xRFM": Rival(
        _pytabkit("XRFM_D"),
        ("pytabkit", "xrfm"),
        "XRFM-D of pytabkit, its defaults; classes by log loss",
        most_rows=12_000,
    ),
    "AutoGluon": Rival(
        _autogluon, ("autogluon.tabular",), "medium_quality, at most 300 s by the clock, one core", raw=True
    ),
    "NGBoost": Rival(_ngboost, ("ngboost",), "defaults, normal, one-hot", task="regression", most_rows=12_000),
    "MAPIE CV+": Rival(_cross_conformal, ("mapie", "lightgbm"), "CV+ of 5 folds around LightGBM", task="regression"),
    "MAPIE CQR": Rival(
        _conformal_quantiles,
        ("mapie", "scikit-learn"),
        "quantiles of HistGradientBoosting",
        task="regression",
    ),
}
