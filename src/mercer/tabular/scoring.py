"""Scores on rows that the model has not seen, and what the pictures of them need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..data import stratified_folds
from ..distributed import shard
from ..layerwise import KernelNetworkClassifier, KernelNetworkRegressor
from .values import Array

__all__ = ["Estimator", "class_probabilities", "cross_validate", "score_classes", "score_values"]

Estimator = KernelNetworkClassifier | KernelNetworkRegressor
Progress = Callable[[str], None]

FOLDS = 5
MOST_ROWS = 3750  # rows up to which every fifth is held out in turn; beyond, one fifth is
_DRAWN = 1000  # pairs of value and prediction that are kept for the picture
_BINS = 10


def cross_validate(
    make: Callable[[], Estimator], x: Tensor, y: Tensor, classes: Array | None, *, seed: int, progress: Progress
) -> dict[str, Any]:
    """Scores of rows that were held out: five folds in turn, stratified by class, or of many rows one of them.

    None where the rows are too few. The encoding of the columns, which has not seen the target, is that of all rows.

    Args:
        make: A fresh estimator.
        x: Rows ``(n, d)``.
        y: Class numbers or values ``(n,)``.
        classes: The classes; None for a regression.
        seed: Decides the folds.
        progress: Told of each fold.
    """
    start = time.perf_counter()
    folds = min(FOLDS, len(x))
    strata = y if classes is not None else torch.zeros(len(y), dtype=torch.int64)
    fold = stratified_folds(strata, folds=folds, seed=seed)
    turns = folds if len(x) <= MOST_ROWS else 1
    if not all(_can_train(y[fold != i], classes) for i in range(1, turns + 1)):
        return {"rows": len(x), "folds": 0, "note": "too few rows of each class to cross-validate"}
    outputs = x.new_zeros(len(x), 1 if classes is None else len(classes))
    for i in range(1, turns + 1):
        progress(f"cross-validation, part {i} of {turns}")
        held = fold == i
        train = (~held).nonzero()[:, 0]
        train = train[shard(len(train))]  # of several ranks each learns from its own rows
        model = make().fit(x[train].numpy(), y[train].numpy())
        outputs[held] = _outputs(model, x[held], classes)
    seen = fold <= turns
    outputs, y = outputs[seen], y[seen]
    scores = score_values(outputs[:, 0], y) if classes is None else score_classes(outputs, y)
    return {"rows": len(y), "folds": turns, **scores, "seconds": time.perf_counter() - start}


def class_probabilities(model: KernelNetworkClassifier, x: Tensor, c: int) -> Tensor:  # (n, d) -> (n, c)
    """By class number; 0 for a class that the training rows did not have."""
    p = x.new_zeros(len(x), c)
    p[:, torch.from_numpy(np.asarray(model.classes_))] = torch.from_numpy(model.predict_proba(x.numpy()))
    return p


def score_classes(p: Tensor, y: Tensor) -> dict[str, Any]:
    """Scores of probabilities ``(n, c)`` for class numbers ``(n,)``."""
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
        "auroc": metrics.auroc(p[y == 0, 1], p[y == 1, 1]) if c == 2 and bool(there.all()) else None,
        "always_most_frequent": float(confusion.sum(1).max() / len(y)),
        "confusion": confusion.tolist(),
        "reliability": {
            "rows": count.long().tolist(),
            "confidence": _without_nan(confidence),
            "accuracy": _without_nan(right),
        },
    }


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


def _can_train(y: Tensor, classes: Array | None) -> bool:
    return len(y) >= 2 and (classes is None or len(y.unique()) >= 2)


def _outputs(model: Estimator, x: Tensor, classes: Array | None) -> Tensor:  # (n, c) or (n, 1)
    if isinstance(model, KernelNetworkClassifier):
        assert classes is not None
        return class_probabilities(model, x, len(classes))
    return torch.from_numpy(model.predict(x.numpy()))[:, None]


def _without_nan(values: Tensor) -> list[float | None]:
    return [value if value == value else None for value in values.tolist()]
