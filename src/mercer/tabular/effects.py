r"""How predictions move: with one column over all rows, and with every column of one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..machines import StackedRidge
from .columns import Dates, Levels, Numbers, Truths
from .importance import column_weights

if TYPE_CHECKING:
    from .columns import Column
    from .model import TabularModel

__all__ = ["Effect", "Reasons", "correlated", "effect_curves", "reasons"]

_COLUMNS = 4  # columns that get a curve
_POINTS = 12  # values of a column
_LEVELS = 8  # words of a column
_ROWS = 100  # training rows that are averaged over
_EXACT = 3000  # rows up to which each is left out of its own curve; of more, one does not show
_LOOKED_AT = 500  # columns that are compared with each other
_TOGETHER = 0.8  # correlation from which on two columns are named together
_WALKS = 32  # training rows that a row is compared with
EXPLAINED = 20  # rows whose reasons are given


@dataclass(frozen=True)
class Effect:
    r"""Partial dependence: :math:`\bar f(v) = \frac1r \sum_i f_{-i}(x_i \text{ with } v \text{ in the column})`.

    Attributes:
        column: Its name.
        of: The class whose probability is followed; empty for a number.
        values: v.
        mean: :math:`\bar f(v)`.
        low: Least of the middle 80 % of the rows.
        high: Largest of them.
    """

    column: str
    of: str
    values: list[Any]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Reasons:
    """Why one row gets its answer: what each column adds to the average answer; the sum is the answer.

    Attributes:
        row: Its label in the frame.
        answer: The prediction.
        of: The class whose probability is explained; empty for a number.
        value: The prediction, or that class's probability.
        average: The same, over training rows.
        parts: Column -> what it adds (Shapley values), the largest first.
    """

    row: Any
    answer: Any
    of: str
    value: float
    average: float
    parts: dict[str, float]


def effect_curves(model: TabularModel, weights: Mapping[str, float] | None = None) -> list[Effect]:
    """Curves of the columns that move the prediction most; ``weights`` are `column_weights`, where they are known."""
    rows, numbers = _drawn(model, _ROWS)
    predict = _without_own(model, numbers)
    features = model.column_features()
    found = []
    for name in list(column_weights(model) if weights is None else weights)[:_COLUMNS]:
        values, encoded = _grid(model, name)
        answers = []
        for value in encoded:
            changed = rows.clone()
            changed[:, features[name]] = value
            answers.append(predict(changed))
        if answers:
            found.append(_effect(model, name, values, torch.stack(answers)))  # (g, r, c)
    return found


def reasons(model: TabularModel, frame: pd.DataFrame) -> list[Reasons]:
    """What each column adds to the answer of each of the first 20 rows.

    Columns go over, one after the other in random order, from a training row to the row: what the answer moves by is
    the column's part, averaged over 32 training rows and orders, each order also backwards (Strumbelj and Kononenko
    2014). A cell that is blank where no training row was keeps the training rows' values, and so adds nothing.
    """
    frame = frame.iloc[:EXPLAINED]
    x, answers = model.encode(frame), model.predict_with_surprises(frame)[0]["prediction"]
    holes = model.holes(model.preparation.prepare(frame))
    features = list(model.column_features().items())
    generator = torch.Generator().manual_seed(0)
    starts, _ = _drawn(model, _WALKS)  # the same for every row, so that their averages agree
    found = []
    for row, own, unknown, answer in zip(frame.index, x, holes, answers, strict=True):
        walks = [(start, torch.randperm(len(features), generator=generator).tolist()) for start in starts]
        walks += [(start, order[::-1]) for start, order in walks]
        ends = [torch.where(unknown, start, own) for start, _ in walks]
        paths = [_path(start, end, order, features) for (start, order), end in zip(walks, ends, strict=True)]
        path = torch.stack([step for steps in paths for step in steps])
        column, of = _followed(model, answer)
        values = _outputs(model, path)[:, column].reshape(len(walks), -1)  # (w, columns + 1)
        parts = torch.zeros(len(features), dtype=torch.float64)
        for (_, order), gains in zip(walks, values.diff(dim=1), strict=True):
            parts[order] += gains / len(walks)
        named = {name: float(part) for (name, _), part in zip(features, parts, strict=True)}
        ranked = dict(sorted(named.items(), key=lambda pair: -abs(pair[1])))
        found.append(Reasons(row, answer, of, float(values[:, -1].mean()), float(values[:, 0].mean()), ranked))
    return found


def correlated(model: TabularModel, weights: Mapping[str, float] | None = None) -> list[list[str]]:
    """Groups of columns that say nearly the same: each correlates with another of its group by 0.8 or more.

    Args:
        model: A fitted model.
        weights: Its `column_weights`, where they are known: of more than 500 columns, the 500 heaviest are compared.
    """
    features = model.column_features()
    names = list(features)
    if len(names) > _LOOKED_AT:
        names = list(column_weights(model) if weights is None else weights)[:_LOOKED_AT]
    own = torch.tensor([feature for name in names for feature in features[name]])
    column = torch.tensor([i for i, name in enumerate(names) for _ in features[name]])  # (p,): of each feature
    rows = _drawn(model, 1000)[0][:, own]
    spread = rows.std(0)
    scaled = (rows - rows.mean(0)) / torch.where(spread > 0, spread, 1.0)
    one, other = ((scaled.mT @ scaled / max(1, len(rows) - 1)).abs() >= _TOGETHER).nonzero().unbind(1)
    alike = torch.eye(len(names), dtype=torch.bool)
    alike[column[one], column[other]] = True
    first, before = torch.arange(len(names)), None
    while before is None or not torch.equal(first, before):  # each takes the first name that its likes have
        first, before = torch.where(alike, first, len(names)).amin(1), first
    groups = [[name for name, i in zip(names, first.tolist(), strict=True) if i == k] for k in first.unique().tolist()]
    return [group for group in groups if len(group) > 1]


def _drawn(model: TabularModel, most: int) -> tuple[Tensor, Tensor]:
    """Training rows, evenly spaced, and their numbers."""
    rows = model.learner.rows
    numbers = torch.linspace(0, len(rows) - 1, min(len(rows), most)).round().long()
    return rows[numbers], numbers


def _outputs(model: TabularModel, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
    found = model.learner.predict(x)
    return found if found.ndim == 2 else found[:, None]


def _without_own(model: TabularModel, numbers: Tensor) -> Any:
    """Predictions of changed training rows, each by the machines without the row it was made from."""
    machine = getattr(model.learner, "machine", None)
    if not isinstance(machine, StackedRidge) or len(machine.rows_) > _EXACT:
        return lambda x: _outputs(model, x)
    correction = machine.without(numbers)

    def predict(x: Tensor) -> Tensor:
        found = model.learner.answer(correction(x))
        return found if found.ndim == 2 else found[:, None]

    return predict


def _effect(model: TabularModel, name: str, values: list[Any], answers: Tensor) -> Effect:
    mean = answers.mean(1)  # (g, c)
    column = int((mean.amax(0) - mean.amin(0)).argmax()) if answers.shape[2] != 2 else 1
    classes = model.target.classes
    low, high = answers[:, :, column].quantile(torch.tensor([0.1, 0.9], dtype=answers.dtype), dim=1).tolist()
    of = "" if classes is None else str(classes[column])
    return Effect(name, of, values, mean[:, column].tolist(), low, high)


def _followed(model: TabularModel, answer: Any) -> tuple[int, str]:
    classes = model.target.classes
    if classes is None:
        return 0, ""
    return int(np.flatnonzero(classes == answer)[0]), str(answer)


def _path(start: Tensor, end: Tensor, order: list[int], features: list[tuple[str, list[int]]]) -> list[Tensor]:
    """From one row to the other, column by column."""
    steps, now = [start], start
    for place in order:
        now = now.clone()
        now[features[place][1]] = end[features[place][1]]
        steps.append(now)
    return steps


def _grid(model: TabularModel, name: str) -> tuple[list[Any], Tensor]:
    """Values of a column that the training rows span, and their features ``(g, p)``."""
    column = next(c for c in model.preparation.columns if c.name == name)
    values = _values(column, model.learner.rows[:, model.column_features()[name][0]])
    series = pd.Series(values, name=name, dtype=object if isinstance(column.encoder, Levels | Truths) else None)
    parts = [torch.from_numpy(column.encoder(series).x), model.means.transform_column(name, series)]
    shown = [str(v)[:10] for v in values] if isinstance(column.encoder, Dates) else values
    return shown, torch.cat(parts, 1)


def _values(column: Column, first: Tensor) -> list[Any]:
    encoder = column.encoder
    if isinstance(encoder, Levels):
        return list(encoder.levels[:_LEVELS])
    if isinstance(encoder, Truths):
        return list(encoder.words)
    ends = first.quantile(torch.linspace(0.02, 0.98, _POINTS, dtype=first.dtype))
    if isinstance(encoder, Numbers):
        return [float(v) for v in ends.unique()]
    if isinstance(encoder, Dates) and encoder.parts[0] == "days":
        return [encoder.moment(float(v)) for v in ends.unique()]
    return []
