"""A fitted model of a table as one self-contained page: how good it is, what it looks at, how it is built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import __version__, figures
from ...figures import numbers
from ...figures.pages import Picture, fill, label, own_text
from ...storage.files import atomic_write
from ...user_text import shown
from ..effects import Effect, Reasons, correlated, effect_curves
from ..importance import column_weights
from ..scoring import best_beside, boosting_is_better
from .column_lines import column_lines
from .diagnosis_page import drawn

if TYPE_CHECKING:
    from ..model import TabularModel

_CLASSES = 14  # classes up to which the confusion matrix is drawn
_WEIGHTS = 15  # columns in the picture of weights
_CONFUSIONS = 6
_UNUSED = 10  # dropped columns that are named at the top
_PARTS = 5  # columns of a row that are listed
_POINTS = 600
_HARDLY = 0.05  # R2 below which a model says hardly more than the mean
_LONG_TREND = 1000  # days from which on the axis has years
_TILES = {
    "accuracy": ("right", "of rows it had not seen"),
    "balanced_accuracy": ("right by class", "the mean over the classes"),
    "auroc": ("AUROC", "1 ranks all rows rightly, 0.5 is chance"),
    "average_precision": ("average precision", "1 ranks all rows rightly, the class's share is chance"),
    "log_loss": ("log loss", "of its probabilities; lower is better"),
    "ece": ("calibration error", "how far its confidence is off"),
    "r2": ("explained", "of the target's variation on rows it had not seen"),
    "rmse": ("root mean squared error", "in the target's unit"),
    "mae": ("mean absolute error", "in the target's unit"),
}
_SHORT = {"balanced_accuracy": "by class", "average_precision": "avg. prec."}
_SHARES = ("accuracy", "balanced_accuracy", "r2")


def model_page(
    model: TabularModel,
    path: str | Path,
    *,
    folder: str = "MODEL",
    losses: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    reasons: Sequence[Reasons] = (),
) -> Path:
    """Write the page and return its path.

    Args:
        model: A fitted model.
        path: Where the page goes.
        folder: What the model's folder is called in the commands.
        losses: What shuffling a column costs, from :func:`mercer.tabular.importance.permutation_losses`.
        weights: The columns' weights, where they are known: :func:`mercer.tabular.importance.column_weights`.
        reasons: Why some rows get their answers, from :func:`mercer.tabular.effects.reasons`.
    """
    path = Path(path)
    weights = column_weights(model) if weights is None else weights
    values = {
        "m": model,
        "columns": column_lines(model.preparation.columns),
        "folder": folder,
        "title": f"What a model of {model.target.name} learned",
        "headline": headline(model),
        "steps": next_steps(model),
        "version": __version__,
        "seconds": 0.0,
        "style": own_text("style.css") + own_text("pages.css"),
        "tiles": _tiles(model.scores),
        "beside": _beside(model.scores),
        "confused": confusions(model, _CONFUSIONS),
        "machines": machine_lines(model),
        "features": len(model.feature_names),
        "pictures": _pictures(model, weights, losses),
        "losses": losses,
        "because": [reason_lines(why) for why in reasons],
        "together": [", ".join(group) for group in correlated(model, weights)],
    }
    atomic_write(path, fill("mercer.tabular.pages", "model.html", values).encode())
    return path


def reason_lines(why: Reasons) -> tuple[str, list[tuple[str, str]]]:
    """A row and its answer in words, and what each of its five largest columns adds; the others in one line."""
    parts = list(why.parts.items())
    more = f"{len(parts) - _PARTS} more column" + "s" * (len(parts) != _PARTS + 1)
    # each column with the row's value in it, so that one need not look it up
    lines = [
        (f"{shown(name, 40)} = {shown(why.cells[name], 24)}" if why.cells.get(name) else name, value)
        for name, value in parts[:_PARTS]
    ]
    lines += [(more, sum(value for _, value in parts[_PARTS:]))] * (len(parts) > _PARTS)
    if why.of:
        title = f"row {why.row}: {shown(why.answer, 30)} ({why.value:.1%}; on average {why.average:.1%})"
        return title, [(shown(name, 40), f"{100 * value:+.1f} points") for name, value in lines]
    # as many decimals as the largest part needs for three digits
    largest = max([abs(value) for _, value in lines] + [1e-12])
    decimals = max(0, 2 - math.floor(math.log10(largest)))
    answer = f"{why.value:,.{decimals}f} (on average {why.average:,.{decimals}f})"
    return f"row {why.row}: {answer}", [(shown(name, 40), f"{value:+,.{decimals}f}") for name, value in lines]


def headline(model: TabularModel) -> str:
    """How good the model is, in a sentence."""
    name, scores = model.target.name, model.scores
    if not scores["folds"]:
        return f"{name} is predicted from {_used(model)}; the rows were too few to say how well."
    if model.target.classes is None:
        share = f"{_percent(scores['r2'])} of its variation on unseen rows"
        if scores["r2"] <= 0:
            return f"{name}: no better than always predicting the mean, on unseen rows."
        if scores["r2"] < _HARDLY:
            return f"{name}: hardly better than always predicting the mean; {share}."
        return f"{name} is predicted from {_used(model)}: {share}."
    right, alone = _percent(scores["accuracy"]), _percent(scores["always_most_frequent"])
    never = never_predicted(model)
    if never:
        listed = ", ".join(shown(one, 30) for one in never[:5]) + (", ..." if len(never) > 5 else "")
        verb = "is" if len(never) == 1 else "are"
        other = "as many as" if right == alone else alone
        score = f"{right} right on unseen rows, {other} by the most frequent class alone"
        return f"{name}: {listed} {verb} never predicted; {score}."
    if not gains(scores):
        other = "" if right == alone else f" ({right} by the model)"
        return f"{name}: no more rows right than by the most frequent class alone, {alone} on unseen rows{other}."
    guess = f"where the most frequent class alone gives {alone}"
    return f"{name} is predicted from {_used(model)}: {right} right on unseen rows, {guess}."


def advice(model: TabularModel) -> str:
    """What to do where a class is never predicted or nothing is gained; else empty."""
    scores = model.scores
    if not scores["folds"] or model.target.classes is None or (gains(scores) and not never_predicted(model)):
        return ""
    ranks = f"Its ranking of rows has an AUROC of {scores['auroc']:.2f}; " if scores.get("auroc") is not None else ""
    what = 'for rare classes, pass --threshold to mercer predict, or class_weight="balanced" in Python.'
    return f"{ranks}{what}" if ranks else what.capitalize()


def next_steps(model: TabularModel) -> list[str]:
    """What to do with the model, in sentences: what its scores ask for, then which columns it does not use."""
    scores, steps = model.scores, [advice(model)]
    if boosting_is_better(scores):
        steps.append("Boosted trees are better on this table: use scikit-learn's HistGradientBoosting for it.")
    if model.target.classes is None and scores["folds"] and scores["r2"] < _HARDLY:
        steps.append("Look for columns that bear on the target; more rows may help, too.")
    unused = [
        f"{shown(c.name, 40)} ({c.how.removeprefix('dropped: ')})" for c in model.preparation.columns if c.dropped
    ]
    if unused:
        more = f" and {len(unused) - _UNUSED} more" if len(unused) > _UNUSED else ""
        steps.append(f"Not used: {'; '.join(unused[:_UNUSED])}{more}.")
    return [step for step in steps if step]


def never_predicted(model: TabularModel) -> list[str]:
    """Classes that left-out rows have and that none of them is taken for."""
    counts = model.scores.get("confusion", [])
    names = [] if model.target.classes is None else map(str, model.target.classes)
    return [name for i, name in enumerate(names) if counts and sum(counts[i]) and not any(row[i] for row in counts)]


def gains(scores: Mapping[str, Any]) -> bool:
    """Whether more rows are right than by the most frequent class alone, by more than a standard error."""
    sizes = [sum(row) for row in scores["confusion"]]
    others = sum(sizes) - max(sizes)  # rows that can be gained
    gained = (scores["accuracy"] - scores["always_most_frequent"]) * sum(sizes)
    return bool(gained > max(1, others) ** 0.5)


def confusions(model: TabularModel, most: int) -> list[tuple[str, str, int, int]]:
    """The most frequent mistakes: true class, predicted class, rows, rows of the true class."""
    table = model.scores.get("confusion")
    if table is None or model.target.classes is None:
        return []
    names = [str(name) for name in model.target.classes]
    found = [
        (names[i], names[j], count, sum(row))
        for i, row in enumerate(table)
        for j, count in enumerate(row)
        if i != j and count
    ]
    return sorted(found, key=lambda mistake: -mistake[2])[:most]


def machine_lines(model: TabularModel) -> list[dict[str, Any]]:
    """Each machine: what it does in words, and its numbers, as values and as text."""
    lines = []
    for part in model.learner.parts():
        shown = {"share": _percent(part["share"])}
        shown |= {name: "–" if part[name] is None else numbers.plain(part[name], 2) for name in ("penalty", "error")}
        lines.append({"what": part["what"], "shown": shown, "values": part})
    return lines


def _tiles(scores: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    known = [name for name in _TILES if scores.get(name) is not None]
    return [(_shown(scores[name], name), *_TILES[name]) for name in known]


def _beside(scores: Mapping[str, Any]) -> dict[str, Any] | None:
    """Other models on the same folds: the measures, and a line for each model, ours first."""
    others = scores.get("beside")
    if not others:
        return None
    measures = list(next(iter(others.values())))
    best, by = best_beside(scores)
    lines = [
        (name, name == best, [_shown(found[measure], measure) for measure in measures])
        for name, found in {"this model": scores, **others}.items()
    ]
    return {"measures": [_SHORT.get(m, _TILES[m][0]) for m in measures], "lines": lines, "by": by}


def _shown(score: float | None, measure: str) -> str:
    if score is None:
        return "–"
    return _percent(score) if measure in _SHARES else numbers.plain(score, 3)


def _pictures(
    model: TabularModel, weights: Mapping[str, float], losses: Mapping[str, float] | None
) -> dict[str, Picture]:
    scores, found = model.scores, {}
    found["weights"] = drawn(
        "weights",
        lambda: _bars({"": dict(weights)}, "share, %"),
        f"Weights of the columns: {next(iter(weights))} is first.",
        "How far the prediction moves when a column's values are exchanged between training rows.",
    )
    for number, effect in enumerate(effect_curves(model, weights)):
        found[f"effect{number}"] = drawn(
            f"effect{number}",
            lambda effect=effect: _effect(effect, model.target.name),  # type: ignore[misc]
            f"How the prediction moves with {_moved(effect)}.",
            f"The average prediction for each value of {_moved(effect)}"
            + (". The band holds the middle 80% of the rows." if _is_curve(effect) else "."),
        )
    if losses:
        found["losses"] = drawn(
            "losses",
            lambda: _bars({"": dict(losses)}, "points lost, %"),
            "What shuffling each column of the given data costs.",
            "How much the score on the given rows falls when one column is shuffled: what the model really needs.",
        )
    if "reliability" in scores:
        found["reliability"] = drawn(
            "reliability",
            lambda: _reliability(scores["reliability"]),
            f"Reliability diagram, calibration error {scores['ece']:.3f}.",
            "Can its probabilities be believed? Bars on the dashed line: of the rows it calls 80% sure, 80% are "
            "right. Below, how many rows there are of each confidence; pale bars have fewer than ten.",
        )
    if "confusion" in scores and len(scores["confusion"]) <= _CLASSES:
        found["confusion"] = drawn(
            "confusion",
            lambda: _confusion(model),
            "Confusion matrix: rows are the true classes, columns the predicted ones.",
            "Rows it had not seen, counted: the true class down, the predicted class across. All on the diagonal would "
            "be perfect. Colours are shares of the true class.",
        )
    if "pairs" in scores:
        found["pairs"] = drawn(
            "pairs",
            lambda: _pairs(model),
            "Predicted value against true value for rows the model had not seen.",
            "Each point is a row it had not seen. On the dashed line the prediction is exact.",
        )
    return found


def _moved(effect: Effect) -> str:
    return f"the {effect.part} of {effect.column}" if effect.part else effect.column


def _is_curve(effect: Effect) -> bool:
    return effect.part in ("trend", "season") or all(isinstance(value, float) for value in effect.values)


def _effect(effect: Effect, target: str) -> figures.Figure:
    y_label = f"probability of {label(effect.of)}" if effect.of else f"predicted {label(target)}"
    if not _is_curve(effect):
        names = [label(str(value)) for value in effect.values]
        if effect.counts:
            names = [f"{name} ({count:,} rows)" for name, count in zip(names, effect.counts, strict=True)]
        return figures.bars(
            {"": dict(zip(names, effect.mean, strict=True))}, x_label=f"{y_label}, by {label(_moved(effect))}"
        )
    x, x_label = effect.values, label(_moved(effect))
    if effect.part == "season":
        x, x_label = [float(month) for month in range(1, 13)], f"month of {label(effect.column)}"
    if effect.part == "trend":
        # days of one year, or years
        days = np.array(effect.values, dtype="datetime64[D]").astype(np.int64).astype(np.float64)
        x, x_label = (days - days[0]).tolist(), f"{label(effect.column)}, days since {effect.values[0]}"
        if days[-1] - days[0] > _LONG_TREND:
            x, x_label = (1970 + days / 365.2425).tolist(), f"{label(effect.column)}, year"
    return figures.lines(
        {"average": {"x": x, "y": effect.mean, "low": effect.low, "high": effect.high}},
        x_label=x_label,
        y_label=y_label,
    )


def _bars(shares: Mapping[str, Mapping[str, float]], x_label: str) -> figures.Figure:
    first = {name: {label(k): 100 * v for k, v in list(values.items())[:_WEIGHTS]} for name, values in shares.items()}
    return figures.bars(first, x_label=x_label)


def _reliability(bins: Mapping[str, Any]) -> figures.Figure:
    confidence, accuracy = (
        [float("nan") if value is None else value for value in bins[name]] for name in ("confidence", "accuracy")
    )
    return figures.reliability(bins["rows"], confidence, accuracy, title="Confidence beside accuracy")


def _confusion(model: TabularModel) -> figures.Figure:
    assert model.target.classes is not None
    names = [label(str(name)) for name in model.target.classes]
    return figures.confusion(model.scores["confusion"], names)


def _pairs(model: TabularModel) -> figures.Figure:
    pairs = model.scores["pairs"]
    step = max(1, len(pairs["value"]) // _POINTS)
    return figures.scatter(
        pairs["value"][::step],
        pairs["prediction"][::step],
        x_label=f"true {label(model.target.name)}",
        y_label="predicted, rows left out",
    )


def _used(model: TabularModel) -> str:
    used = sum(not column.dropped for column in model.preparation.columns)
    return f"{used} column" + "s" * (used != 1)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
