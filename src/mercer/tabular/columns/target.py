"""The column to predict: classes or a number, and why."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ... import checks
from ...storage.savable import Savable
from ...user_text import shown
from .column import are_strays
from .values import LARGEST, Array, Writing, date_format, is_nested, is_text, numbers, words

TASKS = ("auto", "classification", "regression")
_WHOLE = 20  # different whole numbers up to which they are classes
_REPEATED = 2.0  # rows a class must have on average


@dataclass(frozen=True)
class Target(Savable):
    """The column to predict.

    Attributes:
        name: Name of the column.
        task: ``classification`` or ``regression``.
        classes: Its classes, sorted; None for a number.
        why: A sentence on how the task was chosen.
        decimal: The decimal mark of numbers that come as text.
        notes: Sentences for the user about its values.
    """

    name: str
    task: str
    classes: Array | None
    why: str
    decimal: str = "."
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, series: pd.Series[Any], *, task: str = "auto", writing: Writing | None = None) -> Target:
        """The target in a column; rows without a value are skipped.

        Words, truth values and at most 20 different whole numbers are classes; other numbers are a regression's, and a
        stray word among them is left out: :meth:`known` is false there.

        Args:
            series: The column.
            task: ``auto`` to choose by that rule, or ``classification`` or ``regression``.
            writing: How it writes numbers, where ``series`` is a part of it; None to count its values.
        """
        checks.choice("Target", "task", task, TASKS)
        name = str(series.name)
        series = series[present(series)]
        if is_nested(series) or not len(series):
            got = "no value at all"
            if len(series):
                got = "lists or records"
            raise ValueError(checks.sentence("Target", f"column {name!r} must hold classes or numbers", got))
        if writing is None:
            writing = Writing.of(series)

        # Classes or a number?
        values, why = numbers(series, writing.decimal), f"{task}, as asked"
        if task == "auto":
            task, why = _choose_task(series, values)
        if task == "classification":
            return cls(name, task, _list_classes(name, series), why)

        # Numbers that are too large are refused.
        if len(values) and np.isinf(values).any() and np.isfinite(values[~np.isinf(values)]).all():
            need = f"column {name!r} must hold numbers below {LARGEST:.0e} for regression"
            where = int(np.flatnonzero(np.isinf(values))[0])
            got = f"{shown(series.iloc[where], 30)} in row {series.index[where]}"
            raise ValueError(checks.sentence("Target", need, got, "Take its logarithm or give it another unit."))

        # A stray word among numbers is left out, with a note; more of them are refused.
        text, notes = words(series), writing.notes(name)
        strange = text[~np.isfinite(values)]
        if len(strange) and are_strays(text, strange) and not np.isinf(values).any():
            rows = f"{len(strange)} row" + "s" * (len(strange) != 1)
            first = f"first {shown(strange.iloc[0], 30)!r} in row {strange.index[0]}"
            notes.append(f"{name}: {rows} left out, where it is no number ({first}).")
            values = values[np.isfinite(values)]
        elif len(strange) or series.dtype.kind == "b":
            got = "truth values"
            if series.dtype.kind != "b":
                got = repr(strange.iloc[0])[:40]
            raise ValueError(checks.sentence("Target", f"column {name!r} must hold finite numbers for regression", got))

        # Numbers that vary too little, or not at all, are refused.
        if 0 < np.ptp(values) < 1 / LARGEST:
            need, fix = f"column {name!r} must vary by more than {1 / LARGEST:.0e}", "Give it another unit."
            raise ValueError(checks.sentence("Target", need, f"{np.ptp(values):.1e}", fix))
        if np.ptp(values) == 0:
            raise ValueError(checks.sentence("Target", f"column {name!r} must vary", f"{values[0]:g} in every row"))
        return cls(name, task, None, why, writing.decimal, notes)

    @property
    def text_columns(self) -> list[str]:
        """Its name, where a file's parts must not turn it into numbers: words, and numbers with a decimal comma."""
        is_words = self.classes is not None and self.classes.dtype.kind not in "if"
        if is_words or self.decimal == ",":
            return [self.name]
        return []

    def encode(self, series: pd.Series[Any]) -> Tensor:  # (n,)
        """Class numbers ``0..c - 1``, or the numbers themselves in float64; every row must have a value."""
        values = self._values(series)
        if self.classes is None:
            return checks.finite("Target", self.name, torch.from_numpy(values))
        places = np.searchsorted(self.classes, values).clip(max=len(self.classes) - 1)
        wrong = self.classes[places] != values
        if wrong.any():
            listed = [*map(str, self.classes[:8]), *["..."] * (len(self.classes) > 8)]
            need = f"column {self.name!r} must hold the classes {', '.join(listed)}"
            raise ValueError(checks.sentence("Target", need, repr(str(values[wrong][0]))[:40]))
        return torch.from_numpy(places.astype(np.int64))

    def decode(self, values: Tensor) -> Array:  # (n,)
        """Classes by their numbers; a regression's numbers as they are."""
        array: Array = values.detach().cpu().numpy()
        if self.classes is not None:
            array = self.classes[array]
        return array

    def known(self, series: pd.Series[Any]) -> Array:  # (n,)
        """Which rows have a value that :meth:`encode` takes."""
        values = self._values(series.where(present(series)))
        if self.classes is None:
            return np.isfinite(values)
        return np.isin(values, self.classes)

    def _values(self, series: pd.Series[Any]) -> Array:
        """Numbers, or words with an empty one where a row has none."""
        if self.classes is None or self.classes.dtype.kind in "if":
            return numbers(series, self.decimal)
        return words(series).fillna("").to_numpy(dtype=str)


def present(series: pd.Series[Any]) -> Array:  # (n,)
    """Which rows have a value."""
    if is_text(series):
        series = words(series)
    has_value: Array = series.notna().to_numpy()
    return has_value


def find_target(columns: Iterable[object], target: object, asked: str = "target") -> str:
    """The name as text, if it is one of the columns; else the closest one is in the sentence."""
    names, target = [str(name) for name in columns], str(target)
    if target in names:
        return target
    matches = difflib.get_close_matches(target, names, 1, 0.4)
    fix = ""
    if matches:
        fix = f"Did you mean {matches[0]!r}?"
    listed = ", ".join(names[:8] + ["..."] * (len(names) > 8))
    raise ValueError(checks.sentence(asked, f"must be one of the columns {listed}", repr(target), fix))


def _choose_task(series: pd.Series[Any], values: Array) -> tuple[str, str]:
    """The task that a target's values ask for, and a sentence that says why."""
    different = int(words(series).nunique())
    if series.dtype.kind == "b" or isinstance(series.dtype, pd.CategoricalDtype):
        return "classification", f"classification: {series.name} holds {different} categories"
    if np.isnan(values).any():
        # A stray word among numbers is no reason to take each of them for a class.
        text, present_values = words(series), values[~np.isnan(values)]
        few_whole = not (present_values % 1).any() and len(np.unique(present_values)) <= _WHOLE
        if few_whole or not are_strays(text, text[np.isnan(values)]):
            return "classification", f"classification: {series.name} holds {different} different words"
        values, different = present_values, different - int(text[np.isnan(values)].nunique())
    if np.isinf(values).any() or (values % 1).any():  # numbers beyond any unit are refused as such
        return "regression", f"regression: {series.name} holds numbers with decimals"
    if different <= _WHOLE and len(series) >= _REPEATED * different:
        return "classification", f"classification: {series.name} holds {different} different whole numbers"
    return "regression", f"regression: {series.name} holds {different} different whole numbers, more than classes do"


def _list_classes(name: str, series: pd.Series[Any]) -> Array:
    """The classes of a target, sorted: numbers where all are, else words; identifiers and dates are refused."""
    if date_format(series) is not None:
        raise ValueError(checks.sentence("Target", f"column {name!r} must hold classes or numbers", "dates"))
    plain = series
    if is_text(series):  # $5 and 5 % stay the words that they are
        plain = pd.to_numeric(words(series), errors="coerce")
    values = numbers(plain)
    numeric = np.isfinite(values).all() and series.dtype.kind != "b"
    if not numeric:
        values = words(series).to_numpy(dtype=str)
    classes: Array = np.unique(values)
    if numeric and not (classes % 1).any() and np.abs(classes).max() < 2**53:
        classes = classes.astype(np.int64)
    if len(classes) < 2:
        fix = "A classifier needs rows of at least two classes."
        raise ValueError(checks.sentence("Target", f"column {name!r} must hold two classes", f"only {classes[0]}", fix))
    if len(series) < _REPEATED * len(classes) and len(classes) > _WHOLE:
        got = f"{len(classes)} different ones in {len(series)} rows"
        fix = "Is it an identifier? For numbers, ask for regression."
        raise ValueError(checks.sentence("Target", f"classes in column {name!r} must repeat", got, fix))
    return classes
