"""One encoder for each kind of column: a column in, numbers ``(n, p)`` out, and the rows that surprised it.

Why not a library's: with the same learner behind them on the same folds, skrub's StringEncoder was surely better (two
standard errors) 2 times of 8, most on tweets, and surely worse 2 times; its DatetimeEncoder 3 and 1 times of 12, by
less than .005 in R2 where better (bench results, ``encoders.jsonl``, 2,000 rows of each table). Ours are
about as good, say which rows are missing, unreadable or new, and are saved without pickle; skrub would bring requests,
pydot and cloudpickle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from typing_extensions import override

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


class Encoder(Savable, ABC):
    """A fitted encoder: a column in, numbers out.

    Attributes:
        features: Names of the p columns.
    """

    features: list[str]

    @property
    def knows_blanks(self) -> bool:
        """Whether training rows taught what a blank cell means: a flag says that a value is missing."""
        return bool(getattr(self, "flagged", True))

    @abstractmethod
    def __call__(self, series: pd.Series[Any]) -> Encoded:
        """The column as numbers."""


@dataclass(frozen=True)
class Dropped(Encoder):
    """No feature at all."""

    features: list[str] = field(default_factory=list)

    @override
    def __call__(self, series: pd.Series[Any]) -> Encoded:
        no_row = np.zeros(len(series), dtype=bool)
        return Encoded(np.zeros((len(series), 0)), no_row, no_row, no_row)


@dataclass(frozen=True)
class Filled(Encoder):
    """One number for each value, ``fill`` where it is missing or infinite, and a flag of that where ``flagged``."""

    features: list[str]
    fill: float
    flagged: bool

    @abstractmethod
    def read(self, series: pd.Series[Any]) -> Array:  # (n,)
        """The numbers; not finite where there is none."""

    @override
    def __call__(self, series: pd.Series[Any]) -> Encoded:
        values = self.read(series)
        missing = ~np.isfinite(values)
        x = np.where(missing, self.fill, values)[:, None]
        if self.flagged:
            x = np.column_stack((x, missing))
        # What is there, but no value of this kind, is unreadable.
        unreadable = np.zeros(len(x), dtype=bool)
        if missing.any():
            unreadable[missing] = words(series[missing]).notna().to_numpy()
        return Encoded(x, unreadable, np.zeros(len(x), dtype=bool), missing)


@dataclass(frozen=True)
class Numbers(Filled):
    """The number itself; ``decimal`` is the decimal mark of numbers that come as text."""

    decimal: str = "."

    @override
    def read(self, series: pd.Series[Any]) -> Array:
        return numbers(series, self.decimal)


@dataclass(frozen=True)
class Truths(Filled):
    """1 for true, 0 for false; ``words`` are what the column says for false and for true."""

    words: list[str] = field(default_factory=lambda: ["false", "true"])

    @override
    def read(self, series: pd.Series[Any]) -> Array:
        return truths(series)


@dataclass(frozen=True)
class Levels(Encoder):
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
    @override
    def knows_blanks(self) -> bool:
        """Whether a missing value has a column, or is all that the one level is told from."""
        return self.with_missing or len(self.levels) + len(self.others) == 1

    @override
    def __call__(self, series: pd.Series[Any]) -> Encoded:
        # The place of each value among the levels.
        text = words(series)
        missing = text.isna().to_numpy()
        place = text.map({level: i for i, level in enumerate(self.levels)}).to_numpy(dtype=np.float64, na_value=np.nan)
        has_level = ~np.isnan(place)
        rare = text.isin(self.others).to_numpy() & ~has_level

        # A column for each level that is shown, one for the others, one for missing values; two levels need one.
        shown = np.array([i for i, level in enumerate(self.levels) if level not in self.hidden], dtype=np.int64)
        x = (place[:, None] == shown).astype(np.float64)
        if self.others or self.hidden:
            x = np.column_stack((x, ~np.isin(place, shown) & ~missing))
        if self.with_missing:
            x = np.column_stack((x, missing))
        elif len(self.levels) == 2 and not self.others and not self.hidden:
            x = np.where(has_level, x[:, 0], 0.5)[:, None]
        no_row = np.zeros(len(text), dtype=bool)
        return Encoded(x, no_row, ~has_level & ~rare & ~missing, missing)


@dataclass(frozen=True)
class Dates(Encoder):
    """Of the parts of a date those that vary: days since ``origin``, year, season, weekday, time of day.

    Circles (season, weekday, time of day) are a sine and a cosine. A missing date is put at ``fill`` days.
    """

    features: list[str]
    parts: list[str]
    pattern: str
    origin: str
    fill: float
    flagged: bool

    @override
    def __call__(self, series: pd.Series[Any]) -> Encoded:
        moments = dates(series, self.pattern)
        missing = moments.isna().to_numpy()
        values_of_part = date_parts(moments.fillna(self.moment(self.fill)), pd.Timestamp(self.origin))
        x = np.column_stack([values_of_part[part] for part in self.parts])
        if self.flagged:
            x = np.column_stack((x, missing))
        no_row = np.zeros(len(moments), dtype=bool)
        return Encoded(x, missing & words(series).notna().to_numpy(), no_row, missing)

    def moment(self, days: float) -> pd.Timestamp:
        """The moment that many days after the origin; a Timedelta of parts of days ends in the year 2262."""
        return pd.Timestamp(np.datetime64(self.origin, "us") + np.timedelta64(round(days * 86_400_000_000), "us"))


@dataclass(frozen=True)
class Texts(Encoder):
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

        # Count runs of letters in some of the texts.
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
        # The directions of largest variance; the first few are features.
        svd = TruncatedSVD(k, random_state=0).fit(counts)
        features = [f"{name}: direction {i + 1}" for i in range(min(k, _SHOWN_DIRECTIONS))]
        features += [f"{name} is missing"] * flagged
        grams = counter.get_feature_names_out().tolist()
        directions = torch.from_numpy(np.ascontiguousarray(svd.components_.T))
        return cls(features, grams, torch.from_numpy(counter.idf_.copy()), directions, flagged)

    @property
    @override
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

    @override
    def __call__(self, series: pd.Series[Any]) -> Encoded:
        missing = words(series).isna().to_numpy()
        x = self.locate(series)[:, : len(self.features) - self.flagged]
        if self.flagged:
            x = np.column_stack((x, missing))
        no_row = np.zeros(len(x), dtype=bool)
        return Encoded(x, no_row, no_row, missing)


def _count_grams(**arguments: Any) -> Any:
    """scikit-learn's counter of runs of three and four letters within words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), sublinear_tf=True, **arguments)


def date_parts(moments: pd.Series[Any], origin: pd.Timestamp) -> dict[str, Array]:
    """Every part of a date by name, ``(n,)`` each."""
    day = moments.dt.day_of_year.to_numpy(dtype=np.float64)
    clock = (moments - moments.dt.normalize()).dt.total_seconds().to_numpy(dtype=np.float64) / 86_400
    weekday = moments.dt.day_of_week.to_numpy(dtype=np.float64)
    parts = {
        "days": (moments - origin).dt.total_seconds().to_numpy(dtype=np.float64) / 86_400,
        "year": moments.dt.year.to_numpy(dtype=np.float64),
    }
    # What comes again, as a place on a circle.
    for name, turns in (("season", day / _YEAR), ("weekday", weekday / 7), ("time", clock)):
        parts |= {f"{name} sin": np.sin(2 * np.pi * turns), f"{name} cos": np.cos(2 * np.pi * turns)}
    return parts
