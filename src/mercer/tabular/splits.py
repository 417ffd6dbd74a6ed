"""Scores on rows as they will come: later than the rows learned from, or of groups that none of them belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.class_weight import compute_class_weight

from .. import checks
from .columns import Array, Writing, date_format, dates, find_target, numbers, present, words
from .learner import Learner
from .scoring import beside, score_classes, score_values, why_no_boosting
from .training import FEWEST, LEVEL, Training, order_by_content

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


def read_moments(frame: pd.DataFrame, time: str, target: str, weight: Any) -> Array:  # (n,)
    """When each row came, by a column of dates or numbers; NaN where it says nothing, or the row teaches nothing."""
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
    # the last rows of a file may be those to predict
    teaches, given = present(frame[target]), checks.weights("TabularModel", "sample_weight", weight, len(frame))
    if given is not None:
        teaches = teaches & (given > 0).numpy()
    values = np.where(teaches, values, np.nan)
    if np.isfinite(values).sum() < 2:
        need = f"at least two rows must have a value in {time!r} and in {target!r}"
        raise ValueError(checks.sentence("time", need, int(np.isfinite(values).sum())))
    if not np.nanmin(values) < np.nanmax(values):
        need = f"column {time!r} must tell earlier from later rows"
        raise ValueError(checks.sentence("time", need, "rows that are all alike"))
    return np.asarray(values, dtype=np.float64)


def choose_scored_rows(names: Array | None, moments: Array | None, seed: int) -> Array:  # (n,)
    """The last fifth of the rows by ``moments``, rows of one moment together; or all rows of a fifth of the groups.

    Every group is drawn with the same chance, whatever its size: drawn until they have a fifth of the rows, large ones
    would come too often.

    Args:
        names: Names of the groups, ``(n,)``; None where rows come by time.
        moments: When each row came, ``(n,)``; None where groups are drawn.
        seed: Random seed of the draw.
    """
    if moments is not None:
        # rows of one moment stay together: before the cut or after it, whichever leaves nearly a fifth
        edge = np.nanquantile(moments, 1 - _SHARE, method="lower")
        fifth = _SHARE * np.isfinite(moments).sum()
        after, since = moments > edge, moments >= edge
        before = np.isfinite(moments) & ~since
        if not after.any() or (before.any() and since.sum() - fifth < fifth - after.sum()):
            return np.asarray(since)
        return np.asarray(after)
    different, place = np.unique(np.asarray(names), return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(different))
    return np.isin(place, order[: max(1, round(_SHARE * len(different)))])


def name_groups(frame: pd.DataFrame, groups: str | None) -> Array:  # (n,)
    """The name of each row's group; rows without a name are one group."""
    names = words(frame[find_target(frame.columns, groups, "groups")]).fillna("").to_numpy(dtype=str)
    if len(np.unique(names)) < 2:
        need = f"column {groups!r} must hold several groups"
        raise ValueError(checks.sentence("groups", need, "rows that are all alike"))
    return names


def score_split(
    model: TabularModel,
    begin: Callable[[], Training],
    table: pd.DataFrame,
    parts: Sequence[Array],
    weight: Any,
    names: Array | None,
    moments: Array | None,
    writings: Mapping[str, Writing] | None,
    *,
    compare: bool,
) -> tuple[dict[str, Any], str]:
    """Scores of rows, each part of them predicted by a model of all other rows, and a sentence on interval widths.

    Such a model knows nothing of its part: no value, no mean of the target, no choice of machines. The intervals of a
    ``model`` that was not chosen by periods get the widths that cover these rows; of later rows, the earlier or the
    later half, the one that asks for more.

    Args:
        model: Of all rows; its classes are those that are scored.
        begin: Makes what learns from the other rows.
        table: All rows.
        parts: Which rows are scored together, ``(n,)`` each; no row is in two parts.
        weight: Weights of all rows, ``(n,)``; None for 1.
        names: Names of their groups, ``(n,)``, where groups choose the machines of the other models, too; else None.
        moments: When they came, ``(n,)``; None where whole groups are scored.
        writings: For each column how it writes numbers and dates, where ``table`` is a part of the file.
        compare: Score a linear model and boosted trees in the same way; of one part.
    """
    target = model.target.name
    known = np.asarray(model.target.known(table[target]))
    if weight is not None:
        known = known & (np.asarray(weight, dtype=np.float64) > 0)
    parts = [scored for scored in parts if (known & scored).any()] or parts[:1]
    content = order_by_content(table)  # sums and ties are the same for any order of rows
    places = [content[(known & scored)[content]] for scored in parts]
    truths = [model.target.encode(table.iloc[place][target]) for place in places]
    truth, classes = torch.cat(truths), model.target.classes
    head = {"rows": len(truth), "folds": len(parts)}

    # learn from the other rows, if they say anything
    taught = [model.target.encode(table[target][known & ~scored]) for scored in parts]
    others, last = ("rows of other groups", "groups") if moments is None else ("rows before the last ones", "last rows")
    why = ""
    if min(map(len, taught)) < FEWEST or not len(truth):
        why = f"there are too few {others}"
    elif classes is not None and min(len(y.unique()) for y in taught) < 2:
        why = f"all {others} are of one class"
    elif classes is None and not float(truth.min()) < float(truth.max()):
        why = f"{target} is the same in all of the {last}"
    if why:
        return {**head, "folds": 0, "note": why}, ""
    outputs, spreads = [], []
    for scored, place in zip(parts, places, strict=True):
        other, rows = begin(), table.iloc[place]
        try:
            other.learn(
                table[~scored],
                target,
                None if weight is None else np.asarray(weight)[~scored],
                writings=writings,
                groups=None if names is None or len(np.unique(names[~scored])) < 2 else names[~scored],
                moments=None if moments is None else moments[~scored],
            )
        except ValueError as error:  # all rows could be learned from: without these too little is left
            return {**head, "folds": 0, "note": f"{others} teach nothing: {error}"}, ""
        of_others = type(model)(task=model.target.task, random_state=model.random_state)
        of_others.set_state(other.state())
        answers, _ = of_others.predict_with_surprises(rows)
        if classes is not None:
            columns = [f"p_{name}" for name in classes]  # a class that it never met has next to no probability
            answers = answers.reindex(columns=columns, fill_value=0.0)
        else:
            answers = answers[["prediction"]]
            spreads.append(other.learner.spreads(of_others.encode(rows)))
        outputs.append(torch.from_numpy(answers.to_numpy(dtype=np.float64, copy=True)))
    predicted = torch.cat(outputs)
    said = ""
    if classes is not None:
        p = predicted.clamp_min(_LEAST)
        model_of_row = torch.repeat_interleave(torch.tensor([len(output) for output in outputs]))
        scores = {**head, **score_classes(p / p.sum(1, keepdim=True), truth, model_of_row)}
    else:
        scores = {**head, **score_values(predicted[:, 0], truth)}
        errors = (truth - predicted[:, 0]).abs() / torch.cat(spreads)
        weights = None if weight is None else torch.from_numpy(np.asarray(weight, dtype=np.float64))
        weights = None if weights is None else weights[torch.from_numpy(np.concatenate(places))]
        if other.periods is not None:
            said = "intervals are as wide as the errors of later periods ask for"  # see Learner.of
        elif len(errors) >= _INTERVAL_ROWS:
            said = "intervals are as wide as their errors ask for"
            if moments is not None and len(errors) >= 2 * _INTERVAL_ROWS:
                # rows of one period err alike, so that one period says little about the next: take the worse of two
                order = torch.from_numpy(np.argsort(moments[places[0]], kind="stable"))
                half = max(order.tensor_split(2), key=lambda half: float(errors[half].quantile(LEVEL)))
                errors, weights = errors[half], None if weights is None else weights[half]
                said = "intervals are as wide as the errors of their worse half ask for"
            # rows of the same groups or days, left out one by one, are easier than those that will come
            learner = model.learner
            ascending, order = errors.sort()
            weights = None if weights is None else (weights / weights.mean())[order]
            model.learner = Learner(
                learner.machine, learner.view, None, ascending, learner.low, learner.high, learner.spread, weights
            )

    if compare:
        # the other models learn from the same rows, and see the columns as ours does
        x, y = torch.cat((other.x, of_others.encode(rows))), other.y
        if classes is not None and other.target.classes is not None:
            y = torch.from_numpy(np.searchsorted(classes, other.target.classes))[y]
        y = torch.cat((y, truth))
        fold = (torch.arange(len(x)) >= len(other.x)).long()
        weight_of_each = None if other.weight is None else torch.cat((other.weight, torch.ones(len(rows))))
        scores["beside"] = beside(x, y, fold, fold.nonzero()[:, 0], classes, other.progress, weight_of_each)
        reason = why_no_boosting(x.shape[1], 0 if classes is None else len(classes))
        model.notes += [reason] * bool(reason)
    return scores, said
