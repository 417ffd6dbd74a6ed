"""A table in, a matrix out: every column encoded as the training rows taught it."""

from __future__ import annotations

import difflib
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ... import checks
from ...storage.savable import Savable
from ...user_text import shown
from .column import Column, describe
from .encoders import Numbers
from .values import Array, Writing, is_nested, is_text, words

_WORDED = ("categorical", "text")
_log = logging.getLogger("mercer")


class Prepared(NamedTuple):
    """What rows became, and what was strange about them.

    Attributes:
        x: ``(n, d)``.
        surprises: Sentence without its number -> rows, in the order of the columns.
        unseen: ``(n,)``, rows with a category that no training row had.
        blank: ``(n,)``, rows without a value in any column that is used.
        holes: Column -> ``(n,)``, rows without a value where training had (nearly) none; columns without such rows
            are left out.
    """

    x: Tensor
    surprises: Counter[str]
    unseen: Array
    blank: Array
    holes: dict[str, Array]


class Preparation(Savable):
    """Learns what each column of a table is, and turns tables with these columns into numbers.

    Attributes:
        columns: One :class:`Column` for each column of the table.
        feature_names: Names of the d features.
        notes: Sentences for the user.

    >>> frame = pd.DataFrame({"size": [1, 2, None, 4], "colour": ["red", "blue", "red", "blue"]})
    >>> preparation = Preparation().fit(frame)
    >>> [column.kind for column in preparation.columns], preparation.feature_names
    (['numeric', 'categorical'], ['size', 'colour is blue'])
    """

    columns: list[Column]

    @property
    def feature_names(self) -> list[str]:
        """Names of the d features, in the order of the matrix's columns."""
        return [feature for column in self._get_columns() for feature in column.encoder.features]

    @property
    def notes(self) -> list[str]:
        """What the user should know about the columns."""
        return [note for column in self._get_columns() for note in column.notes]

    @property
    def text_columns(self) -> list[str]:
        """Columns that a file's parts must not turn into numbers: words, and numbers with a decimal comma."""
        return [column.name for column in self._get_columns() if column.kind in _WORDED or _has_comma(column)]

    def fit(self, frame: pd.DataFrame, writings: Mapping[str, Writing] | None = None) -> Self:
        """Learn from a table without its target.

        Args:
            frame: The table.
            writings: For each column how it writes numbers and dates, where ``frame`` is a part of the table.
        """
        frame = name_by_text(frame)
        if not len(frame):
            raise ValueError(checks.sentence("Preparation", "the table must have at least one row", frame.shape))
        writings = writings or {}
        self.columns = [describe(frame[name], writings.get(name)) for name in frame.columns]
        if not self.feature_names:
            # Nothing is left: numbers that count the rows are then the x of a curve.
            self.columns = [describe(frame[name], writings.get(name), counts=True) for name in frame.columns]
        if not self.feature_names:
            got = "; ".join(f"{column.name} {column.how}" for column in self.columns[:3]) or "no column"
            raise ValueError(checks.sentence("Preparation", "some column must be left to learn from", got))
        return self

    def transform(self, frame: pd.DataFrame) -> Tensor:
        """The table as float64 ``(n, d)``; unexpected values are logged as warnings."""
        prepared = self.prepare(frame)
        for what, rows in prepared.surprises.items():
            _log.warning("%s (%d rows)", what, rows)
        return prepared.x

    def prepare(self, frame: pd.DataFrame) -> Prepared:
        """The matrix, with the surprises counted.

        Raises:
            ValueError: A column that is used is missing, or holds no value of its kind.
        """
        frame = name_by_text(frame)
        used = [column for column in self._get_columns() if not column.dropped]
        self._check_columns(frame, used)
        surprises: Counter[str] = Counter()
        holes: dict[str, Array] = {}
        unseen, blank, parts = np.zeros(len(frame), dtype=bool), np.ones(len(frame), dtype=bool), []
        for column in used:
            name, series = column.name, frame[column.name]
            encoded = column.encoder(series)
            _check_kind(column, series, encoded.unreadable)
            parts.append(encoded.x)

            # What the user should know: values of another kind, words never seen, another decimal mark.
            if encoded.unreadable.any():
                where = int(np.flatnonzero(encoded.unreadable)[0])
                first = f"first {shown(series.iloc[where], 30)!r} in row {series.index[where]}"
                what = f"{name}: values that are no {_plural(column)} count as missing, {first}"
                surprises[what] += int(encoded.unreadable.sum())
            if encoded.unseen.any():
                surprises[f"{name}: categories that no training row had"] += int(encoded.unseen.sum())
            other_mark = _find_other_mark(column, series)
            if other_mark:
                surprises[other_mark] += len(series)

            # What the answer should know: rows unlike training, and cells that are blank where training had none.
            unseen |= encoded.unseen | encoded.unreadable
            blank &= encoded.missing
            if encoded.missing.any() and not column.encoder.knows_blanks:
                holes[name] = encoded.missing
        if blank.any():
            surprises["rows without a value in any column get the most frequent answer"] += int(blank.sum())
        return Prepared(torch.from_numpy(np.column_stack(parts)), surprises, unseen, blank, holes)

    def extra_columns(self, frame: pd.DataFrame) -> list[str]:
        """Columns that were not there at :meth:`fit`."""
        names_at_fit = {column.name for column in self._get_columns()}
        return [str(name) for name in frame.columns if str(name) not in names_at_fit]

    def get_state(self) -> dict[str, Any]:
        """The columns."""
        if not hasattr(self, "columns"):
            return {}
        return {"columns": self.columns}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take back the columns."""
        if "columns" in state:
            self.columns = state["columns"]

    def _get_columns(self) -> list[Column]:
        if not hasattr(self, "columns"):
            raise ValueError(checks.sentence("Preparation", "fit must come first", "no columns yet"))
        return self.columns

    def _check_columns(self, frame: pd.DataFrame, used: list[Column]) -> None:
        """Refuse a table without a column that is used, with the name that is most like it."""
        names = list(frame.columns)
        absent = [column.name for column in used if column.name not in names]
        if absent:
            listed = ", ".join(repr(name) for name in absent[:5])
            if len(absent) > 5:
                listed += f" and {len(absent) - 5} more"
            fix = "Is it the right file?"
            matches = difflib.get_close_matches(absent[0], self.extra_columns(frame), 1, 0.5)
            if matches:
                fix = f"Is it {matches[0]!r}?"
            need = f"must have the columns that the model was fitted on, but lacks {listed}"
            raise ValueError(checks.sentence("the table", need, ", ".join(names[:6]) or "no columns", fix))


def _check_kind(column: Column, series: pd.Series[Any], unreadable: Array) -> None:
    """Refuse a column none of whose values is of the kind it was at fit."""
    got = "lists or records"
    if not is_nested(series):
        if not unreadable.any():
            return
        text = words(series)
        if int(text.notna().sum()) > int(unreadable.sum()):
            return
        got = repr(text[unreadable].iloc[0])[:40]
    raise ValueError(checks.sentence("Preparation", f"column {column.name!r} must hold {_plural(column)}", got))


def _has_comma(column: Column) -> bool:
    return isinstance(column.encoder, Numbers) and column.encoder.decimal == ","


def _find_other_mark(column: Column, series: pd.Series[Any]) -> str:
    """A sentence where numbers come with another decimal mark than at fit; else nothing."""
    if not isinstance(column.encoder, Numbers):
        return ""
    comma = _has_comma(column)
    if is_text(series):
        writing = Writing.of(series)
        if writing.points + writing.commas == 0 or comma == (writing.decimal == ","):
            return ""
        now, before = "commas", "points"
        if comma:
            now, before = before, now
        return f"{column.name}: decimal {now}, where training had {before}; what is unclear is read as there"
    if comma and series.dtype.kind == "f":
        # 1.125 may have been a thousand before somebody else read it.
        values = series[np.isfinite(series)]
        if (values % 1).any() and np.allclose(values * 1000 % 1, 0):
            return f"{column.name}: typed numbers are taken as they are, where training had text with decimal commas"
    return ""


def _plural(column: Column) -> str:
    return {"numeric": "numbers", "boolean": "truth values", "date": "dates"}.get(column.kind, "words")


def name_by_text(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with its columns' names as text; 1 and "1" cannot both be one."""
    names = [str(name) for name in frame.columns]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(checks.sentence("Preparation", "each column must have its own name", f"{twice[0]!r} twice"))
    return frame.set_axis(names, axis=1)
