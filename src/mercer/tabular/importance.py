r"""Which columns a model looks at: by the gradients of what it learned, and by shuffling columns of given data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from .. import checks
from ..layerwise.network import Indicators, KernelLayer, MetricLayer
from .target import present

if TYPE_CHECKING:
    from .model import TabularModel

__all__ = ["column_weights", "feature_weights", "permutation_losses"]

_POINTS = 300  # training rows at which gradients are taken
_ROWS = 500  # rows of given data that are shuffled
_COLUMNS = 40  # columns that are shuffled, those of largest weight


def feature_weights(model: TabularModel) -> dict[str, float]:
    r"""Each feature's share of :math:`\frac1n \sum_i \|\partial f / \partial x_j (x_i)\|^2`, x standardised; sum 1.

    f is the fitted network before calibration, the :math:`x_i` are training rows it keeps. A feature that the learned
    metric shrinks, or that f does not move with, has a small share. No data is needed.
    """
    layers = list(model.estimator.network_.layers)
    head = layers[-1]
    assert isinstance(head, KernelLayer)
    squares = _squared_gradients(head, _metric(layers))
    if isinstance(layers[0], Indicators):  # several indicators look at one feature
        squares = squares.new_zeros(model.estimator.network_.width).index_add(0, layers[0].columns, squares)
    total = float(squares.sum())
    shares = squares / total if total > 0 else torch.full_like(squares, 1 / len(squares))
    return dict(zip(model.preparation.feature_names, shares.tolist(), strict=True))


def column_weights(model: TabularModel) -> dict[str, float]:
    """The features' weights summed over each column of the table, largest first; columns not used are left out."""
    shares = feature_weights(model)
    used = [column for column in model.preparation.columns if not column.dropped]
    weights = {column.name: sum(shares[feature] for feature in column.encoder.features) for column in used}
    return dict(sorted(weights.items(), key=lambda pair: -pair[1]))


def permutation_losses(model: TabularModel, frame: pd.DataFrame, *, random_state: int = 0) -> dict[str, float]:
    """How much the score on given rows falls when one column is shuffled, largest first.

    The score is accuracy or R squared. Over rows that the model was made of it shows what it uses, over others what
    it needs.

    Args:
        model: A fitted model.
        frame: Rows with the model's columns and its target; at most 500 of them are used.
        random_state: Seed of the rows and their order.
    """
    name = model.target.name
    if name not in map(str, frame.columns):
        got = ", ".join(map(str, frame.columns[:6]))
        raise ValueError(checks.sentence("explain", f"the data must have the target column {name!r}", got))
    frame = frame[present(frame[name])]
    frame = frame[model.target.known(frame[name])]
    if len(frame) < 2:
        need = f"at least two rows must have a known value in {name!r}"
        raise ValueError(checks.sentence("explain", need, len(frame)))
    draw = np.random.default_rng(checks.integer("explain", "random_state", random_state, 0))
    frame = frame.iloc[np.sort(draw.permutation(len(frame))[:_ROWS])]
    before = _score(model, frame)
    losses = {}
    for column in list(column_weights(model))[:_COLUMNS]:
        shuffled = frame.copy()
        shuffled[column] = frame[column].to_numpy()[draw.permutation(len(frame))]
        losses[column] = before - _score(model, shuffled)
    return dict(sorted(losses.items(), key=lambda pair: -pair[1]))


def _score(model: TabularModel, frame: pd.DataFrame) -> float:
    predicted = model.predict_with_surprises(frame)[0]["prediction"]
    truth = model.target.encode(frame[model.target.name])
    if model.target.classes is not None:
        return float((predicted.to_numpy() == model.target.decode(truth)).mean())
    values = truth.numpy()
    return float(1 - np.square(values - predicted.to_numpy()).mean() / max(values.var(), 1e-300))


def _metric(layers: list[nn.Module]) -> Tensor | None:  # (d, d) or (d,)
    """The product of the learned metrics; None where there is none."""
    total: Tensor | None = None
    for layer in layers:
        if isinstance(layer, MetricLayer):
            root = layer.root if layer.root.ndim == 2 else layer.root.diag()
            total = root if total is None else total @ root
    return total


def _squared_gradients(head: KernelLayer, metric: Tensor | None) -> Tensor:  # (d,)
    """Mean squares of the gradients with respect to the standardised features, summed over the outputs."""
    places = torch.linspace(0, len(head.anchors) - 1, min(len(head.anchors), _POINTS)).round().long()
    z = head.anchors[places].clone().requires_grad_()
    outputs = head(z)
    squares = z.new_zeros(z.shape[1] if metric is None else len(metric))
    for k in range(outputs.shape[1]):
        (gradient,) = torch.autograd.grad(outputs[:, k].sum(), z, retain_graph=True)
        gradient = gradient if metric is None else gradient @ metric.mT.to(gradient)
        squares = squares + gradient.square().mean(0)
    return squares.double()
