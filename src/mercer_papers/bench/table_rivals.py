"""What people would fit to a table instead, each as its authors would run it: raw columns in, scores out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[Any]
_MOST_CATEGORIES = 250  # HistGradientBoosting takes 255 at most
_DAY = r"\d{4}-\d\d-\d\d.*"


@dataclass(frozen=True)
class Rival:
    """A method on tables.

    Args:
        work: ``(x_train, y_train, x_test, c)`` to probabilities ``(n, c)``, or to numbers ``(n,)`` where c is 0.
        needs: Modules it imports.
    """

    work: Callable[[pd.DataFrame, Array, pd.DataFrame, int], Array]
    needs: tuple[str, ...] = ("sklearn",)


def readable(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as numbers (days, day of the year, weekday), words as pandas categories: what tree libraries ask for."""
    columns: dict[str, Any] = {}
    for name, series in frame.items():
        key = str(name)
        if pd.api.types.is_numeric_dtype(series) and series.dtype != bool:
            columns[key] = series
            continue
        text = series.astype(str).where(series.notna())
        if text.notna().any() and bool(text.dropna().str.fullmatch(_DAY).all()):
            date = pd.to_datetime(series)
            columns[key] = (date - date.min()).dt.days.astype(float)
            columns[f"{key} day of year"] = date.dt.day_of_year.astype(float)
            columns[f"{key} weekday"] = date.dt.day_of_week.astype(float)
        else:
            columns[key] = text.astype("category")
    return pd.DataFrame(columns, index=frame.index)


def _words(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as words, a missing one as a word of its own."""
    found = frame.copy()
    for name in _categories(frame):
        found[name] = frame[name].astype(object).where(frame[name].notna(), "missing").astype(str)
    return found


def _categories(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame.columns if isinstance(frame[name].dtype, pd.CategoricalDtype)]


def _numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns with more categories than HistGradientBoosting takes become their codes."""
    found = frame.copy()
    for name in _categories(frame):
        if frame[name].nunique() > _MOST_CATEGORIES:
            codes = frame[name].cat.codes.astype(float)
            found[name] = codes.where(codes >= 0)
    return found


def _columns(*, one_hot: bool) -> Any:
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

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


def _answer(model: Any, x: pd.DataFrame, c: int) -> Array:
    if c == 0:
        return np.asarray(model.predict(x), dtype=float).ravel()
    p = np.zeros((len(x), c))
    p[:, np.asarray(model.classes_).astype(int)] = model.predict_proba(x)
    return p


def _hist(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    make: Any = HistGradientBoostingClassifier if c else HistGradientBoostingRegressor
    model = make(categorical_features="from_dtype", random_state=0).fit(_numbers(x), y)
    return _answer(model, _numbers(new), c)


def _lightgbm(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    import lightgbm

    make: Any = lightgbm.LGBMClassifier if c else lightgbm.LGBMRegressor
    return _answer(make(n_jobs=1, verbose=-1, random_state=0).fit(x, y), new, c)


def _xgboost(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    import xgboost

    make: Any = xgboost.XGBClassifier if c else xgboost.XGBRegressor
    return _answer(make(n_jobs=1, enable_categorical=True, random_state=0).fit(x, y), new, c)


def _catboost(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    import catboost

    make: Any = catboost.CatBoostClassifier if c else catboost.CatBoostRegressor
    model = make(thread_count=1, verbose=0, random_seed=0, allow_writing_files=False)
    model.fit(_words(x), y, cat_features=_categories(x))
    return _answer(model, _words(new), c)


def _forest(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.pipeline import make_pipeline

    make: Any = RandomForestClassifier if c else RandomForestRegressor
    model = make_pipeline(_columns(one_hot=False), make(n_estimators=300, n_jobs=1, random_state=0))
    return _answer(model.fit(_words(x), y), _words(new), c)


def _linear(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.pipeline import make_pipeline

    if c:
        model: Any = LogisticRegressionCV(Cs=[1e-3, 1e-2, 0.1, 1, 10], cv=3, scoring="neg_log_loss", max_iter=500)
    else:
        model = RidgeCV(np.logspace(-3, 3, 13))
    return _answer(make_pipeline(_columns(one_hot=True), model).fit(_words(x), y), _words(new), c)


def _svm(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    """The cost by three folds; probabilities by a sigmoid on held-out decisions."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC, SVR

    columns = _columns(one_hot=True)
    rows, new_rows = columns.fit_transform(_words(x)), columns.transform(_words(new))
    if c:
        best = GridSearchCV(SVC(), {"C": [0.3, 1, 10]}, cv=3, refit=False).fit(rows, y).best_params_
        model: Any = CalibratedClassifierCV(SVC(**best), ensemble=False, cv=3).fit(rows, y)
        return _answer(model, new_rows, c)
    mean, size = y.mean(), y.std()
    search = GridSearchCV(make_pipeline(SVR()), {"svr__C": [1, 10, 100]}, cv=3).fit(rows, (y - mean) / size)
    return np.asarray(search.predict(new_rows) * size + mean)


def _xrfm(x: pd.DataFrame, y: Array, new: pd.DataFrame, c: int) -> Array:
    """A fifth of the training rows is the validation part that xRFM needs."""
    import torch
    from xrfm import xRFM

    columns = _columns(one_hot=True)
    rows, new_rows = columns.fit_transform(_words(x)), columns.transform(_words(new))
    order = np.random.default_rng(0).permutation(len(y))
    held, rest = order[: len(y) // 5], order[len(y) // 5 :]
    mean, size = (0.0, 1.0) if c else (y.mean(), y.std())
    target = torch.tensor(y) if c else torch.tensor((y - mean) / size, dtype=torch.float32)[:, None]
    data = torch.tensor(rows, dtype=torch.float32)
    model = xRFM(device="cpu", tuning_metric="logloss" if c else "mse", verbose=False)
    model.fit(data[rest], target[rest], data[held], target[held])
    points = torch.tensor(new_rows, dtype=torch.float32)
    if c:
        return np.asarray(model.predict_proba(points))
    return np.asarray(model.predict(points)).ravel() * size + mean


RIVALS = {
    "HistGradientBoosting": Rival(_hist),
    "LightGBM": Rival(_lightgbm, ("lightgbm",)),
    "XGBoost": Rival(_xgboost, ("xgboost",)),
    "CatBoost": Rival(_catboost, ("catboost",)),
    "random forest": Rival(_forest),
    "SVM": Rival(_svm),
    "linear": Rival(_linear),
    "xRFM": Rival(_xrfm, ("xrfm",)),
}
