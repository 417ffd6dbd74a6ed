"""Words of many levels and texts as numbers: the mean of the target over other rows with the same, or a like, word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...storage.savable import Savable
from .column import MEANS, MOST_LEVELS, Column
from .encoders import Levels, Texts
from .values import Array, words

_PRIOR = 3.0  # rows of the overall mean that every level is mixed with
_SHOWN = 200  # rows from which on a word has both a mean and a column of its own
_PENALTIES = np.logspace(-2, 3, 11)  # of the ridge on the directions of a text
_NO_MEANS = "; the target's mean over a word does not help"
_MOST_CLASSES = 5  # that get a column
MISSING = "\0missing"


class TargetMeans(Savable):
    r"""A column for each column of many words: :math:`(\sum_{i: w_i = w} y_i + 3 \bar y) / (n_w + 3)`.

    For a text it is the ridge of y on the text's directions, its penalty chosen by leave-one-out. At fit, a row's own
    fold is left out of both, so that no row sees its own target. A word never seen gets :math:`\bar y`. Of several
    classes every one but the last has a column, at most five.

    Within a word, the mean over other folds falls as the targets of the row's own fold rise. A machine that knows the
    word can read the row's target from that. So a word with a mean has a column of its own only from 200 rows on, where
    the mean hardly moves.

    scikit-learn's TargetEncoder takes neither weights nor the folds that the model is scored on. In its place, with the
    same learner behind, it was surely better on 2 and surely worse on 5 of 14 runs; a linear model fell below R2 = 0
    twice (bench results, ``encoders.jsonl``).

    Attributes:
        tables_: For each column of words its words, sorted, and their means ``(levels, c)``.
        ridges_: For each text the coefficients of its directions and, last, the constant: ``(k + 1, c)``.
        mean_: :math:`\bar y`, ``(c,)``.
    """

    tables_: dict[str, tuple[list[str], Tensor]]
    ridges_: dict[str, tuple[Texts, Tensor]]
    mean_: Tensor

    @classmethod
    def none(cls) -> Self:
        """No column at all."""
        empty = cls()
        empty.tables_, empty.ridges_, empty.mean_ = {}, {}, torch.zeros(1, dtype=torch.float64)
        return empty

    def fit_transform(
        self, frame: pd.DataFrame, columns: list[Column], y: Tensor, fold: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """Learn, and encode the training rows, each by the other folds: ``(n, c)``, ``(n,)`` -> ``(n, p)``.

        Where left-out rows gain nothing, words get no means, and a text becomes a dropped column in ``columns``, unless
        it is all there is.
        ``weight`` are the rows' weights ``(n,)`` in all sums; None for 1.
        """
        y = keep_encoded(y)
        if weight is None:
            weight = y.new_ones(len(y))
        self.mean_, self.tables_, self.ridges_ = (weight[:, None] * y).sum(0) / weight.sum(), {}, {}
        features = [y.new_zeros(len(y), 0)]

        def encode_by_others(fit: Callable[[Tensor], Tensor]) -> Tensor | None:
            """Each row by a fit of the other folds; None where that explains no more than luck would, 1 / sqrt(n)."""
            encoded = self.mean_.expand_as(y).clone()
            for number in fold.unique():
                in_fold = fold == number
                if int((~in_fold).sum()) > 1:
                    encoded[in_fold] = fit(in_fold)
            unexplained = (encoded - y).square().sum(0) / (self.mean_ - y).square().sum(0)
            if not bool((unexplained < 1 - len(y) ** -0.5).any()):
                return None
            return encoded

        # Words of many levels.
        for place, column in enumerate(columns):
            encoder = column.encoder
            if not isinstance(encoder, Levels) or len(encoder.levels) + len(encoder.others) <= MOST_LEVELS:
                continue
            text = to_text(frame[column.name])

            def look_up(in_fold: Tensor, text: Array = text) -> Tensor:
                table = self._average(text[~in_fold.numpy()], y[~in_fold], weight[~in_fold])
                return _look_up(table, text[in_fold.numpy()], self.mean_)

            encoded = encode_by_others(look_up)
            if encoded is None:
                columns[place] = replace(column, how=column.how.replace(MEANS, _NO_MEANS))
            else:
                self.tables_[column.name] = self._average(text, y, weight)
                features.append(encoded)
                columns[place] = _hide_words(column, encoder)

        # Texts.
        for place, column in enumerate(columns):
            if not isinstance(column.encoder, Texts):
                continue
            z = torch.from_numpy(column.encoder.locate(frame[column.name]))

            def regress(in_fold: Tensor, z: Tensor = z) -> Tensor:
                return _apply(_solve(z[~in_fold], y[~in_fold], weight[~in_fold]), z[in_fold])

            encoded = encode_by_others(regress)
            if encoded is not None:
                self.ridges_[column.name] = (column.encoder, _solve(z, y, weight))
                features.append(encoded)
            elif sum(not any_column.dropped for any_column in columns) > 1:
                how = "dropped: free text that says nothing about the target of left-out rows"
                columns[place] = Column(column.name, "text", how)
        return torch.cat(features, 1)

    def transform(self, frame: pd.DataFrame) -> Tensor:
        """Encode new rows: ``(n, p)``."""
        features = [torch.zeros(len(frame), 0, dtype=torch.float64)]
        features += [self.transform_column(name, frame[name]) for name in (*self.tables_, *self.ridges_)]
        return torch.cat(features, 1)

    def transform_column(self, name: str, series: pd.Series[Any]) -> Tensor:
        """Encode values of one column: ``(n, p)``, p = 0 where it is no text and has few words."""
        if name in self.tables_:
            return _look_up(self.tables_[name], to_text(series), self.mean_)
        if name in self.ridges_:
            encoder, coefficients = self.ridges_[name]
            return _apply(coefficients, torch.from_numpy(encoder.locate(series)))
        return torch.zeros(len(series), 0, dtype=torch.float64)

    def names(self, classes: Array | None) -> dict[str, list[str]]:
        """Names of the features each column adds."""
        meanings = ["mean"]
        if classes is not None:
            meanings = [f"share of {name}" for name in classes[: len(self.mean_)]]
        return {name: [f"{name}: {meaning}" for meaning in meanings] for name in (*self.tables_, *self.ridges_)}

    def get_state(self) -> dict[str, Any]:
        """What was learned."""
        tables = {k: {"words": w, "means": m} for k, (w, m) in self.tables_.items()}
        ridges = {k: {"encoder": e, "coefficients": c} for k, (e, c) in self.ridges_.items()}
        return {"tables": tables, "ridges": ridges, "mean": self.mean_}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.tables_ = {name: (list(table["words"]), table["means"]) for name, table in state["tables"].items()}
        ridges = state.get("ridges", {})
        self.ridges_ = {name: (ridge["encoder"], ridge["coefficients"]) for name, ridge in ridges.items()}
        self.mean_ = state["mean"]

    def _average(self, text: Array, y: Tensor, weight: Tensor) -> tuple[list[str], Tensor]:
        """Words, sorted, and the mean of y over the rows of each, mixed with three rows of the overall mean."""
        levels, place = np.unique(text, return_inverse=True)
        index = torch.from_numpy(place)
        count = torch.bincount(index, weight, minlength=len(levels)).double()
        sums = y.new_zeros(len(levels), y.shape[1]).index_add(0, index, weight[:, None] * y)
        return levels.tolist(), (sums + _PRIOR * self.mean_) / (count + _PRIOR)[:, None]


def _solve(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:  # (n, k), (n, c), (n,) -> (k + 1, c)
    """Ridge of y on z with a constant, the penalty by leave-one-out."""
    from sklearn.linear_model import RidgeCV

    ridge = RidgeCV(_PENALTIES).fit(z.numpy(), y.numpy(), weight.numpy())
    coefficients = torch.from_numpy(np.array(ridge.coef_, dtype=np.float64).reshape(y.shape[1], -1).T.copy())
    constant = torch.from_numpy(np.array(ridge.intercept_, dtype=np.float64).reshape(1, -1))
    return torch.cat((coefficients, constant))


def _apply(coefficients: Tensor, z: Tensor) -> Tensor:  # (k + 1, c), (n, k) -> (n, c)
    return z @ coefficients[:-1] + coefficients[-1]


def _hide_words(column: Column, encoder: Levels) -> Column:
    """The column with indicators of frequent words only, described anew."""
    encoder = encoder.hide(column.name, _SHOWN)
    if not encoder.hidden:
        return column
    shown = len(encoder.levels) - len(encoder.hidden)
    how = f"{MEANS.removeprefix('; and ')} ({len(encoder.levels) + len(encoder.others)} words)"
    how += f"; one column for each of the {shown} most frequent" * bool(shown)
    after = column.how.partition(MEANS)[2]  # what is said of missing values
    return replace(column, encoder=encoder, how=how + after)


def keep_encoded(y: Tensor) -> Tensor:  # (n, c) -> (n, p)
    """The target columns that get means: that of a number or of two classes; of more all but one, at most five."""
    return y[:, : max(1, min(y.shape[1] - 1, _MOST_CLASSES))]


def to_text(series: pd.Series[Any]) -> Array:
    """Words as they are looked up, ``(n,)``."""
    return words(series).fillna(MISSING).to_numpy(dtype=str)


def _look_up(table: tuple[list[str], Tensor], text: Array, mean: Tensor) -> Tensor:  # (n, c)
    """The mean of each word; the overall mean for words that the table does not have."""
    levels = np.array(table[0], dtype=str)
    if not len(levels):
        return mean.expand(len(text), -1).clone()
    place = np.searchsorted(levels, text).clip(max=len(levels) - 1)
    in_table = torch.from_numpy(levels[place] == text)
    return torch.where(in_table[:, None], table[1][torch.from_numpy(place)], mean)
