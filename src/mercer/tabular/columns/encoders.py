"""One encoder for each kind of column: a column in, numbers ``(n, p)`` out, and the rows that surprised it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...linalg.blocks import slices
from ...storage.savable import Savable
from .values import Array, dates, numbers, truths, words

_YEAR = 365.2425
_LETTERS = 1000  # letters of a text that are read
_GRAMS = 3000  # runs of letters that are counted, the most frequent ones
_TEXTS = 10_000  # texts that the directions are learned from
_DIRECTIONS = 100  # directions that the mean of the target is read from
_SHOWN_DIRECTIONS = 5  # directions that are features: more of them drown the other columns
_BLOCK = 5000


class Encoded(NamedTuple):
    """What a column became.

    Attributes:
        x: ``(n, p)``, finite.
        unreadable: ``(n,)``, rows whose value is of another type, and so counts as missing.
        unseen: ``(n,)``, rows with a category that no training row had.
        missing: ``(n,)``, rows without a value.
    """

    x: Array
    unreadable: Array
    unseen: Array
    missing: Array


@runtime_checkable
class Encoder(Protocol):
    """A fitted encoder."""

    @property
    def features(self) -> list[str]:
        """Names of the p columns."""

    @property
    def knows_blanks(self) -> bool:
        """Whether training rows taught what a blank cell means."""

    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """The column as numbers."""


@dataclass(frozen=True)
class Dropped(Savable):
    """No feature at all."""

    features: list[str] = field(default_factory=list)

    @property
    def knows_blanks(self) -> bool:
        """True: the column has no say."""
        return True

    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """Nothing, for every row."""
        none = np.zeros(len(series), dtype=bool)
        return Encoded(np.zeros((len(series), 0)), none, none, none)


@dataclass(frozen=True)
class Numbers(Savable):
    """The number itself, ``fill`` where it is missing or infinite, and a flag of that where ``flagged``.

    ``decimal`` is the decimal mark of numbers that come as text.
    """

    features: list[str]
    fill: float
    flagged: bool
    decimal: str = "."

    @property
    def knows_blanks(self) -> bool:
        """Whether a flag says that a value is missing."""
        return self.flagged

    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """One or two columns."""
        return _filled(series, numbers(series, self.decimal), self.fill, self.flagged)


@dataclass(frozen=True)
class Truths(Savable):
    """1 for true, 0 for false, ``fill`` where it is missing, and a flag of that where ``flagged``.

    ``words`` are what the column says for false and for true.
    """

    features: list[str]
    fill: float
    flagged: bool
    words: list[str] = field(default_factory=lambda: ["false", "true"])

    @property
    def knows_blanks(self) -> bool:
        """Whether a flag says that a value is missing."""
        return self.flagged

    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """One or two columns."""
        return _filled(series, truths(series), self.fill, self.flagged)


@dataclass(frozen=True)
class Levels(Savable):
    """One column for each of ``levels``, one for all ``others``, one for a missing value, where there were such.

    A level never seen gives the column of the others, or none. Two levels and nothing else need one column. ``counts``
    are the training rows of each of ``levels``; those of ``hidden`` have no column of their own and count as others.
    """

    features: list[str]
    levels: list[str]
    others: list[str]
    with_missing: bool
    counts: list[int] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def hide(self, name: str, rows: int) -> Levels:
        """The same without columns for levels of fewer rows, ``name`` being the column's."""
        hidden = [level for level, count in zip(self.levels, self.counts, strict=True) if count < rows]
        features = [f"{name} is {level}" for level in self.levels if level not in hidden]
        features += [f"{name} is another"] + [f"{name} is missing"] * self.with_missing
        return replace(self, features=features, hidden=hidden)

    @property
    def knows_blanks(self) -> bool:
        """Whether a missing value has a column, or is all that the one level is told from."""
        return self.with_missing or len(self.levels) + len(self.others) == 1

    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """Indicators."""
        text = words(series)
        missing = text.isna().to_numpy()
        place = text.map({level: i for i, level in enumerate(self.levels)}).to_numpy(dtype=np.float64, na_value=np.nan)
        known = ~np.isnan(place)
        rare = text.isin(self.others).to_numpy() & ~known
        shown = np.array([i for i, level in enumerate(self.levels) if level not in self.hidden], dtype=np.int64)
        x = (place[:, None] == shown).astype(np.float64)
        if self.others or self.hidden:
            x = np.column_stack((x, ~np.isin(place, shown) & ~missing))
        if self.with_missing:
            x = np.column_stack((x, missing))
        elif len(self.levels) == 2 and not self.others and not self.hidden:
            x = np.where(known, x[:, 0], 0.5)[:, None]
        none = np.zeros(len(text), dtype=bool)
        return Encoded(x, none, ~known & ~rare & ~missing, missing)


@dataclass(frozen=True)
class Dates(Savable):
    """Of the parts of a date those that vary: days since ``origin``, year, season, weekday, time of day.

    Circles (season, weekday, time of day) are a sine and a cosine. A missing date is put at ``fill`` days.
    """

    features: list[str]
    parts: list[str]
    pattern: str
    origin: str
    fill: float
    flagged: bool

    @property
    def knows_blanks(self) -> bool:
        """Whether a flag says that a value is missing."""
        return self.flagged

    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """The parts, side by side."""
        found = dates(series, self.pattern)
        missing = found.isna().to_numpy()
        origin = pd.Timestamp(self.origin)
        found = found.fillna(self.moment(self.fill))
        every = date_parts(found, origin)
        x = np.column_stack([every[part] for part in self.parts])
        if self.flagged:
            x = np.column_stack((x, missing))
        none = np.zeros(len(found), dtype=bool)
        return Encoded(x, missing & words(series).notna().to_numpy(), none, missing)

    def moment(self, days: float) -> pd.Timestamp:
        """The moment that many days after the origin; a Timedelta of parts of days ends in the year 2262."""
        return pd.Timestamp(np.datetime64(self.origin, "us") + np.timedelta64(round(days * 86_400_000_000), "us"))


@dataclass(frozen=True)
class Texts(Savable):
    r"""Free text by its runs of three and four letters: directions of largest variance of their tf-idf weights.

    A text is the unit vector of :math:`(1 + \log t_g) \log\frac{1 + n}{1 + n_g}`, t counting the run g in the text
    and n the texts that hold it, times the right singular vectors of all texts.

    Args:
        features: Names of the columns: the first directions, then a flag of a missing text where ``flagged``.
        grams: The runs g.
        rarity: The logarithms ``(v,)``, plus 1.
        directions: Right singular vectors, ``(v, k)``.
        flagged: Whether a column says that the text is missing.
    """

    features: list[str]
    grams: list[str]
    rarity: Tensor
    directions: Tensor
    flagged: bool

    @classmethod
    def of(cls, name: str, text: pd.Series[Any], flagged: bool) -> Texts | None:
        """Learn from texts, None where missing; None where no run of letters is in two of them."""
        from sklearn.decomposition import TruncatedSVD

        present = text.dropna()
        present = present.iloc[np.linspace(0, len(present) - 1, min(len(present), _TEXTS)).round().astype(int)]
        counter = _count_grams(min_df=2, max_features=_GRAMS)
        try:
            counts = counter.fit_transform(present.str.slice(0, _LETTERS))
        except ValueError:  # no run of letters is left
            return None
        k = min(_DIRECTIONS, *(size - 1 for size in counts.shape))
        if k < 1:
            return None
        svd = TruncatedSVD(k, random_state=0).fit(counts)
        features = [f"{name}: direction {i + 1}" for i in range(min(k, _SHOWN_DIRECTIONS))]
        features += [f"{name} is missing"] * flagged
        grams = counter.get_feature_names_out().tolist()
        directions = torch.from_numpy(np.ascontiguousarray(svd.components_.T))
        return cls(features, grams, torch.from_numpy(counter.idf_.copy()), directions, flagged)

    @property
    def knows_blanks(self) -> bool:
        """True: a missing text is one without letters."""
        return True

    def locate(self, series: pd.Series[Any]) -> Array:  # (n,) -> (n, k)
        """All directions of each text; 0 for a missing one."""
        text = words(series).fillna("").str.slice(0, _LETTERS)
        counter = _count_grams(vocabulary=self.grams)
        counter.idf_ = self.rarity.numpy()
        rows = [counter.transform(text.iloc[part]) @ self.directions.numpy() for part in slices(len(text), _BLOCK)]
        return np.concatenate([np.zeros((0, self.directions.shape[1])), *rows])

    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """The first directions, and the flag."""
        missing = words(series).isna().to_numpy()
        x = self.locate(series)[:, : len(self.features) - self.flagged]
        if self.flagged:
            x = np.column_stack((x, missing))
        none = np.zeros(len(x), dtype=bool)
        return Encoded(x, none, none, missing)


def _count_grams(**arguments: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), sublinear_tf=True, **arguments)


def date_parts(found: pd.Series[Any], origin: pd.Timestamp) -> dict[str, Array]:
    """Every part of a date by name, ``(n,)`` each."""
    day = found.dt.day_of_year.to_numpy(dtype=np.float64)
    clock = (found - found.dt.normalize()).dt.total_seconds().to_numpy(dtype=np.float64) / 86_400
    weekday = found.dt.day_of_week.to_numpy(dtype=np.float64)
    parts = {
        "days": (found - origin).dt.total_seconds().to_numpy(dtype=np.float64) / 86_400,
        "year": found.dt.year.to_numpy(dtype=np.float64),
    }
    for name, share in (("season", day / _YEAR), ("weekday", weekday / 7), ("time", clock)):
        parts |= {f"{name} sin": np.sin(2 * np.pi * share), f"{name} cos": np.cos(2 * np.pi * share)}
    return parts


def _filled(series: pd.Series[Any], values: Array, fill: float, flagged: bool) -> Encoded:
    missing = ~np.isfinite(values)
    x = np.where(missing, fill, values)[:, None]
    if flagged:
        x = np.column_stack((x, missing))
    unreadable = np.zeros(len(x), dtype=bool)
    if missing.any():
        unreadable[missing] = words(series[missing]).notna().to_numpy()
    return Encoded(x, unreadable, np.zeros(len(x), dtype=bool), missing)
