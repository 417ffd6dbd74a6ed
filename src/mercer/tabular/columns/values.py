"""Readings of a column: as numbers, as words, as truth values, as dates. What cannot be read is missing.

A column may come as text or typed, from a file or a DataFrame; every reading gives the same for the same value.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..reading import MISSING_MARKS

Array = NDArray[Any]

LARGEST = 1e140
"""Numbers beyond it count as missing: the sums of their squares would overflow."""

TRUTHS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "t": 1.0, "f": 0.0, "y": 1.0, "n": 0.0}
"""Words, in lower case, that mean true or false."""

_MARKS = {*MISSING_MARKS, "", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "n/a", "#N/A", "NaT"}
_FORMATS = (
    "ISO8601",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d-%m-%Y",
    "%d-%b-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%Y/%m/%d %H:%M:%S",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M",
    "%d.%m.%Y %H:%M",
)
_DATES = 0.99  # share of the values that must be dates of one format
_LOOKS_DATED = r"\d.*[-/. ].*\d"


def is_text(series: pd.Series[Any]) -> bool:
    """Words, categories or a mixture, rather than numbers, truth values or dates."""
    return series.dtype.kind == "O" and not isinstance(series.dtype, pd.DatetimeTZDtype | pd.BooleanDtype)


def is_nested(series: pd.Series[Any]) -> bool:
    """Lists, arrays or records in place of single values."""
    if series.dtype.kind != "O":
        return False
    return any(isinstance(value, list | tuple | dict | set | np.ndarray | bytes) for value in series.to_numpy())


def words(series: pd.Series[Any]) -> pd.Series[Any]:
    """Text without blanks at its ends, None where missing; a whole number without decimals: 1 and 1.0 are one word."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    values = [_word(value) for value in series.to_numpy(dtype=object)]
    return pd.Series(values, index=series.index, dtype=object)


def _word(value: Any) -> str | None:
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    return None if text in _MARKS else text


def numbers(series: pd.Series[Any]) -> Array:  # (n,)
    """float64; NaN where there is none. Text may have a decimal comma, thousands in commas, or a percent sign."""
    if isinstance(series.dtype, pd.DatetimeTZDtype) or series.dtype.kind == "M":
        return np.full(len(series), np.nan)
    if series.dtype.kind == "m":
        return np.asarray(series.dt.total_seconds(), dtype=np.float64)
    if not is_text(series):
        return _sane(np.array(series.to_numpy(dtype=np.float64, na_value=np.nan)))
    text = words(series)
    plain = pd.to_numeric(text, errors="coerce")
    odd = text[plain.isna() & text.notna()]
    if len(odd) and odd.str.contains(r"\d").any():
        plain = plain.fillna(pd.to_numeric(_punctuated(odd), errors="coerce"))
    return _sane(np.array(plain, dtype=np.float64))


def _sane(values: Array) -> Array:
    """Infinite beyond 1e140, where sums of squares overflow; 0 for denormal numbers, which cost tenfold and mean 0."""
    size = np.abs(values)
    values[size < np.finfo(np.float64).tiny] = 0.0
    values[size > LARGEST] = np.copysign(np.inf, values[size > LARGEST])
    return values


def _punctuated(text: pd.Series[Any]) -> pd.Series[Any]:
    """Numbers with commas or a percent sign, as a number is written in code."""
    text = text.str.removesuffix("%").str.strip()
    thousands = text.str.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?").fillna(False).astype(bool)
    decimal = text.str.fullmatch(r"[+-]?\d+,\d+").fillna(False).astype(bool)
    if bool(decimal.any()) and not bool((thousands & decimal)[decimal].all()):
        thousands &= False  # one value such as 3,5 settles what a comma means
    return text.where(~thousands, text.str.replace(",", "")).where(~(decimal & ~thousands), text.str.replace(",", "."))


def truths(series: pd.Series[Any]) -> Array:  # (n,)
    """1 for true, 0 for false, NaN for anything else."""
    if series.dtype.kind == "b" or isinstance(series.dtype, pd.BooleanDtype):
        return np.array(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if not is_text(series):
        values = numbers(series)
        return np.where(np.isin(values, (0.0, 1.0)), values, np.nan)
    lower = words(series).str.lower().replace({"1": "true", "0": "false"})
    return np.array(lower.map(TRUTHS), dtype=np.float64)


def date_format(series: pd.Series[Any]) -> str | None:
    """The format in which nearly all values are dates, the first of a list that fits; None where none does."""
    if series.dtype.kind == "M":
        return "ISO8601"
    if not is_text(series):
        return None
    text = words(series).dropna()
    head = text.iloc[:50]
    if not len(head) or float(head.str.contains(_LOOKS_DATED).mean()) < _DATES:
        return None
    for pattern in _FORMATS:
        if all(float(_parsed(part, pattern).notna().mean()) >= _DATES for part in (head, text)):
            return pattern
    return None


def dates(series: pd.Series[Any], pattern: str) -> pd.Series[Any]:
    """Moments without a zone (UTC where there was one); NaT where there is none."""
    if series.dtype.kind == "M":
        zoned = isinstance(series.dtype, pd.DatetimeTZDtype)
        return series.dt.tz_convert("UTC").dt.tz_localize(None) if zoned else series
    return _parsed(words(series) if is_text(series) else words(series.astype(object)), pattern)


def _parsed(text: pd.Series[Any], pattern: str) -> pd.Series[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a value that does not fit is missing; pandas would also say so
        found = pd.to_datetime(text, format=pattern, errors="coerce", utc=True)
    return found.dt.tz_localize(None)
