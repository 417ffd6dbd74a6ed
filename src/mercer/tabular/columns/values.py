"""Readings of a column: as numbers, as words, as truth values, as dates. What cannot be read is missing.

A column may come as text or typed, from a file or a DataFrame; every reading gives the same for the same value. What
one value leaves open (is ``1,125`` a thousand or a bit more than one?) is decided by all values of the column, once, at
fit: :class:`Writing`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

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
    "%m-%d-%Y",
    "%d-%b-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%Y/%m/%d %H:%M:%S",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M:%S",
    "%d.%m.%Y %H:%M:%S",
    "%m/%d/%Y %I:%M %p",
    "%d/%m/%Y %I:%M %p",
    "%m/%d/%Y %I:%M:%S %p",
    "%d/%m/%Y %I:%M:%S %p",
    "%Y-%m-%d %I:%M %p",
    "%Y-%m-%d %I:%M:%S %p",
    "%b %Y",
    "%B %Y",
    "%Y %b",
    "%Y %B",
    "quarter",
    "week",
)
WITHOUT_DAY = ("%b %Y", "%B %Y", "%Y %b", "%Y %B", "quarter", "week")
"""Formats of months, of quarters (``2024 Q3``) and of ISO weeks (``2024-W05``), whose first day they are read as."""

MONTH_FIRST, DAY_FIRST = ("%m/%d", "%m-%d"), ("%d/%m", "%d-%m")
"""Starts of the formats that can be taken for each other."""

_MONEY = r"(?:US\$|R\$|[$€£¥₹₽₩₺]|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|BRL|kr\.?|zł|Rs\.?)"
_WRITTEN = (  # sign, unit and sign in either order, digits with their marks, power of ten, unit
    rf"^(?P<paid>\()?(?P<sign>[-+\u2212])?\s{{0,2}}{_MONEY}?\s{{0,2}}(?P<late>[-+\u2212])?"
    rf"(?P<digits>[.,]?\d[\d.,'’ \u00a0\u202f]{{0,40}}?)(?P<power>[eE][-+]?\d{{1,4}})?\s{{0,2}}(?:%|{_MONEY})?\)?$"
)
_SPACED = r"\d{1,3}(?:[ \u00a0\u202f'’]\d{3})+(?:[.,]\d*)?"
_POINT = r"\d+(?:\.\d*)?|\.\d+|[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d*)?"
_COMMA = r"\d+(?:,\d*)?|,\d+|[1-9]\d{0,2}(?:\.\d{3})+(?:,\d*)?"
_THOUSANDS = r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+"  # with points: also a number with three decimals
_DATES = 0.99  # share of the values that must be dates of one format
_LOOKS_DATED = r"\d.*[-/. ].*\d|[A-Za-z]{3} \d{4}$|^\d{4}[- ]?[QA-Z]|^Q[1-4]\W?\d{4}$"
_QUARTER = r"^(?:(\d{4})[- ]?Q([1-4])|Q([1-4])[-/ ]?(\d{4}))$"


def is_text(series: pd.Series[Any]) -> bool:
    """Words, categories or a mixture, rather than numbers, truth values or dates."""
    return series.dtype.kind == "O" and not isinstance(series.dtype, pd.DatetimeTZDtype | pd.BooleanDtype)


def is_nested(series: pd.Series[Any]) -> bool:
    """Lists, arrays or records in place of single values."""
    if series.dtype.kind != "O" or _holds_strings(series):
        return False
    return any(isinstance(value, list | tuple | dict | set | np.ndarray | bytes) for value in series.to_numpy())


def words(series: pd.Series[Any]) -> pd.Series[Any]:
    """Text without blanks at its ends, None where missing; a whole number without decimals: 1 and 1.0 are one word."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    values = series.to_numpy(dtype=object)
    if not _holds_strings(series):
        return pd.Series([_word(value) for value in values], index=series.index, dtype=object)
    # Of strings each different one is read once; among other values 1, 1.0 and True would count as the same.
    codes, different = pd.factorize(values)  # -1 where missing
    read = np.array([*map(_word, different), None], dtype=object)
    return pd.Series(read[codes], index=series.index, dtype=object)


def _word(value: Any) -> str | None:
    """One value as a word; None where it is missing."""
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    if text in _MARKS:
        return None
    return text


@dataclass(frozen=True)
class Writing:
    """How a column writes numbers and dates, by counts over its values; the counts of a file's parts add up.

    Attributes:
        points: Values that only a decimal point explains: ``2.5``, ``1,234.50``.
        commas: Values that only a decimal comma explains: ``2,5``, ``0,881``, ``1.148,28``.
        either: Values that both explain: ``1,125``, ``$1.125``.
        example: The first of the last.
        days: Dates whose first number is above 12.
        months: Dates whose second number is above 12.
    """

    points: int = 0
    commas: int = 0
    either: int = 0
    example: str = ""
    days: int = 0
    months: int = 0

    @classmethod
    def of(cls, series: pd.Series[Any]) -> Self:
        """The counts of one column; none where it is not text."""
        if not is_text(series):
            return cls()
        # Different values with a digit in them, and how often each comes.
        tally = words(series[_are_strings(series)]).value_counts(sort=False)
        if len(tally):
            tally = tally[tally.index.str.contains(r"\d").astype(bool)]
        if not len(tally):
            return cls()
        text, counts = pd.Series(tally.index, dtype=object), tally.to_numpy()

        # Of numbers with marks, which decimal mark explains them: a point, a comma, or both.
        digits = _take_apart(text)["digits"].fillna("")
        point, comma = (digits.str.fullmatch(form).to_numpy(dtype=bool) for form in (_POINT, _COMMA))
        marked = digits.str.contains("[.,]").to_numpy(dtype=bool)
        plain = pd.to_numeric(text, errors="coerce").notna().to_numpy()
        both = point & comma & marked & ~plain
        example = ""
        if both.any():
            example = str(text[both].iloc[0])

        # Of dates such as 31/12/2024, which of the first two numbers no month can be.
        first, second = (
            pd.to_numeric(part, errors="coerce").to_numpy(dtype=np.float64) > 12
            for _, part in text.str.extract(r"^(\d{1,2})[-/](\d{1,2})[-/]\d").items()
        )
        return cls(
            points=int(counts[point & ~comma & marked].sum()),
            commas=int(counts[comma & ~point & marked].sum()),
            either=int(counts[both].sum()),
            example=example,
            days=int(counts[first].sum()),
            months=int(counts[second].sum()),
        )

    def __add__(self, other: Writing) -> Writing:
        return Writing(
            self.points + other.points,
            self.commas + other.commas,
            self.either + other.either,
            self.example or other.example,
            self.days + other.days,
            self.months + other.months,
        )

    @property
    def decimal(self) -> str:
        """The decimal mark: a comma where more values ask for it than for a point."""
        if self.commas > self.points:
            return ","
        return "."

    def notes(self, name: str) -> list[str]:
        """What the user should know about a column of numbers: marks that contradict each other, or decide nothing."""
        if self.either and not self.points and not self.commas:
            value = numbers(pd.Series([self.example], dtype=object))[0]
            fix = "Write all decimals with a point, without marks between thousands, to be sure."
            return [
                f"{name}: marks could be decimal or between thousands; {self.example!r} is read as {value:g}. {fix}"
            ]
        if self.points and self.commas:
            counts = f"{self.commas} values have a decimal comma, {self.points} a decimal point"
            mark = "point"
            if self.decimal == ",":
                mark = "comma"
            return [f"{name}: {counts}. What is unclear is read with the {mark}. Write all with a point to be sure."]
        return []


def numbers(series: pd.Series[Any], decimal: str = ".") -> Array:  # (n,)
    """float64; NaN where there is none. Text may have a currency, a percent sign (dropped) and marks between thousands.

    Args:
        series: The column.
        decimal: The mark that settles what a single value leaves open: ``1,125`` and ``1.125``.
    """
    if isinstance(series.dtype, pd.DatetimeTZDtype) or series.dtype.kind == "M":
        return np.full(len(series), np.nan)
    if series.dtype.kind == "m":
        return np.asarray(series.dt.total_seconds(), dtype=np.float64)
    if not is_text(series):
        return _bound(np.array(series.to_numpy(dtype=np.float64, na_value=np.nan)))
    # Plain numbers first; what they leave, and with a decimal comma what could be thousands, is taken apart.
    text = words(series)
    values = np.array(pd.to_numeric(text, errors="coerce"), dtype=np.float64)
    odd = np.isnan(values) & text.notna().to_numpy()
    if decimal == ",":
        odd |= text.str.fullmatch(_THOUSANDS).fillna(False).to_numpy(dtype=bool) & _are_strings(series)
    odd[odd] = text[odd].str.contains(r"\d").to_numpy(dtype=bool)
    if odd.any():
        parts = _take_apart(text[odd])
        digits = parts["digits"].fillna("")
        point, comma = (digits.str.fullmatch(form).to_numpy(dtype=bool) for form in (_POINT, _COMMA))
        # Marks between thousands go, the decimal mark becomes a point; what both explain goes by ``decimal``.
        with_comma = comma & (~point | (decimal == ","))
        by_comma = digits.str.replace(".", "").str.replace(",", ".", regex=False)
        code = digits.str.replace(",", "").where(~with_comma, by_comma)
        size = pd.to_numeric(code.where(point | comma) + parts["power"].fillna(""), errors="coerce")
        minus = parts[["sign", "late"]].isin(["-", "\u2212"]).any(axis=1) | parts["paid"].notna()
        values[odd] = np.where(minus, -1.0, 1.0) * size.to_numpy(dtype=np.float64, na_value=np.nan)
    return _bound(values)


def _take_apart(text: pd.Series[Any]) -> pd.DataFrame:
    """Sign, digits and power of ten of numbers as people write them; spaces and apostrophes between thousands go."""
    parts = text.str.extract(_WRITTEN).astype(object)
    digits = parts["digits"]
    spaced = digits.str.contains(r"[ \u00a0\u202f'’]").fillna(False).astype(bool)
    if spaced.any():
        right = digits.str.fullmatch(_SPACED).fillna(False).astype(bool)
        parts["digits"] = digits.str.replace(r"[ \u00a0\u202f'’]", "", regex=True).where(~spaced | right)
    return parts


def _holds_strings(series: pd.Series[Any]) -> bool:
    """Whether all values are strings or missing; told without a look at each from Python."""
    return pd.api.types.infer_dtype(series, skipna=True) == "string"


def _are_strings(series: pd.Series[Any]) -> Array:  # (n,)
    """Values that are written, rather than numbers among words."""
    if _holds_strings(series):
        return series.notna().to_numpy()
    return np.array([isinstance(value, str) for value in series.to_numpy(dtype=object)], dtype=bool)


def _bound(values: Array) -> Array:
    """Infinite beyond 1e140, where sums of squares overflow; 0 for denormal numbers, which cost tenfold and mean 0."""
    size = np.abs(values)
    values[size < np.finfo(np.float64).tiny] = 0.0
    values[size > LARGEST] = np.copysign(np.inf, values[size > LARGEST])
    return values


def truths(series: pd.Series[Any]) -> Array:  # (n,)
    """1 for true, 0 for false, NaN for anything else."""
    if series.dtype.kind == "b" or isinstance(series.dtype, pd.BooleanDtype):
        return np.array(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if not is_text(series):
        values = numbers(series)
        return np.where(np.isin(values, (0.0, 1.0)), values, np.nan)
    text, meanings = words(series), TRUTHS | {"1": 1.0, "0": 0.0}
    value_of_word = {word: meanings.get(word.lower(), np.nan) for word in text.dropna().unique()}
    return np.array(text.map(value_of_word), dtype=np.float64)


def date_format(series: pd.Series[Any], writing: Writing | None = None) -> str | None:
    """The format in which nearly all values are dates, the first of a list that fits; None where none does.

    Args:
        series: The column.
        writing: Which of day and month comes first, by all values of the column; None to count these.
    """
    if series.dtype.kind == "M":
        return "ISO8601"
    if not is_text(series):
        return None
    # A quick look at the first values.
    text = words(series).dropna()
    head = text.iloc[:50]
    if not len(head) or float(head.str.contains(_LOOKS_DATED).mean()) < _DATES:
        return None
    # Where days and months could be swapped, the column's own values say which comes first.
    if writing is None:
        writing = Writing.of(series)
    excluded: tuple[str, ...] = ()
    if writing.days > writing.months:
        excluded = MONTH_FIRST
    elif writing.months > writing.days:
        excluded = DAY_FIRST
    # The first format in which nearly all values are dates.
    for pattern in _FORMATS:
        if excluded and pattern.startswith(excluded):
            continue
        if all(float(_parse(part, pattern).notna().mean()) >= _DATES for part in (head, text)):
            return pattern
    return None


def dates(series: pd.Series[Any], pattern: str) -> pd.Series[Any]:
    """Moments without a zone (UTC where there was one); NaT where there is none."""
    if series.dtype.kind == "M":
        if isinstance(series.dtype, pd.DatetimeTZDtype):
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        moments: pd.Series[Any] = series.dt.as_unit("us")  # nanoseconds end in 2262
        return moments
    if not is_text(series):
        series = series.astype(object)
    return _parse(words(series), pattern)


def _parse(text: pd.Series[Any], pattern: str) -> pd.Series[Any]:
    """Moments in UTC without a zone; NaT for text that does not fit the pattern."""
    if pattern == "quarter":
        found = text.astype("string").str.extract(_QUARTER)
        year, quarter = found[0].fillna(found[3]), found[1].fillna(found[2])
        text, pattern = year + "-" + (3 * quarter.astype("Int64") - 2).astype("string"), "%Y-%m"
    elif pattern == "week":
        text, pattern = text.str.replace(r"^(\d{4})[- ]?W", r"\1-W", regex=True) + "-1", "%G-W%V-%u"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a value that does not fit is missing; pandas would also say so
        read = pd.to_datetime(text, format=pattern, errors="coerce", utc=True)
    moments: pd.Series[Any] = read.dt.tz_localize(None).dt.as_unit("us")
    return moments
