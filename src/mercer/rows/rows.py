"""Rows of a tensor, of a file, or a rank's share of either: a method says what it sums, this says over what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import checks, distributed
from .stored import StoredRows

BLOCK_BYTES = 64 * 2**20
"""Bytes that one block of rows may take with its temporaries: full speed, and small beside any memory."""


class Rows:
    """Rows of one or several tensors of equal length, as all ranks of ``torch.distributed`` hold them together.

    Each rank gives its own rows, any number including none, and calls the same methods in the same order. Sums, draws
    and gathered rows are then the same on all ranks, and what one process would get from all rows in order of rank. On
    one process nothing is sent.

    Args:
        parts: This rank's rows: tensors ``(n, ...)``, or rows in a file. A function of rows gets one block of each.

    >>> x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([1.0, 2.0, 4.0])
    >>> rows = Rows(x, y)
    >>> rows.n, rows.mean(lambda x, y: x.mT @ y)
    (3, tensor([6.6667, 9.0000]))
    """

    def __init__(self, *parts: Tensor | StoredRows) -> None:
        if not parts or len({len(part) for part in parts}) > 1:
            got = " and ".join(str(len(part)) for part in parts) or "nothing"
            raise ValueError(checks.sentence("Rows", "parts must be of one length", got))
        self.parts = parts
        self._place: tuple[slice, int] | None = None

    def __len__(self) -> int:
        """Rows of this rank."""
        return len(self.parts[0])

    @property
    def place(self) -> slice:
        """Where this rank's rows stand among those of all ranks."""
        return self._find_place()[0]

    @property
    def n(self) -> int:
        """Rows of all ranks."""
        return self._find_place()[1]

    def _find_place(self) -> tuple[slice, int]:
        if self._place is None:  # asked once: it is a message to every rank
            self._place = distributed.global_slice(len(self))
        return self._place

    def blocks(self, row_bytes: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        """This rank's rows in blocks, each a tuple with one tensor for each part; one empty block where there is none.

        Args:
            row_bytes: Bytes that the work on one row takes; None for three times the row itself.
        """
        if row_bytes is None:
            row_bytes = 3 * sum(part.shape[1:].numel() * part.dtype.itemsize for part in self.parts)
        # A rank without rows gives one empty block, so that f can give zeros of the right shape.
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for start in range(0, max(1, len(self)), step):
            yield tuple(part[start : start + step] for part in self.parts)

    def sum(self, f: Callable[..., Tensor], *, row_bytes: int | None = None) -> Tensor:
        """Sum over all rows, where ``f`` gives the sum over one block; the same on all ranks."""
        blocks = self.blocks(row_bytes)  # at least one
        total = f(*next(blocks))
        for block in blocks:
            total = total + f(*block)
        return self.total(total)

    def mean(self, f: Callable[..., Tensor], *, row_bytes: int | None = None) -> Tensor:
        """Mean over all rows, where ``f`` gives the sum over one block."""
        return self.sum(f, row_bytes=row_bytes) / self.n

    def map(self, f: Callable[..., Tensor], *, row_bytes: int | None = None) -> Tensor:
        """``f`` of this rank's rows, block by block; each row of the result depends on its own row only."""
        return torch.cat([f(*block) for block in self.blocks(row_bytes)])

    @staticmethod
    def total(tensor: Tensor) -> Tensor:
        """Sum of every rank's ``tensor``, which has one shape on all; a rank without rows gives zeros."""
        return distributed.sum_over_ranks(tensor)

    def take(self, index: Tensor) -> Any:
        """Rows by their numbers among those of all ranks, on all ranks; a tuple where there are several parts."""
        return self._one([distributed.take_rows(part, index) for part in self.parts])

    def sample(self, m: int, generator: torch.Generator | None) -> Any:
        """``m`` rows of all ranks (all, where there are fewer), drawn without replacement, the same on all ranks."""
        index = torch.randperm(self.n, generator=distributed.shared_generator(generator))[:m]
        return self.take(index.to(self.parts[0].device))

    def gather(self) -> Any:
        """All rows of all ranks, in order of rank, on all ranks."""
        return self._one([distributed.gather_rows(part[:]) for part in self.parts])

    def _one(self, tensors: list[Tensor]) -> Any:
        if len(tensors) == 1:
            return tensors[0]
        return tuple(tensors)
