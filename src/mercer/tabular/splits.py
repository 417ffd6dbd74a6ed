"""Scores on rows as they will come: later than the rows learned from, or of groups that none of them belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.class_weight import compute_class_weight

from .. import checks
from .columns import Array, date_format, dates, find_target, numbers, words
from .learner import Learner
from .scoring import score_classes, score_values
from .training import LEVEL, order_by_content

if TYPE_CHECKING:
    from .model import TabularModel

_SHARE = 0.2  # of the rows, that are scored
_INTERVAL_ROWS = 20  # scored rows that are enough for the widths of intervals
_LEAST = 1e-6  # probability of a class that the rows learned from did not have


def weigh_classes(target: pd.Series[Any], class_weight: str | Mapping[Any, float], weight: Any) -> Array:  # (n,)
    """Weights of rows by their class, times ``weight`` where it is given: see :class:`TabularModel`."""
    text = words(target)
    present = text.dropna()
    if isinstance(class_weight, str):
        classes = np.unique(present.to_numpy(dtype=str))
        weights = compute_class_weight("balanced", classes=classes, y=present.to_numpy(dtype=str))
        factor = dict(zip(classes.tolist(), weights.tolist(), strict=True))
    else:
        factor = {str(name): float(value) for name, value in class_weight.items()}
        unknown = sorted(set(factor) - set(present.unique()))
        if unknown:
            need = f"class_weight must name classes of column {str(target.name)!r}"
            raise ValueError(checks.sentence("TabularModel", need, repr(unknown[0])))
    by_class = np.array(text.map(lambda one: factor.get(one, 1.0)), dtype=np.float64)
    return by_class if weight is None else by_class * np.asarray(weight, dtype=np.float64)


def read_moments(frame: pd.DataFrame, time: str) -> Array:  # (n,)
    """When each row came, by a column of dates or numbers; NaN where it says nothing."""
    series = frame[find_target(frame.columns, time, "time")]
    pattern = date_format(series)
    if pattern is None:
        values = numbers(series)
    else:
        moments = dates(series, pattern)
        values = np.where(moments.isna(), np.nan, moments.to_numpy().astype(np.int64).astype(np.float64))
    if not np.isfinite(values).any():
        need = f"column {time!r} must hold dates or numbers"
        raise ValueError(checks.sentence("time", need, repr(words(series).iloc[0])[:40]))
    if not (values > np.nanquantile(values, 1 - _SHARE, method="lower")).any():
        need = f"column {time!r} must tell earlier from later rows"
        raise ValueError(checks.sentence("time", need, "rows that are all alike"))
    return np.asarray(values, dtype=np.float64)


def choose_scored_rows(names: Array | None, moments: Array | None, seed: int) -> Array:  # (n,)
    """The last fifth of the rows by ``moments``, rows of one moment together; or groups drawn until they have a fifth.

    Args:
        names: Names of the groups, ``(n,)``; None where rows come by time.
        moments: When each row came, ``(n,)``; None where groups are drawn.
        seed: Random seed of the draw.
    """
    if moments is not None:
        return np.asarray(moments > np.nanquantile(moments, 1 - _SHARE, method="lower"))
    different, place = np.unique(np.asarray(names), return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(different))
    counts = np.bincount(place)[order].cumsum()
    chosen = order[:-1][: 1 + int(np.searchsorted(counts, _SHARE * len(place)))]  # one group at least teaches
    return np.isin(place, chosen)


def name_groups(frame: pd.DataFrame, groups: str | None) -> Array:  # (n,)
    """The name of each row's group; rows without a name are one group."""
    names = words(frame[find_target(frame.columns, groups, "groups")]).fillna("").to_numpy(dtype=str)
    if len(np.unique(names)) < 2:
        need = f"column {groups!r} must hold several groups"
        raise ValueError(checks.sentence("groups", need, "rows that are all alike"))
    return names


def score_split(
    model: TabularModel, other: TabularModel, rows: pd.DataFrame, moments: Array | None
) -> tuple[dict[str, Any], str]:
    """Scores of ``other``, fitted without these rows, and a sentence on them; classes are those of ``model``.

    The intervals of ``model`` get the widths that cover these rows; of later rows, the earlier or the later half, the
    one that asks for more.

    Args:
        model: Of all rows.
        other: Of the other rows.
        rows: The rows that are scored.
        moments: When they came, ``(r,)``; None where they are groups.
    """
    content = order_by_content(rows)  # sums and ties are the same for any order of rows
    rows = rows.iloc[content]
    known = np.asarray(model.target.known(rows[model.target.name]))
    rows = rows[known]
    if not len(rows):
        raise ValueError(checks.sentence("TabularModel", f"scored rows must have {model.target.name!r}", "none"))
    answers, _ = other.predict_with_surprises(rows)
    truth = model.target.encode(rows[model.target.name])
    head = {"rows": len(rows), "folds": 1}
    if model.target.classes is None:
        predicted = torch.from_numpy(answers["prediction"].to_numpy(copy=True))
        scores = score_values(predicted, truth)
        errors = (truth - predicted).abs() / other.learner.spreads(other.encode(rows))
        if len(errors) < _INTERVAL_ROWS:
            return {**head, **scores}, ""
        said = "intervals are as wide as their errors ask for"
        if moments is not None and len(errors) >= 2 * _INTERVAL_ROWS:
            # rows of one period err alike, so that one period says little about the next: take the worse of two
            order = torch.from_numpy(np.argsort(moments[content][known], kind="stable"))
            errors = max(errors[order].tensor_split(2), key=lambda half: float(half.quantile(LEVEL)))
            said = "intervals are as wide as the errors of their worse half ask for"
        # rows of the same groups or days, left out one by one, are easier than those that will come
        learner = model.learner
        model.learner = Learner(
            learner.machine, learner.view, None, errors.sort().values, learner.low, learner.high, learner.spread
        )
        return {**head, **scores}, said
    # a class that the earlier rows or other groups lack has next to no probability
    columns = [f"p_{name}" for name in model.target.classes]
    p = torch.from_numpy(answers.reindex(columns=columns, fill_value=0.0).to_numpy(dtype=np.float64, copy=True))
    p = p.clamp_min(_LEAST)
    return {**head, **score_classes(p / p.sum(1, keepdim=True), truth)}, ""
