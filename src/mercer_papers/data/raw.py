"""A set as its files have it: checked labels, and a function that fetches and decodes the rows asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.storage.archives import corrupt, read_npz

from .pictures import Array, Rows, from_array, from_strips


@dataclass(frozen=True)
class Part:
    """Labels ``(n,)`` of some rows, and ``take(rows)`` that fetches and decodes just those asked for."""

    y: Tensor
    take: Callable[[Rows], Any]


@dataclass(frozen=True)
class Raw:
    """A set as its files have it. ``test`` is None where no official split exists.

    The last ``validation`` rows of ``train`` are validation rows that the set brings; they are never trained on.
    """

    train: Part
    test: Part | None
    classes: tuple[str, ...]
    features: tuple[str, ...] = ()
    fold_of: Tensor | None = None
    validation: int = 0


def picture_part(
    x: Array, y: Array, path: Path, shape: tuple[int, ...], c: int, *, low: float = 0.0, high: float = 255.0
) -> Part:
    """Pictures ``(n, *shape)`` with values in ``low..high``, and labels below c."""
    if x.shape[1:] != shape or x.dtype.kind not in "uif":
        raise corrupt(path, f"pictures must be numbers of shape (n, {', '.join(map(str, shape))})", x.shape)
    if x.size and x.dtype != np.uint8 and not (x.min() >= low and x.max() <= high):  # NaN fails both
        raise corrupt(path, f"grey values must be in {low:g}..{high:g}", f"{x.min()}..{x.max()}")
    return Part(label_numbers(path, y, len(x), c), from_array(x, low=low, high=high))


def strip_part(path: Path, suffix: str, shape: tuple[int, int, int], c: int) -> Part:
    """Pictures in WebP strips: the arrays blob, offsets and labels, each with ``suffix``."""
    z = read_npz(path, (f"blob{suffix}", f"offsets{suffix}", f"labels{suffix}"))
    blob, offsets, y = z.values()
    if blob.dtype != np.uint8 or blob.ndim != 1 or offsets.dtype.kind not in "ui":
        raise corrupt(path, "the blob must be uint8 and its offsets whole numbers", f"{blob.dtype}, {offsets.dtype}")
    return Part(label_numbers(path, y, y.size, c), from_strips(path, blob, offsets, y.size, shape))


def table_part(path: Path, x: Array, y: Array, d: int, c: int) -> Part:
    """A table ``(n, d)`` of finite numbers, and labels below c."""
    if x.ndim != 2 or x.shape[1] != d or x.dtype.kind not in "uif" or not np.isfinite(x).all():
        raise corrupt(path, f"the table must be finite numbers of shape (n, {d})", f"{x.dtype} {x.shape}")
    values = x.astype(np.float32)
    return Part(label_numbers(path, y, len(x), c), lambda rows: torch.from_numpy(values[rows]))


def text_part(path: Path, columns: Sequence[list[str]], y: Array, c: int) -> Part:
    """One column of texts, or two for pairs, and labels below c."""

    def take(rows: Rows) -> Any:
        if len(columns) == 1:
            return [columns[0][row] for row in rows.tolist()]
        return [(columns[0][row], columns[1][row]) for row in rows.tolist()]

    return Part(label_numbers(path, y, len(columns[0]), c), take)


def label_numbers(path: Path, y: Array, n: int, c: int) -> Tensor:
    """Labels of n rows, checked to be whole numbers below c."""
    if y.shape != (n,) or n == 0 or y.dtype.kind not in "ui":
        raise corrupt(path, f"there must be {max(n, 1)} whole-number labels", f"{y.dtype} {y.shape}")
    if int(y.min()) < 0 or int(y.max()) >= c:
        raise corrupt(path, f"labels must be in 0..{c - 1}", f"{int(y.min())}..{int(y.max())}")
    return torch.from_numpy(y.astype(np.int64))


def fold_numbers(path: Path, fold: Array, y: Tensor) -> Tensor:
    """The fold 1.. of each row, as the file has it."""
    if fold.shape != tuple(y.shape) or fold.dtype.kind not in "ui" or fold.min() < 1:
        raise corrupt(path, f"there must be {len(y)} fold numbers from 1", f"{fold.dtype} {fold.shape}")
    return torch.from_numpy(fold.astype(np.int64))
