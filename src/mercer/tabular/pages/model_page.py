"""A fitted model of a table as one self-contained page: how good it is, what it looks at, how it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import __version__
from ...figures import numbers, plots
from ...figures.pages import Picture, fill, label, own_text
from ...figures.theme import Figure
from ...storage.files import atomic_write
from ...user_text import shown
from ..columns.target_means import MISSING
from ..effects import Effect, Reasons, correlated, effect_curves
from ..importance import column_weights
from ..scoring import best_beside, boosting_is_better, find_rare_class
from .diagnosis_page import column_lines, draw_picture

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
    if weights is None:
        weights = column_weights(model)
    # What the template shows, by the names that it uses.
    measures = [name for name in _TILES if model.scores.get(name) is not None]
    tiles = [(_write_score(model.scores[name], name), *_TILES[name]) for name in measures]
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
        "tiles": tiles,
        "beside": _list_other_models(model.scores),
        "confused": confusions(model, _CONFUSIONS),
        "machines": machine_lines(model),
        "features": len(model.feature_names),
        "pictures": _draw_pictures(model, weights, losses),
        "losses": losses,
        "because": [reason_lines(why) for why in reasons],
        "together": [", ".join(group) for group in correlated(model, weights)],
    }
    atomic_write(path, fill("mercer.tabular.pages", "model.html", values).encode())
    return path


def reason_lines(why: Reasons) -> tuple[str, list[tuple[str, str]]]:
    """A row and its answer in words, and what each of its five largest columns adds; the others in one line."""
    parts = list(why.parts.items())
    lines = []
    for name, value in parts[:_PARTS]:
        cell = why.cells.get(name)
        if cell:  # the row's value, so that one need not look it up
            name = f"{shown(name, 40)} = {shown(cell, 24)}"
        lines.append((name, value))
    if len(parts) > _PARTS:
        name = f"{len(parts) - _PARTS} more column" + "s" * (len(parts) != _PARTS + 1)
        lines.append((name, sum(value for _, value in parts[_PARTS:])))
    # A probability moves by points of a hundred, a number by its own unit.
    if why.of:
        title = f"row {why.row}: {shown(why.answer, 30)} ({why.value:.1%}; on average {why.average:.1%})"
        return title, [(shown(name, 40), f"{100 * value:+.1f} points") for name, value in lines]
    # As many decimals as the largest part needs for three digits.
    largest = max([abs(value) for _, value in lines] + [1e-12])
    decimals = max(0, 2 - math.floor(math.log10(largest)))
    answer = f"{why.value:,.{decimals}f} (on average {why.average:,.{decimals}f})"
    return f"row {why.row}: {answer}", [(shown(name, 40), f"{value:+,.{decimals}f}") for name, value in lines]


def headline(model: TabularModel) -> str:
    """How good the model is, in a sentence."""
    name, scores = model.target.name, model.scores
    if not scores["folds"]:
        return f"{name} is predicted from {_count_columns(model)}; the rows were too few to say how well."
    # A number: its explained variation.
    if model.target.classes is None:
        explained = f"{_percent(scores['r2'])} of its variation on unseen rows"
        if scores["r2"] <= 0:
            return f"{name}: no better than always predicting the mean, on unseen rows."
        if scores["r2"] < _HARDLY:
            return f"{name}: hardly better than always predicting the mean; {explained}."
        return f"{name} is predicted from {_count_columns(model)}: {explained}."
    # A rare class: the share of rows that are right says little where nearly all are of one class.
    rare = find_rare_class(scores)
    if rare:
        rare_class = shown(str(model.target.classes[rare.number]), 30)
        tenth = f"holds {rare.in_first_tenth:.0%} of the {rare_class} rows (10% by chance)"
        rarely = f"{rare_class} is rare ({_percent(rare.share)})"
        hits = f"{rare.hits:,} of {rare.hits + rare.missed:,} are predicted as {rare_class}"
        alarms = f"with {rare.false_alarms:,} false alarms"
        return f"{name}: the tenth of unseen rows that the model finds likeliest {tenth}. {rarely}: {hits}, {alarms}."
    # Classes that are never predicted, or nothing gained over the most frequent class.
    right, alone = _percent(scores["accuracy"]), _percent(scores["always_most_frequent"])
    never = never_predicted(model)
    if never:
        listed = ", ".join([shown(class_name, 30) for class_name in never[:5]] + ["..."] * (len(never) > 5))
        verb, by_guess = "are", alone
        if len(never) == 1:
            verb = "is"
        if right == alone:
            by_guess = "as many as"
        score = f"{right} right on unseen rows, {by_guess} by the most frequent class alone"
        return f"{name}: {listed} {verb} never predicted; {score}."
    if not gains(scores):
        by_model = ""
        if right != alone:
            by_model = f" ({right} by the model)"
        return f"{name}: no more rows right than by the most frequent class alone, {alone} on unseen rows{by_model}."
    guess = f"where the most frequent class alone gives {alone}"
    return f"{name} is predicted from {_count_columns(model)}: {right} right on unseen rows, {guess}."


def advice(model: TabularModel) -> str:
    """What to do where a class is hardly predicted or nothing is gained; else empty."""
    scores = model.scores
    if not scores["folds"] or model.target.classes is None:
        return ""
    rare = find_rare_class(scores)
    if rare and rare.hits < rare.missed:
        name = shown(str(model.target.classes[rare.number]), 30)
        cost = f"pass --cost {name}=10 to mercer predict if a missed {name} is as bad as 10 false alarms"
        threshold = f'or --threshold {name}=P for a probability P; in Python class_weight="balanced"'
        return f"To predict {name} sooner, {cost}, {threshold}."
    if gains(scores) and not never_predicted(model):
        return ""
    what = 'or rare classes, pass --threshold to mercer predict, or class_weight="balanced" in Python.'
    if scores.get("auroc") is None:
        return f"F{what}"
    return f"Its ranking of rows has an AUROC of {scores['auroc']:.2f}; f{what}"


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
        listed = "; ".join(unused[:_UNUSED])
        if len(unused) > _UNUSED:
            listed += f" and {len(unused) - _UNUSED} more"
        steps.append(f"Not used: {listed}.")
    return [step for step in steps if step]


def never_predicted(model: TabularModel) -> list[str]:
    """Classes that left-out rows have and that none of them is taken for."""
    counts = model.scores.get("confusion")
    if not counts or model.target.classes is None:
        return []
    names = map(str, model.target.classes)
    return [name for i, name in enumerate(names) if sum(counts[i]) and not any(row[i] for row in counts)]


def gains(scores: Mapping[str, Any]) -> bool:
    """Whether more rows are right than by the most frequent class alone, by more than a standard error."""
    sizes = [sum(row) for row in scores["confusion"]]
    of_other_classes = sum(sizes) - max(sizes)  # rows that can be gained
    gained = (scores["accuracy"] - scores["always_most_frequent"]) * sum(sizes)
    return bool(gained > max(1, of_other_classes) ** 0.5)


def confusions(model: TabularModel, count: int) -> list[tuple[str, str, int, int]]:
    """The most frequent mistakes: true class, predicted class, rows, rows of the true class."""
    table = model.scores.get("confusion")
    if table is None or model.target.classes is None:
        return []
    names = [str(name) for name in model.target.classes]
    mistakes = []
    for true, row in zip(names, table, strict=True):
        for predicted, rows in zip(names, row, strict=True):
            if predicted != true and rows:
                mistakes.append((true, predicted, rows, sum(row)))
    return sorted(mistakes, key=lambda mistake: -mistake[2])[:count]


def machine_lines(model: TabularModel) -> list[dict[str, Any]]:
    """Each machine: what it does in words, and its numbers, as values and as text."""
    lines = []
    for part in model.learner.parts():
        cells = {"share": _percent(part["share"])}
        for name in ("penalty", "error"):
            cells[name] = "–"
            if part[name] is not None:
                cells[name] = numbers.plain(part[name], 2)
        lines.append({"what": part["what"], "shown": cells, "values": part})
    return lines


def _list_other_models(scores: Mapping[str, Any]) -> dict[str, Any] | None:
    """Other models on the same folds: the measures, and a line for each model, ours first."""
    models = scores.get("beside")
    if not models:
        return None
    measures = list(next(iter(models.values())))
    best, by = best_beside(scores)
    lines = []
    for name, scores_of_model in {"this model": scores, **models}.items():
        cells = [_write_score(scores_of_model[measure], measure) for measure in measures]
        lines.append((name, name == best, cells))
    return {"measures": [_SHORT.get(m, _TILES[m][0]) for m in measures], "lines": lines, "by": by}


def _write_score(score: float | None, measure: str) -> str:
    if score is None:
        return "–"
    if measure in _SHARES:
        return _percent(score)
    return numbers.plain(score, 3)


def _draw_pictures(
    model: TabularModel, weights: Mapping[str, float], losses: Mapping[str, float] | None
) -> dict[str, Picture]:
    """The page's pictures by their anchors; which there are depends on the target and on what is known."""
    scores, pictures = model.scores, {}

    def add(anchor: str, draw: Callable[[], Figure], alt: str, caption: str) -> None:
        pictures[anchor] = draw_picture(anchor, draw, alt, caption)

    # What it looks at, and how the prediction moves with it.
    add(
        "weights",
        lambda: _draw_bars(weights, "share, %"),
        f"Weights of the columns: {next(iter(weights))} is first.",
        "How far the prediction moves when a column's values are exchanged between training rows.",
    )
    for number, effect in enumerate(effect_curves(model, weights)):
        what = _name_effect(effect)
        band = "."
        if _is_curve(effect):
            band = ". The band holds the middle 80% of the rows."
        if effect.column in model.means.tables_:
            count = len(set(model.means.tables_[effect.column][0]) - {MISSING})
            band = f": of {count:,} words, those with the lowest and the highest mean of the target."
        add(
            f"effect{number}",
            partial(_draw_effect, effect, model.target.name),
            f"How the prediction moves with {what}.",
            f"The average prediction for each value of {what}{band}",
        )
    # What it needs, where shuffling was measured.
    if losses:
        add(
            "losses",
            lambda: _draw_bars(losses, "points lost, %"),
            "What shuffling each column of the given data costs.",
            "How much the score on the given rows falls when one column is shuffled: what the model really needs.",
        )
    # Of classes: are its probabilities true, and which classes does it mistake?
    if "reliability" in scores:
        bins = scores["reliability"]
        # JSON has no NaN: a bin without rows holds None.
        confidence, accuracy = (np.array(bins[name], dtype=float).tolist() for name in ("confidence", "accuracy"))
        add(
            "reliability",
            lambda: plots.reliability(bins["rows"], confidence, accuracy, title="Confidence beside accuracy"),
            f"Reliability diagram, calibration error {scores['ece']:.3f}.",
            "Can its probabilities be believed? Bars on the dashed line: of the rows it calls 80% sure, 80% are "
            "right. Below, how many rows there are of each confidence; pale bars have fewer than ten.",
        )
    if model.target.classes is not None and len(scores.get("confusion", ())) in range(1, _CLASSES + 1):
        names = [label(str(name)) for name in model.target.classes]
        add(
            "confusion",
            lambda: plots.confusion(scores["confusion"], names),
            "Confusion matrix: rows are the true classes, columns the predicted ones.",
            "Rows it had not seen, counted: the true class down, the predicted class across. All on the diagonal would "
            "be perfect. Colours are shares of the true class.",
        )
    # Of numbers: the predicted beside the true.
    if "pairs" in scores:
        step = max(1, len(scores["pairs"]["value"]) // _POINTS)
        values, predictions = (scores["pairs"][name][::step] for name in ("value", "prediction"))
        x_label, y_label = f"true {label(model.target.name)}", "predicted, rows left out"
        add(
            "pairs",
            lambda: plots.scatter(values, predictions, x_label=x_label, y_label=y_label),
            "Predicted value against true value for rows the model had not seen.",
            "Each point is a row it had not seen. On the dashed line the prediction is exact.",
        )
    return pictures


def _name_effect(effect: Effect) -> str:
    if effect.part:
        return f"the {effect.part} of {effect.column}"
    return effect.column


def _is_curve(effect: Effect) -> bool:
    return effect.part in ("trend", "season") or all(isinstance(value, float) for value in effect.values)


def _draw_effect(effect: Effect, target: str) -> Figure:
    """Bars for words, weekdays and truth values; a curve with its band for numbers and dates."""
    y_label = f"predicted {label(target)}"
    if effect.of:
        y_label = f"probability of {label(effect.of)}"
    x, x_label = effect.values, label(_name_effect(effect))
    if not _is_curve(effect):
        names = [label(str(value)) for value in effect.values]
        if effect.counts:
            names = [f"{name} ({count:,} rows)" for name, count in zip(names, effect.counts, strict=True)]
        return plots.bars({"": dict(zip(names, effect.mean, strict=True))}, x_label=f"{y_label}, by {x_label}")
    if effect.part == "season":
        x, x_label = [float(month) for month in range(1, 13)], f"month of {label(effect.column)}"
    if effect.part == "trend":
        # Days of one year, or years.
        days = np.array(effect.values, dtype="datetime64[D]").astype(np.int64).astype(np.float64)
        x, x_label = (days - days[0]).tolist(), f"{label(effect.column)}, days since {effect.values[0]}"
        if days[-1] - days[0] > _LONG_TREND:
            x, x_label = (1970 + days / 365.2425).tolist(), f"{label(effect.column)}, year"
    curve = {"x": x, "y": effect.mean, "low": effect.low, "high": effect.high}
    return plots.lines({"average": curve}, x_label=x_label, y_label=y_label)


def _draw_bars(shares: Mapping[str, float], x_label: str) -> Figure:
    """The largest shares, in percent."""
    percents = {label(name): 100 * value for name, value in list(shares.items())[:_WEIGHTS]}
    return plots.bars({"": percents}, x_label=x_label)


def _count_columns(model: TabularModel) -> str:
    used = sum(not column.dropped for column in model.preparation.columns)
    return f"{used} column" + "s" * (used != 1)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
