"""What a column is, and what is done with it: decided once, on the training rows, and said in plain words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ... import checks
from ...storage.savable import Savable
from ...user_text import shown
from .encoders import Dates, Dropped, Encoder, Levels, Numbers, Texts, Truths, date_parts
from .values import (
    DAY_FIRST,
    LARGEST,
    MONTH_FIRST,
    TRUTHS,
    WITHOUT_DAY,
    Array,
    Writing,
    date_format,
    dates,
    is_nested,
    is_text,
    numbers,
    truths,
    words,
)

MOST_LEVELS = 30  # categories with a column of their own, at most
MEANS = "; and the mean of the target over other rows with the same word"
_RARE = 0.005  # share of the rows below which a category joins the others
_FLAGGED = 0.01  # share of missing values from which on they get a flag
_FEW = 3  # rows that are too few to learn from, whatever their share
_UNIQUE = 0.9  # share of different words from which on they name the row
_NAMED = 20  # rows from which on that can be told
_WORDS, _LETTERS = 5, 60  # mean words or letters of a text
_STRAY = 0.05  # share, and
_STRAYS = 3  # kinds of words among numbers that count as missing; and
_ALONE = 10  # values among which one is a stray, whatever its share
_ID = re.compile(r"(^|[_\W])(id|uuid|guid|key|rownum|rowid|index)$|[a-z]I[dD]$|^unnamed|^column 1$", re.IGNORECASE)


@dataclass(frozen=True)
class Column(Savable):
    """One column of a table.

    Attributes:
        name: As in the table.
        kind: ``numeric``, ``categorical``, ``boolean``, ``date``, ``text``; or, dropped, ``constant``, ``identifier``,
            ``nested``.
        how: How it is used, or why it is not.
        encoder: What turns it into numbers.
        notes: Sentences for the user about its values.
    """

    name: str
    kind: str
    how: str
    encoder: Encoder = field(default_factory=Dropped)
    notes: list[str] = field(default_factory=list)

    @property
    def dropped(self) -> bool:
        """Whether the column is not used at all."""
        return not self.encoder.features

    def summary(self) -> dict[str, str]:
        """Name, kind and use, for a JSON document."""
        return {"name": self.name, "kind": self.kind, "how": self.how}


def describe(series: pd.Series[Any], writing: Writing | None = None, *, counts: bool = False) -> Column:
    """The column's kind and encoder, by all of its values.

    Args:
        series: The column.
        writing: How it writes numbers and dates, where ``series`` is a part of it; None to count its values.
        counts: Whether numbers that count the rows stay, as the x of a curve.
    """
    if writing is None:
        writing = Writing.of(series)
    name = str(series.name)
    if is_nested(series):
        hint = f"To use {name}, turn it into embeddings and give them as columns or in an npz file."
        return Column(name, "nested", "dropped: its values are lists or records, not single values", notes=[hint])

    # A column of one value, or none, says nothing, unless cells without it are many.
    text = None
    if is_text(series):
        text = words(series)
        values, different = series.where(text.notna()), int(text.nunique())
    else:
        values, different = series, int(series.nunique())
    missing = int(values.isna().sum())
    if different == 0:
        return Column(name, "constant", "dropped: every value is missing")
    if different == 1 and missing < _least_rows(len(series)):
        return Column(name, "constant", f"dropped: every value is {_quote(_first_value(values))}")
    if different == 1:
        level = str(_first_value(words(series)))
        how = f"1 where it is {_quote(level)}, 0 where it is missing ({_count_rows(missing)})"
        return Column(name, "boolean", how, Levels([f"{name} is {level}"], [level], [], with_missing=False))

    # Else by what its values are.
    if text is not None:
        return _describe_words(name, series, text, writing, counts)
    if series.dtype.kind == "b" or isinstance(series.dtype, pd.BooleanDtype):
        return _describe_truths(name, series)
    if series.dtype.kind == "M":
        return _describe_dates(name, series, "ISO8601", writing)
    return _describe_numbers(name, series, writing, counts)


def are_strays(present: pd.Series[Any], strange: pd.Series[Any]) -> bool:
    """Whether so few of the words ``present`` are ``strange``, no numbers, that the column holds numbers."""
    limit = _STRAY * len(present)
    if len(present) >= _ALONE:
        limit = max(limit, 1)
    return len(strange) <= limit and strange.nunique() <= _STRAYS


def _describe_words(name: str, series: pd.Series[Any], text: pd.Series[Any], writing: Writing, counts: bool) -> Column:
    """A column of text: numbers, truth values or dates as words, free text, names of the row, or categories."""
    # Numbers and truth values that came as text; codes such as 00501 are none.
    present = text.dropna()
    codes = isinstance(series.dtype, pd.CategoricalDtype) or bool(present.str.fullmatch(r"0\d+").any())
    if not codes and are_strays(present, present[np.isnan(numbers(present, writing.decimal))]):
        return _describe_numbers(name, series, writing, counts)
    if set(present.str.lower().unique()) <= TRUTHS.keys():
        return _describe_truths(name, series)
    pattern = date_format(present, writing)
    if pattern is not None:
        return _describe_dates(name, series, pattern, writing)
    # Words that differ in most rows: sentences, or names that share some of their words, are text; others name the row.
    unlike = present.nunique() / len(present)
    if len(present) >= _NAMED and unlike > 1 - _UNIQUE:
        long = float(present.str.count(r"\S+").mean()) >= _WORDS or float(present.str.len().mean()) >= _LETTERS
        if long or (unlike >= _UNIQUE and _share_words(present)):
            encoder = Texts.of(name, text, int(text.isna().sum()) >= _least_rows(len(text)))
            if encoder is not None:
                how = f"free text ({present.nunique()} different ones) by its runs of three and four letters"
                return Column(name, "text", how, encoder)
        if unlike >= _UNIQUE:
            how = f"dropped: it names the row ({present.nunique()} different words in {len(present)} rows)"
            return Column(name, "identifier", how)
    return _describe_levels(name, text)


def _share_words(present: pd.Series[Any]) -> bool:
    """Whether some word of three letters or more is in a hundredth of the values, but not in nearly all of them."""
    words_of_value = present.str.lower().str.findall(r"[^\W\d_]{3,}").map(set)
    counts = words_of_value.explode().value_counts()
    return bool(((counts >= _least_rows(len(present))) & (counts <= _UNIQUE * len(present))).any())


def _describe_numbers(name: str, series: pd.Series[Any], writing: Writing, counts: bool) -> Column:
    """A column of numbers; one value says nothing and is dropped, as are row numbers unless ``counts``."""
    values = numbers(series, writing.decimal)
    if not np.isfinite(values).any():
        need = f"column {name!r} must hold a finite number below {LARGEST:.0e}"
        fix = "Take its logarithm or give it another unit."
        raise ValueError(checks.sentence("Preparation", need, shown(_first_value(series), 30), fix))
    if len(np.unique(values[np.isfinite(values)])) == 1 and np.isfinite(values).all():
        return Column(name, "constant", f"dropped: every value is {values[0]:g}")
    if not counts and _is_row_number(name, series, values):
        how = "dropped: it numbers the rows"
        return Column(name, "identifier", how)

    # What is missing gets the median, and a column that says so where it is often; what is no number is noted.
    encoded = Numbers([name], 0.0, flagged=False, decimal=writing.decimal)(series)
    missing, strange = int(encoded.missing.sum()), int(encoded.unreadable.sum())
    fill = float(np.median(values[np.isfinite(values)]))
    flagged = missing >= _least_rows(len(values))
    how = f"a number{_say_missing(missing, f'the median {fill:.6g}', flagged)}"
    notes = writing.notes(name)
    if strange:
        where = int(np.flatnonzero(encoded.unreadable)[0])
        first = f"first {shown(series.iloc[where], 30)!r} in row {series.index[where]}"
        notes.append(
            f"{name}: values that are infinite or no numbers count as missing ({_count_rows(strange)}, {first})."
        )
    features = [name] + [f"{name} is missing"] * flagged
    return Column(name, "numeric", how, Numbers(features, fill, flagged, writing.decimal), notes)


def _is_row_number(name: str, series: pd.Series[Any], values: Array) -> bool:
    """Whole numbers, each once, that run on without a gap, follow the rows, or are called an id."""
    if len(values) < _NAMED or not np.isfinite(values).all() or (values % 1).any():
        return False
    if len(np.unique(values)) < len(values):
        return False
    if values.max() - values.min() == len(values) - 1 or _ID.search(name):
        return True
    place = series.index.to_numpy()
    return place.dtype.kind in "iu" and bool((values - place == values[0] - place[0]).all())


def _describe_truths(name: str, series: pd.Series[Any]) -> Column:
    """A column of truth values, 1 and 0; what is missing gets their mean."""
    values = truths(series)
    missing = int(np.isnan(values).sum())
    flagged = missing >= _least_rows(len(values))
    fill = float(np.nanmean(values))
    no, yes = (_name_truth(series[values == truth], truth) for truth in (0.0, 1.0))
    how = f"1 for {yes}, 0 for {no}{_say_missing(missing, f'the mean {fill:.3g}', flagged)}"
    features = [name] + [f"{name} is missing"] * flagged
    return Column(name, "boolean", how, Truths(features, fill, flagged, [no, yes]))


def _name_truth(values: pd.Series[Any], truth: float) -> str:
    """The word that the column itself has most often for true or false; ``values`` are its rows of that truth."""
    if not len(values) or not is_text(values):
        return str(bool(truth)).lower()
    return shown(words(values).mode().iloc[0], 30)


def _describe_levels(name: str, text: pd.Series[Any]) -> Column:
    """A column of categories: a feature for each frequent one, one for all rare ones together."""
    # Frequent and rare levels.
    counts = text.value_counts()
    fewest = max(2, round(_RARE * len(text)))
    if int(counts.iloc[0]) < fewest:  # no level is frequent: those that repeat stay, and the target's means tell them
        fewest = 2
    levels = sorted(map(str, counts.index[counts >= fewest][:MOST_LEVELS]))
    rare = sorted(set(map(str, counts.index)) - set(levels))
    if not levels:
        how = f"dropped: none of its {len(counts)} words comes twice"
        return Column(name, "identifier", how)
    if len(rare) == 1 and len(levels) < MOST_LEVELS:
        levels, rare = sorted(levels + rare), []

    # Their features; two levels need one.
    missing = int(text.isna().sum())
    flagged = missing >= _least_rows(len(text))  # fewer blank cells teach nothing
    features = [f"{name} is {level}" for level in levels]
    features += [f"{name} is another"] * bool(rare) + [f"{name} is missing"] * flagged
    how = f"one column for each of {len(levels)} categories"
    if len(levels) == 1:
        how = f"a column for {_quote(levels[0])}"
    if len(levels) == 2 and not rare and not flagged:
        features, how = features[:1], f"1 where it is {_quote(levels[0])}, 0 where it is {_quote(levels[1])}"

    # What becomes of the others.
    if rare:
        how += f"; {len(rare)} rare ones share one"
    if len(levels) + len(rare) > MOST_LEVELS:
        how += MEANS
    if missing and flagged:
        how += f"; missing ({_count_rows(missing)}) is a category of its own"
    elif missing:
        how += f"; missing ({_count_rows(missing)}) is none of them"
    rows = [int(counts[level]) for level in levels]
    return Column(name, "categorical", how, Levels(features, levels, rare, flagged, rows))


def _describe_dates(name: str, series: pd.Series[Any], pattern: str, writing: Writing) -> Column:
    """A column of dates: those of their parts (days, season, weekday, hour) that vary."""
    moments = dates(series, pattern)
    present = moments.dropna()
    origin = present.min().normalize()
    values_of_part = date_parts(present, origin)
    parts = [part for part, values in values_of_part.items() if np.ptp(values) > 1e-9]
    if pattern in WITHOUT_DAY:  # a month has no weekday
        parts = [part for part in parts if not part.startswith("weekday")]
    if not parts:
        return Column(name, "constant", f"dropped: every value is {present.iloc[0]}")
    missing = len(moments) - len(present)
    flagged = missing >= _least_rows(len(moments))
    fill = float(np.median(values_of_part["days"]))
    named = ", ".join(dict.fromkeys(part.split()[0] for part in parts))
    how = f"a date as {named}{_say_missing(missing, 'the middle date', flagged)}"
    features = [f"{name} {part}" for part in parts] + [f"{name} is missing"] * flagged
    notes = []
    if pattern.startswith(MONTH_FIRST + DAY_FIRST) and writing.days == writing.months:
        notes = [f"{name}: days and months could be swapped; read as {pattern}. Write dates as 2024-12-31 to be sure."]
    encoder = Dates(features, parts, pattern, origin.date().isoformat(), fill, flagged)
    return Column(name, "date", how, encoder, notes)


def _least_rows(rows: int) -> float:
    """Rows without a value from which on they can be learned from."""
    return max(_FEW, _FLAGGED * rows)


def _say_missing(missing: int, fill: str, flagged: bool) -> str:
    """What a missing value gets, where there are any."""
    if not missing:
        return ""
    return f"; where missing ({_count_rows(missing)}) {fill}" + ", with a column that says so" * flagged


def _count_rows(count: int) -> str:
    return f"{count} row" + "s" * (count != 1)


def _first_value(values: pd.Series[Any]) -> object:
    return values.dropna().iloc[0]


def _quote(value: object) -> str:
    text = str(value)
    if len(text) > 30:
        text = text[:27] + "..."
    return repr(text)
