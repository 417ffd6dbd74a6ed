"""Scores on rows that were left out, beside what one would use anyway, and what the pictures of them need."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from .columns import Array
from .folds import StableRandom, stratified_folds

FOLDS = 5
BOOSTING = "HistGradientBoosting"
MEASURES = ("accuracy", "balanced_accuracy", "log_loss", "auroc", "average_precision")
_DRAWN = 1000  # pairs of value and prediction that are kept for the picture
_BINS = 10
_WIDE = 1000  # columns above which trees would take longer than everything else together
_MANY = 30  # classes above which they would, too: each round grows a tree for each class
_RARE = 0.2  # share of the rows below which a class is rare
_BETTER = 0.02  # share of a score by which boosting must be ahead to be recommended


def deal(y: Tensor, classes: int, seed: int) -> Tensor:  # (n,) -> (n,)
    """A fold ``0..4`` for each row, the classes spread evenly."""
    strata = y if classes else torch.zeros(len(y), dtype=torch.int64)
    return stratified_folds(strata, folds=min(FOLDS, len(y)), seed=seed) - 1


def deal_groups(names: Array, seed: int) -> Tensor:  # (n,) -> (n,)
    """A fold ``0..4`` for each row, that of its group: the largest groups first, each to the fold of fewest rows."""
    different, place, counts = np.unique(names, return_inverse=True, return_counts=True)
    order = StableRandom(seed).permutation(len(different)).numpy()
    order = order[np.argsort(-counts[order], kind="stable")]
    fold = np.zeros(len(different), dtype=np.int64)
    rows = np.zeros(min(FOLDS, len(different)), dtype=np.int64)
    for group in order:
        fold[group] = rows.argmin()
        rows[fold[group]] += counts[group]
    return torch.from_numpy(fold[place])


def score_classes(p: Tensor, y: Tensor, fold: Tensor | None = None) -> dict[str, Any]:
    """Scores of probabilities ``(n, c)`` for class numbers ``(n,)``; ``fold`` says which model made each row's."""
    c = p.shape[1]
    predicted = p.argmax(1)
    confusion = torch.bincount(y * c + predicted, minlength=c * c).reshape(c, c)  # rows: the true class
    there = confusion.sum(1) > 0
    recall = confusion.diagonal()[there] / confusion.sum(1)[there]
    count, confidence, right = metrics.calibration(p, y, _BINS)
    return {
        "accuracy": metrics.accuracy(p, y),
        "balanced_accuracy": float(recall.double().mean()),
        "log_loss": metrics.nll(p, y),
        "ece": metrics.ece(p, y),
        **rank_scores(p, y, fold),
        "always_most_frequent": float(confusion.sum(1).max() / len(y)),
        "confusion": confusion.tolist(),
        "reliability": {
            "rows": count.long().tolist(),
            "confidence": _without_nan(confidence),
            "accuracy": _without_nan(right),
        },
    }


def rank_scores(p: Tensor, y: Tensor, fold: Tensor | None = None) -> dict[str, float | None]:
    """AUROC and average precision of probabilities ``(n, c)``: of two classes the rarer one's, else the classes' means.

    None where a class has no row, or all of them. Of two classes ``in_first_tenth`` is the share of the rarer one's
    rows among the tenth of all rows with its highest probabilities.

    AUROC compares rows of one ``fold``, ``(n,)``, where it is given. A model that saw fewer rows of a class puts all of
    its answers lower, which says nothing of how it orders them.
    """
    from sklearn.metrics import average_precision_score

    counts = torch.bincount(y, minlength=p.shape[1])
    if int(counts.min()) == 0:
        return {"auroc": None, "average_precision": None}
    classes = range(p.shape[1]) if p.shape[1] > 2 else [1 if int(counts[1]) <= int(counts[0]) else 0]
    areas = [_count_ordered(p[:, i], y == i, torch.zeros_like(y) if fold is None else fold) for i in classes]
    precisions = [float(average_precision_score((y == i).numpy(), p[:, i].numpy())) for i in classes]
    scores: dict[str, float | None] = {
        "auroc": sum(areas) / len(areas),
        "average_precision": sum(precisions) / len(precisions),
    }
    if len(classes) == 1 and len(y) >= 10:
        first = p[:, classes[0]].topk(len(y) // 10).indices
        scores["in_first_tenth"] = int((y[first] == classes[0]).sum()) / int(counts[classes[0]])
    return scores


def _count_ordered(scores: Tensor, positive: Tensor, fold: Tensor) -> float:  # (n,), (n,), (n,)
    """Share of the pairs of a positive and another row of its fold that ``scores`` put in order; ties count half."""
    right = pairs = 0.0
    for number in fold.unique():
        above, below = scores[positive & (fold == number)], scores[~positive & (fold == number)]
        if len(above) and len(below):
            right += len(above) * len(below) * metrics.auroc(below, above)
            pairs += len(above) * len(below)
    return right / pairs if pairs else metrics.auroc(scores[~positive], scores[positive])


def score_values(predicted: Tensor, y: Tensor) -> dict[str, Any]:
    """Scores of predicted numbers ``(n,)`` for numbers ``(n,)``."""
    residual = y - predicted
    spread = (y - y.mean()).square().mean()
    drawn = torch.linspace(0, len(y) - 1, min(len(y), _DRAWN)).round().long()
    return {
        "r2": float(1 - residual.square().mean() / spread) if float(spread) > 0 else None,
        "rmse": float(residual.square().mean().sqrt()),
        "mae": float(residual.abs().mean()),
        "always_the_mean_rmse": float(spread.sqrt()),
        "pairs": {"value": y[drawn].tolist(), "prediction": predicted[drawn].tolist()},
    }


def beside(
    x: Tensor,
    y: Tensor,
    fold: Tensor,
    left_out: Tensor,
    classes: Array | None,
    progress: Callable[[str], None],
    weight: Tensor | None = None,
) -> dict[str, dict[str, float | None]]:
    """A linear model and boosted trees on the same folds: accuracy, balanced too, log loss and ranks, or R2.

    Args:
        x: Prepared rows ``(n, d)``.
        y: Class numbers or values ``(n,)``.
        fold: Fold of each row ``(n,)``.
        left_out: Numbers of the rows that are scored ``(r,)``.
        classes: The classes; None for numbers.
        progress: Callback that receives progress messages.
        weight: Weights of all rows in the fits, ``(n,)``; None for 1.
    """
    found = {}
    c = 0 if classes is None else len(classes)
    for name, make in _OTHERS.items():
        if name == BOOSTING and why_no_boosting(x.shape[1], c):
            continue
        progress(f"beside: {name}")
        outputs = torch.zeros(len(y), max(c, 1), dtype=torch.float64)
        for number in fold[left_out].unique():
            held = fold == number
            model = make(c)
            last = f"{model.steps[-1][0]}__" if name == "linear" else ""
            weights = {} if weight is None else {f"{last}sample_weight": weight[~held].numpy()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a solver that stops early says so at every fold
                model.fit(x[~held].numpy(), y[~held].numpy(), **weights)
            if c:
                outputs[held.nonzero(), torch.from_numpy(model.classes_)] = torch.from_numpy(
                    model.predict_proba(x[held].numpy())
                )
            else:
                outputs[held, 0] = torch.from_numpy(model.predict(x[held].numpy()))
        scored, truth = outputs[left_out], y[left_out]
        if c:
            p = scored.clamp_min(1e-15)
            scores = score_classes(p / p.sum(1, True), truth, fold[left_out])
            found[name] = {measure: scores[measure] for measure in MEASURES}
        else:
            found[name] = {"r2": score_values(scored[:, 0], truth)["r2"]}
    return found


def why_no_boosting(d: int, c: int) -> str:
    """Why boosted trees are not fitted to d columns and c classes; empty where they are."""
    what = ""
    if d > _WIDE:
        what = f"{d:,} columns"
    elif c > _MANY:
        what = f"{c:,} classes"
    return f"Boosted trees were not scored beside: with {what} they take longer than all else together." * bool(what)


def best_beside(scores: Mapping[str, Any]) -> tuple[str, str]:
    """Which of this model (``this model``) and those beside it is best, and the measure: log loss, or R2 for numbers.

    Two empty words where none stands beside it. Scores that print alike are equal; of equal ones this model's counts.
    """
    others = scores.get("beside") or {}
    if not others:
        return "", ""
    if "r2" in scores:
        found = {"this model": scores["r2"]} | {name: other["r2"] for name, other in others.items()}
        return max(found, key=lambda name: float(f"{found[name]:.3g}")), "R2"
    found = {"this model": scores["log_loss"]} | {name: other["log_loss"] for name, other in others.items()}
    return min(found, key=lambda name: float(f"{found[name]:.3g}")), "log loss"


class RareClass(NamedTuple):
    """How a rare one of two classes fares on left-out rows.

    Attributes:
        number: Its place among the classes.
        share: Of the rows that are of it.
        in_first_tenth: Share of its rows in the tenth of all rows where it is likeliest.
        hits: Rows of it that are predicted as it.
        missed: Rows of it that are not.
        false_alarms: Other rows that are predicted as it.
    """

    number: int
    share: float
    in_first_tenth: float
    hits: int
    missed: int
    false_alarms: int


def find_rare_class(scores: Mapping[str, Any]) -> RareClass | None:
    """The rarer of two classes, where it is rare and its rows are ranked better than by chance; else None."""
    in_first_tenth = scores.get("in_first_tenth")
    if in_first_tenth is None:
        return None
    counts = scores["confusion"]
    sizes = [sum(row) for row in counts]
    rare = sizes.index(min(sizes))
    by_chance = 0.1 + 2 * (0.1 * 0.9 / sizes[rare]) ** 0.5  # a tenth drawn blindly, and two standard errors
    if sizes[rare] > _RARE * sum(sizes) or in_first_tenth < by_chance:
        return None
    hits, other = counts[rare][rare], 1 - rare
    return RareClass(
        rare, sizes[rare] / sum(sizes), in_first_tenth, hits, sizes[rare] - hits, false_alarms=counts[other][rare]
    )


def boosting_is_better(scores: dict[str, Any]) -> bool:
    """Whether boosted trees are clearly ahead of ours in log loss or R2."""
    other = scores.get("beside", {}).get(BOOSTING)
    if not other:
        return False
    if "r2" in other:
        return bool(1 - other["r2"] < (1 - _BETTER) * (1 - scores["r2"]))
    return bool(other["log_loss"] < (1 - _BETTER) * scores["log_loss"])


def _linear(c: int) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300) if c else RidgeCV(np.logspace(-3, 3, 7)))


def _boosting(c: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    return HistGradientBoostingClassifier(random_state=0) if c else HistGradientBoostingRegressor(random_state=0)


_OTHERS: dict[str, Callable[[int], Any]] = {"linear": _linear, BOOSTING: _boosting}


def _without_nan(values: Tensor) -> list[float | None]:
    return [value if value == value else None for value in values.tolist()]
