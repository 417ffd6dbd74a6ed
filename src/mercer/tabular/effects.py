r"""How predictions move: with one column over all rows, and with every column of one row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..machines import StackedRidge
from .columns import Array, Dates, Levels, Numbers, Truths, name_by_text
from .columns.encoders import date_parts
from .columns.target_means import MISSING
from .importance import column_weights
from .two_scales import TwoScales

if TYPE_CHECKING:
    from .model import TabularModel

__all__ = ["Effect", "Reasons", "correlated", "effect_curves", "reasons"]

_COLUMNS = 4  # columns that get a curve
_POINTS = 12  # values of a column
_LEVELS = 8  # words of a column
_ROWS = 100  # training rows that are averaged over
_EXACT = 3000  # rows up to which each is left out of its own curve; of more, one does not show
_LOOKED_AT = 500  # columns that are compared with each other
_TOGETHER = 0.8  # correlation from which on two columns are named together
_WALKS = 32  # training rows that a row is compared with,
_STARTS = 1000  # chosen from so many
EXPLAINED = 20  # rows whose reasons are given
_YEAR = 366  # days
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


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
        part: Of a date, ``trend``, ``season``, ``weekday`` or ``hour``; else empty.
        counts: Training rows of each value, for words; else empty.
    """

    column: str
    of: str
    values: list[Any]
    mean: list[float]
    low: list[float]
    high: list[float]
    part: str = ""
    counts: list[int] = field(default_factory=list)


class Grid(NamedTuple):
    """Values that a column, or the part of a date, is set to, and the features ``(g, p)`` that say so."""

    part: str
    values: list[Any]
    counts: list[int]
    features: list[int]
    encoded: Tensor


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
        cells: Column -> the row's value in it; empty where it is missing.
    """

    row: Any
    answer: Any
    of: str
    value: float
    average: float
    parts: dict[str, float]
    cells: dict[str, str] = field(default_factory=dict)


def effect_curves(model: TabularModel, weights: Mapping[str, float] | None = None) -> list[Effect]:
    """Curves of the columns that move the prediction most; ``weights`` are `column_weights`, where they are known."""
    rows, numbers = _draw_rows(model, _ROWS)
    predict = _leave_own_row_out(model, numbers)
    classes = model.target.classes
    if weights is None:
        weights = column_weights(model)
    ends = torch.tensor([0.1, 0.9], dtype=torch.float64)
    effects = []
    for name in list(weights)[:_COLUMNS]:
        for grid in _list_grids(model, name):
            if not len(grid.encoded):
                continue
            # The answers of all rows, with each value of the grid in the column.
            answers = []
            for value in grid.encoded:
                changed = rows.clone()
                changed[:, grid.features] = value
                answers.append(predict(changed))
            stacked = torch.stack(answers)  # (g, r, c)
            # Of several classes, the one whose probability moves most; of two, the second.
            mean = stacked.mean(1)  # (g, c)
            place = 1
            if mean.shape[1] != 2:
                place = int((mean.amax(0) - mean.amin(0)).argmax())
            low, high = stacked[:, :, place].quantile(ends.to(stacked), dim=1).tolist()
            of = ""
            if classes is not None:
                of = str(classes[place])
            effects.append(Effect(name, of, grid.values, mean[:, place].tolist(), low, high, grid.part, grid.counts))
    return effects


def reasons(model: TabularModel, frame: pd.DataFrame) -> list[Reasons]:
    """What each column adds to the answer of each of the first 20 rows.

    Columns go over, one after the other in random order, from a training row to the row: what the answer moves by is
    the column's part, averaged over 32 training rows and orders, each order also backwards (Strumbelj and Kononenko
    2014). The 32 rows are spread over the answers of 1,000, so that their average answer is that of the 1,000.
    A cell that is blank where no training row was keeps the training rows' values, and so adds nothing.
    """
    frame = name_by_text(frame.iloc[:EXPLAINED])
    x, answers = model.encode(frame), model.predict_with_surprises(frame)[0]["prediction"]
    holes = model.holes(model.preparation.prepare(frame))
    features = model.column_features()
    groups, classes = list(features.values()), model.target.classes
    generator = torch.Generator().manual_seed(0)
    rows = _draw_rows(model, _STARTS)[0]
    usual = _predict_columns(model, rows)  # (r, c)
    explanations = []
    for place, (row, end, unknown, answer) in enumerate(zip(frame.index, x, holes, answers, strict=True)):
        # The class that is followed, and training rows to start from: the same for all rows of one answer.
        column, of = 0, ""
        if classes is not None:
            column, of = int(np.flatnonzero(classes == answer)[0]), str(answer)
        starts = rows[_spread_by_answer(usual[:, column], _WALKS)]
        walks = [(start, torch.randperm(len(groups), generator=generator).tolist()) for start in starts]
        walks += [(start, order[::-1]) for start, order in walks]

        # Each walk goes from its start to the row, column by column.
        steps = []
        for start, order in walks:
            now = start
            steps.append(now)
            for group in order:
                now = now.clone()
                now[groups[group]] = torch.where(unknown, start, end)[groups[group]]
                steps.append(now)
        values = _predict_columns(model, torch.stack(steps))[:, column].reshape(len(walks), -1)  # (w, columns + 1)

        # A column's part: what its steps move the answer by, on average.
        parts = torch.zeros(len(groups), dtype=torch.float64)
        for (_, order), gains in zip(walks, values.diff(dim=1), strict=True):
            parts[order] += gains / len(walks)
        named = dict(zip(features, parts.tolist(), strict=True))
        ranked = dict(sorted(named.items(), key=lambda pair: -abs(pair[1])))
        cells = {name: _write_cell(frame[name].iloc[place]) for name in ranked}
        value, average = float(values[:, -1].mean()), float(values[:, 0].mean())
        explanations.append(Reasons(row, answer, of, value, average, ranked, cells))
    return explanations


def _spread_by_answer(answers: Tensor, count: int) -> list[int]:  # (r,)
    """Numbers of ``count`` rows, one of each part of the rows by answer, whose mean answer is nearly that of all."""
    order = answers.argsort()
    ordered = answers[order]
    sums = torch.cat((ordered.new_zeros(1), ordered.cumsum(0)))
    ends = torch.linspace(0, len(answers), min(count, len(answers)) + 1).round().long().tolist()
    scale = (len(ends) - 1) / len(answers)
    rows: list[int] = []
    total = 0.0
    for first, last in itertools.pairwise(ends):
        # The row that brings the sum so far nearest to its share of the whole sum: errors do not add up.
        best = first + int((total + ordered[first:last] - scale * sums[last]).abs().argmin())
        total += float(ordered[best])
        rows.append(int(order[best]))
    return rows


def _write_cell(value: Any) -> str:
    """A cell as people write it: at most four digits after the point, and nothing where it is missing."""
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        if abs(number) < 1e4:
            return f"{number:.4g}"
        return f"{number:,.0f}"
    return str(value)


def correlated(model: TabularModel, weights: Mapping[str, float] | None = None) -> list[list[str]]:
    """Groups of columns that say nearly the same: each correlates with another of its group by 0.8 or more.

    Args:
        model: A fitted model.
        weights: Its `column_weights`, where they are known: of more than 500 columns, the 500 heaviest are compared.
    """
    # Features of the columns that are compared, and the column of each.
    features = model.column_features()
    names = list(features)
    if len(names) > _LOOKED_AT:
        if weights is None:
            weights = column_weights(model)
        names = list(weights)[:_LOOKED_AT]
    index = torch.tensor([feature for name in names for feature in features[name]])
    column = torch.tensor([i for i, name in enumerate(names) for _ in features[name]])  # (p,)

    # Two columns are alike if a feature of one correlates with a feature of the other.
    rows = _draw_rows(model, 1000)[0][:, index]
    spread = rows.std(0)
    scaled = (rows - rows.mean(0)) / torch.where(spread > 0, spread, 1.0)
    left, right = ((scaled.mT @ scaled / max(1, len(rows) - 1)).abs() >= _TOGETHER).nonzero().unbind(1)
    alike = torch.eye(len(names), dtype=torch.bool)
    alike[column[left], column[right]] = True

    # Groups: each column takes the first column of those like it, until nothing changes.
    first, before = torch.arange(len(names)), None
    while before is None or not torch.equal(first, before):
        first, before = torch.where(alike, first, len(names)).amin(1), first
    groups = [[name for name, i in zip(names, first.tolist(), strict=True) if i == k] for k in first.unique().tolist()]
    return [group for group in groups if len(group) > 1]


def _draw_rows(model: TabularModel, count: int) -> tuple[Tensor, Tensor]:
    """Training rows, evenly spaced, and their numbers."""
    rows = model.learner.rows
    numbers = torch.linspace(0, len(rows) - 1, min(len(rows), count)).round().long()
    return rows[numbers], numbers


def _predict_columns(model: TabularModel, x: Tensor) -> Tensor:  # (n, d) -> (n, c)
    """Probabilities, or numbers as one column."""
    answers = model.learner.predict(x)
    return answers.reshape(len(x), -1)


def _leave_own_row_out(model: TabularModel, numbers: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that predicts changed training rows, each by the machines without the row it was made from."""
    machine = getattr(model.learner, "machine", None)
    if not isinstance(machine, StackedRidge | TwoScales) or len(machine.rows_) > _EXACT:
        return lambda x: _predict_columns(model, x)
    predict = machine.without(numbers)

    return lambda x: model.learner.answer(predict(x)).reshape(len(x), -1)


def _list_grids(model: TabularModel, name: str) -> list[Grid]:
    """Values of a column that the training rows span; of a date one grid for each part that varies."""
    column = next(c for c in model.preparation.columns if c.name == name)
    encoder, features = column.encoder, model.column_features()[name]
    if isinstance(encoder, Dates):
        return _list_date_grids(encoder, features, model.learner.rows)
    first = model.learner.rows[:, features[0]]
    counts: list[int] = []
    if isinstance(encoder, Levels):
        # The most frequent words, in the order of the alphabet.
        places = list(range(len(encoder.levels)))[:_LEVELS]
        if encoder.counts:
            places = sorted(sorted(range(len(encoder.levels)), key=lambda i: -encoder.counts[i])[:_LEVELS])
            counts = [encoder.counts[i] for i in places]
        values: list[Any] = [encoder.levels[i] for i in places]
        if name in model.means.tables_:
            # Of many words, which the model knows by the target's mean: those of the lowest and the highest mean.
            words, means = model.means.tables_[name]
            order = [words[i] for i in means[:, 0].argsort(stable=True).tolist() if words[i] != MISSING]
            values, counts = [*order[: _LEVELS // 2], *order[len(order) - _LEVELS // 2 :]], []
    elif isinstance(encoder, Truths):
        values = list(encoder.words)
    elif isinstance(encoder, Numbers):
        values = [float(v) for v in _spread_points(first)]
    else:
        return []  # a text has no values to run through
    dtype = object
    if isinstance(encoder, Numbers):
        dtype = float
    series = pd.Series(values, name=name, dtype=dtype)
    encoded = torch.cat((torch.from_numpy(encoder(series).x), model.means.transform_column(name, series)), 1)
    return [Grid("", values, counts, features, encoded)]


def _list_date_grids(encoder: Dates, features: list[int], rows: Tensor) -> list[Grid]:
    """The trend, the season by months, the weekday and the hour, each with the others as the rows have them."""
    # The trend: moments that the rows span.
    place = dict(zip(encoder.parts, features, strict=False))
    grids = []
    trend: list[str] = [part for part in ("days", "year") if part in place]
    if "days" in place:
        # Within a year season and trend are one.
        if float(rows[:, place["days"]].max() - rows[:, place["days"]].min()) < _YEAR:
            trend += [part for part in ("season sin", "season cos") if part in place]
        moments = [encoder.moment(float(v)) for v in _spread_points(rows[:, place["days"]])]
        every = date_parts(pd.Series(moments), pd.Timestamp(encoder.origin))
        encoded = torch.from_numpy(np.column_stack([every[part] for part in trend]))
        grids.append(Grid("trend", [str(v)[:10] for v in moments], [], [place[part] for part in trend], encoded))

    # What comes again: a place on a circle, which the features give by its sine and cosine.
    hours = [float(hour) for hour in range(24)]
    circles: dict[str, tuple[str, list[Any], Array]] = {
        "season": ("season", list(_MONTHS), (np.arange(12) + 0.5) / 12),
        "weekday": ("weekday", list(_WEEKDAYS), np.arange(7) / 7),
        "time": ("hour", hours, np.arange(24) / 24),
    }
    for name, (part, values, turns) in circles.items():
        waves = {f"{name} sin": np.sin(2 * np.pi * turns), f"{name} cos": np.cos(2 * np.pi * turns)}
        present = [wave for wave in waves if wave in place and wave not in trend]
        if present:
            encoded = torch.from_numpy(np.column_stack([waves[wave] for wave in present]))
            grids.append(Grid(part, values, [], [place[wave] for wave in present], encoded))
    return grids


def _spread_points(values: Tensor) -> Tensor:  # (r,) -> (g,)
    points: Tensor = values.quantile(torch.linspace(0.02, 0.98, _POINTS, dtype=values.dtype)).unique()
    return points
