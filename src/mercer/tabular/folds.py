"""Folds that stay the same for ever, drawn from the raw 64-bit stream of PCG64 and nothing built on it by others.

NumPy promises that the raw stream of a bit generator never changes; it promises no such thing of ``Generator.normal``
or ``permutation``, nor does torch of ``randn``. Splits and synthetic sets must not move under a published number when
a dependency is upgraded, so the few draws they need are made here.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .. import checks


class StableRandom:
    """A stream of draws that ``seed`` alone decides; two instances of one seed give equal numbers.

    >>> StableRandom(0).permutation(5).tolist()
    [3, 2, 1, 0, 4]
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(checks.integer("data", "seed", seed, 0))

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in the open interval (0, 1), float64: (52 bits + 1/2) / 2^52, so that neither end is met."""
        raw = self._raw(math.prod(shape)) >> np.uint64(12)
        return torch.from_numpy((raw.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, float64, by inverting the distribution function."""
        values: Tensor = torch.special.ndtri(self.uniform(*shape))
        return values

    def below(self, high: int, *shape: int) -> Tensor:
        """Whole numbers uniform in ``0..high - 1``, int64."""
        return (self.uniform(*shape) * high).floor().long().clamp_(max=high - 1)

    def permutation(self, n: int) -> Tensor:
        """An order of ``0..n - 1``, int64: the ranks of n raw draws."""
        return torch.from_numpy(np.argsort(self._raw(n), kind="stable").astype(np.int64))

    def _raw(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return self._bits.random_raw(n)


def stratified_folds(y: Tensor, *, folds: int = 10, seed: int = 0) -> Tensor:
    """The fold ``1..folds`` of each row: sizes differ by at most one, and so do the counts of each class.

    Args:
        y: labels ``(n,)``, int64.
        folds: number of folds, at most n.
        seed: decides the folds, whatever the versions of NumPy and torch.
    """
    labels = check_labels("stratified_folds", y)
    checks.integer("stratified_folds", "folds", folds, 2, len(labels), of="the rows of y")
    order = torch.cat(rows_of_each_class(labels, StableRandom(seed)))
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels)) % folds + 1  # dealt like cards, one class after the other
    return fold


def rows_of_each_class(y: Tensor, draws: StableRandom) -> list[Tensor]:
    """Row numbers of each class, in an order drawn from ``draws``."""
    order = draws.permutation(len(y))
    return [order[y[order] == label] for label in y.unique(sorted=True)]


def check_labels(where: str, y: Tensor) -> Tensor:
    """Whole-number labels ``(n,)`` of at least one row, on the CPU."""
    if not isinstance(y, Tensor) or y.ndim != 1 or y.is_floating_point() or y.is_complex():
        got = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(checks.sentence(where, "y must be whole-number labels (n,)", got))
    if len(y) == 0:
        raise ValueError(checks.sentence(where, "y must have at least one row", tuple(y.shape)))
    return y.detach().cpu().long()
