"""Words of many levels as numbers: the mean of the target over the other rows with the same word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...storage import Savable
from .column import Column
from .encoders import Levels
from .values import Array, words

MANY_LEVELS = 30  # levels up to which indicators say it all
_PRIOR = 3.0  # rows of the overall mean that every level is mixed with
_MISSING = "\0missing"


class TargetMeans(Savable):
    r"""A column for each column of many words: :math:`(\sum_{i: w_i = w} y_i + 3 \bar y) / (n_w + 3)`.

    At fit, a row's own fold is left out of the sums, so that no row sees its own target. A word never seen gets
    :math:`\bar y`. Of several classes every one but the last has a column, at most five.

    Attributes:
        tables_: For each column its words, sorted, and their means ``(levels, c)``.
        mean_: :math:`\bar y`, ``(c,)``.
    """

    tables_: dict[str, tuple[list[str], Tensor]]
    mean_: Tensor

    @classmethod
    def none(cls) -> Self:
        """No column at all."""
        found = cls()
        found.tables_, found.mean_ = {}, torch.zeros(1, dtype=torch.float64)
        return found

    def fit_transform(
        self, frame: pd.DataFrame, columns: list[Column], y: Tensor, fold: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """Learn, and encode the training rows, each by the other folds: ``(n, c)``, ``(n,)`` -> ``(n, p)``.

        ``weight`` are the rows' weights ``(n,)`` in all sums; None for 1.
        """
        y = y[:, : _outputs(y.shape[1])]
        weight = y.new_ones(len(y)) if weight is None else weight
        self.mean_, self.tables_ = (weight[:, None] * y).sum(0) / weight.sum(), {}
        found = [y.new_zeros(len(y), 0)]
        for column in columns:
            if not _has_many(column):
                continue
            text = _text(frame[column.name])
            encoded = torch.zeros_like(y)
            for number in fold.unique():
                own = fold == number
                others = self._means(text[~own.numpy()], y[~own], weight[~own])
                encoded[own] = _looked_up(others, text[own.numpy()], self.mean_)
            self.tables_[column.name] = self._means(text, y, weight)
            found.append(encoded)
        return torch.cat(found, 1)

    def transform(self, frame: pd.DataFrame) -> Tensor:
        """Encode new rows: ``(n, p)``."""
        found = [torch.zeros(len(frame), 0, dtype=torch.float64)]
        found += [self.transform_column(name, frame[name]) for name in self.tables_]
        return torch.cat(found, 1)

    def transform_column(self, name: str, series: pd.Series[Any]) -> Tensor:
        """Encode values of one column: ``(n, p)``, p = 0 where it has few words."""
        if name not in self.tables_:
            return torch.zeros(len(series), 0, dtype=torch.float64)
        return _looked_up(self.tables_[name], _text(series), self.mean_)

    def names(self, classes: Array | None) -> dict[str, list[str]]:
        """Names of the features each column adds."""
        which = ["mean"] if classes is None else [f"share of {name}" for name in classes[: len(self.mean_)]]
        return {name: [f"{name}: {what}" for what in which] for name in self.tables_}

    def get_state(self) -> dict[str, Any]:
        """What was learned."""
        return {"tables": {k: {"words": w, "means": m} for k, (w, m) in self.tables_.items()}, "mean": self.mean_}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.tables_ = {name: (list(table["words"]), table["means"]) for name, table in state["tables"].items()}
        self.mean_ = state["mean"]

    def _means(self, text: Array, y: Tensor, weight: Tensor) -> tuple[list[str], Tensor]:
        levels, place = np.unique(text, return_inverse=True)
        index = torch.from_numpy(place)
        count = torch.bincount(index, weight, minlength=len(levels)).double()
        sums = y.new_zeros(len(levels), y.shape[1]).index_add(0, index, weight[:, None] * y)
        return levels.tolist(), (sums + _PRIOR * self.mean_) / (count + _PRIOR)[:, None]


def _has_many(column: Column) -> bool:
    encoder = column.encoder
    return isinstance(encoder, Levels) and len(encoder.levels) + len(encoder.others) > MANY_LEVELS


def _outputs(c: int) -> int:
    """Of c target columns those that are encoded: one number; all classes but one, at most five."""
    return 1 if c <= 2 else min(c - 1, 5)


def _text(series: pd.Series[Any]) -> Array:
    return words(series).fillna(_MISSING).to_numpy(dtype=str)


def _looked_up(table: tuple[list[str], Tensor], text: Array, mean: Tensor) -> Tensor:  # (n, c)
    levels = np.array(table[0], dtype=str)
    if not len(levels):
        return mean.expand(len(text), -1).clone()
    place = np.searchsorted(levels, text).clip(max=len(levels) - 1)
    known = torch.from_numpy(levels[place] == text)
    return torch.where(known[:, None], table[1][torch.from_numpy(place)], mean)
