"""Target means of pairs: a word of many levels together with the value of one other column, as a shop in a year."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from typing_extensions import override

from .columns import Array, Column, TargetMeans
from .columns.encoders import Levels, Numbers, Truths
from .columns.target_means import MISSING, keep_encoded, to_text

_PRIOR = 1.0  # rows of the word's mean that every pair is mixed with
_VALUES = 200  # different values of the other column, at most
_REPEATED = 1.5  # rows of a pair, on average, at least
_GAIN = 0.02  # share of the squared error that pairs must take off what words and values leave


class PairMeans(TargetMeans):
    r"""Target means of words, and of pairs of a word w and a value v: :math:`(\sum_{w, v} y_i + m_w) / (n_{w v} + 1)`.

    :math:`m_w` is the mean of the word. A word has pairs with the one column for which they explain most of left-out
    rows, where that is clearly more than the word and the value explain as a sum. At fit, a row's own fold is left out,
    as for words.

    Attributes:
        pairs_: For each word column with pairs: the other column, its values as text, sorted, the numbers
            :math:`i V + j` of the pairs, ascending, i the place of the word and j that of the value, and the pairs'
            means ``(p, c)``.
    """

    pairs_: dict[str, tuple[str, list[str], Tensor, Tensor]]

    @override
    def fit_transform(
        self, frame: pd.DataFrame, columns: list[Column], y: Tensor, fold: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        singles = super().fit_transform(frame, columns, y, fold, weight)
        y = keep_encoded(y)
        weight = y.new_ones(len(y)) if weight is None else weight
        self.pairs_ = {}
        parts = list(singles.split(y.shape[1], 1))  # of each word column, then of each text
        for part, (name, (levels, means)) in enumerate(self.tables_.items()):
            word, encoded_words = _find_places(levels, to_text(frame[name])), parts[part]
            best: tuple[float, str, list[str], Tensor] | None = None
            for column in columns:
                if column.name == name or not isinstance(column.encoder, Levels | Numbers | Truths):
                    continue
                text = _write(frame[column.name])
                values = sorted(set(text.tolist()))
                value = _find_places(values, text)
                pair = word * len(values) + value
                if not 2 <= len(values) <= _VALUES or len(pair) < _REPEATED * len(pair.unique()):
                    continue
                # each row by the values, and by the pairs, of other folds
                by_value, by_pair = self.mean_.expand_as(y).clone(), encoded_words.clone()
                for number in fold.unique():
                    inside, others = fold == number, fold != number
                    for key, encoded in ((value, by_value), (pair, by_pair)):
                        known = _add_up(key[others], y[others], weight[others])
                        encoded[inside] = _look_up(*known, key[inside], encoded[inside])
                # what is left by word and value together, and with their pair
                without = _explain(torch.cat((encoded_words, by_value), 1), y, weight)
                share = _explain(torch.cat((encoded_words, by_value, by_pair), 1), y, weight) / max(without, 1e-300)
                if best is None or share < best[0]:
                    best = (share, column.name, values, by_pair)
            if best is not None and best[0] < 1 - max(_GAIN, len(y) ** -0.5):
                _, other, values, encoded = best
                pair = word * len(values) + _find_places(values, _write(frame[other]))
                keys, sums, counts = _add_up(pair, y, weight)
                of_word = means[keys // len(values)]
                self.pairs_[name] = (other, values, keys, (sums + _PRIOR * of_word) / (counts + _PRIOR)[:, None])
                parts[part] = torch.cat((encoded_words, encoded), 1)
        return torch.cat([singles[:, :0], *parts], 1)

    @override
    def transform(self, frame: pd.DataFrame) -> Tensor:
        parts = [torch.zeros(len(frame), 0, dtype=torch.float64)]
        for name in (*self.tables_, *self.ridges_):
            base = super().transform_column(name, frame[name])
            parts.append(base)
            if name in self.pairs_:
                other, values, keys, means = self.pairs_[name]
                word = _find_places(self.tables_[name][0], to_text(frame[name]))
                value = _find_places(values, _write(frame[other]))
                pair = torch.where((word < 0) | (value < 0), -1, word * len(values) + value)
                place = torch.searchsorted(keys, pair).clamp(max=len(keys) - 1)
                parts.append(torch.where((keys[place] == pair)[:, None], means[place], base))
        return torch.cat(parts, 1)

    @override
    def transform_column(self, name: str, series: pd.Series[Any]) -> Tensor:
        """As of words alone: where the other column is not known, a pair has the mean of its word."""
        base = super().transform_column(name, series)
        return torch.cat((base, base), 1) if name in self.pairs_ else base

    @override
    def names(self, classes: Array | None) -> dict[str, list[str]]:
        which = super().names(classes)
        for name, (other, *_) in self.pairs_.items():
            which[name] = which[name] + [f"{name} and {other}{one.removeprefix(name)}" for one in which[name]]
        return which

    @override
    def get_state(self) -> dict[str, Any]:
        pairs = {
            name: {"other": other, "values": values, "keys": keys, "means": means}
            for name, (other, values, keys, means) in self.pairs_.items()
        }
        return {**super().get_state(), "pairs": pairs}

    @override
    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.pairs_ = {
            name: (one["other"], list(one["values"]), one["keys"], one["means"])
            for name, one in state.get("pairs", {}).items()
        }


def _explain(features: Tensor, y: Tensor, weight: Tensor) -> float:  # (n, p), (n, c), (n,)
    """Weighted squared error that least squares on the features leaves."""
    root = weight.sqrt()[:, None]
    design = root * torch.cat((features, torch.ones_like(root)), 1)
    coefficients = torch.linalg.lstsq(design, root * y, driver="gelsd").solution
    return float((root * y - design @ coefficients).square().sum())


def _write(series: pd.Series[Any]) -> Array:  # (n,)
    """Values as text, numbers of any type alike: 2017 and 2017.0 are one."""
    if series.dtype.kind in "iuf":
        return np.where(series.isna(), MISSING, series.astype(float).map(repr)).astype(str)
    return to_text(series)


def _find_places(values: list[str], text: Array) -> Tensor:  # (n,)
    """The place of each text among sorted values; -1 where it is none of them."""
    known = np.array(values, dtype=str)
    place = np.searchsorted(known, text).clip(max=len(known) - 1)
    return torch.from_numpy(np.where(known[place] == text, place, -1))


def _add_up(pair: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (p,), (p, c), (p,)
    """The pairs there are, ascending, with their weighted sums of targets and weights."""
    keys, place = pair.unique(return_inverse=True)
    sums = y.new_zeros(len(keys), y.shape[1]).index_add(0, place, weight[:, None] * y)
    return keys, sums, torch.bincount(place, weight, minlength=len(keys)).double()


def _look_up(keys: Tensor, sums: Tensor, counts: Tensor, pair: Tensor, base: Tensor) -> Tensor:  # (n, c)
    """Means of pairs, mixed with those of their words; of an unknown pair the word's."""
    place = torch.searchsorted(keys, pair).clamp(max=len(keys) - 1)
    known = (keys[place] == pair).double()[:, None]
    count = known * counts[place][:, None]
    return (known * sums[place] + _PRIOR * base) / (count + _PRIOR)
