"""Frozen splits: which rows train, which validate, which test, decided by the labels and a seed for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mercer import checks
from mercer.tabular.folds import StableRandom, check_labels, rows_of_each_class, stratified_folds


@dataclass(frozen=True)
class Split:
    """Row numbers of the three parts, int64, disjoint, each in shuffled order (``val`` may be empty)."""

    train: Tensor
    val: Tensor
    test: Tensor


@dataclass(frozen=True)
class Dataset:
    """Samples in parts.

    Pictures are float32 ``(n, channels, height, width)`` in [0, 1], tables float32 ``(n, d)``, texts lists of str (or
    of pairs of str); labels are int64 ``0..c - 1``. ``x_val`` and ``y_val`` are None unless a validation part was
    asked for.

    Args:
        name: what :func:`load` was called with.
        classes: the c class names, in the order of the labels.
        features: column names of a table; empty for pictures and texts.
        note: what a reader of a number on this set must know (how the split came to be, what was changed).
    """

    name: str
    x_train: Any
    y_train: Tensor
    x_test: Any
    y_test: Tensor
    x_val: Any = None
    y_val: Tensor | None = None
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = field(default=(), repr=False)
    note: str = field(default="", repr=False)

    def __repr__(self) -> str:
        val = 0 if self.y_val is None else len(self.y_val)
        sizes = f"{len(self.y_train)} train, {val} validation, {len(self.y_test)} test"
        return f"Dataset({self.name!r}: {sizes}, {len(self.classes)} classes)"


def stratified_split(y: Tensor, *, test: float = 0.2, validation: float = 0.0, seed: int = 0) -> Split:
    """Every class gives the shares ``test`` and ``validation`` of its rows, rounded, and the rest trains.

    Every class keeps at least one row in training and, of two rows or more where ``test`` > 0, one in the test part.

    Args:
        y: labels ``(n,)``, int64.
        test: share of the test part, in [0, 1).
        validation: share of the validation part, in [0, 1), of all rows.
        seed: decides the split, whatever the versions of NumPy and torch.
    """
    labels = check_labels("stratified_split", y)
    _share("stratified_split", "test", test)
    _share("stratified_split", "validation", validation)
    if test + validation >= 1:
        raise ValueError(checks.sentence("stratified_split", "test + validation must be below 1", test + validation))
    draws = StableRandom(seed)
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for rows in rows_of_each_class(labels, draws):
        # its share of each part, rounded; one row always trains
        n_test = min(int(len(rows) * test + 0.5), len(rows) - 1)
        if test > 0 and len(rows) >= 2:
            n_test = max(n_test, 1)
        n_val = min(int(len(rows) * validation + 0.5), len(rows) - n_test - 1)
        parts[0].append(rows[n_test + n_val :])
        parts[1].append(rows[n_test : n_test + n_val])
        parts[2].append(rows[:n_test])
    train, val, held_out = (torch.cat(part)[draws.permutation(sum(map(len, part)))] for part in parts)
    return Split(train, val, held_out)


def split_rows(y: Tensor, fold_of: Tensor | None, fold: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers to train and to test on: fold number ``fold`` is the test part, or a fifth of each class where None.

    ``fold_of`` are the folds that came with the set; where it has none, ten are dealt by ``seed``.
    """
    if fold is None:
        parts = stratified_split(y, seed=seed)
        return parts.train, parts.test
    folds = stratified_folds(y, seed=seed) if fold_of is None else fold_of.long()
    checks.integer("data", "fold", fold, 1, int(folds.max()), of="the folds of this set")
    order = StableRandom(seed).permutation(len(y))
    return order[folds[order] != fold], order[folds[order] == fold]


def _share(where: str, name: str, value: float) -> None:
    if checks.non_negative(where, name, value) >= 1:
        raise ValueError(checks.sentence(where, f"{name} must be a share below 1", value))
