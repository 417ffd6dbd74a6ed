"""A Gram matrix held as tiles of its upper triangle, in float64, float32 or int16 fixed point."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.operators import SymmetricOperator
from ..rows.agreement import count_ranks, deal_out
from ..rows.rows import Rows
from .base import Kernel

STORAGE = {"float64": torch.float64, "float32": torch.float32, "int16": torch.int16}
_SIDE = 512  # wide enough for BLAS; a kernel's temporaries and both products of a tile find it in the cache
_STEPS = 32767
_ROUNDING = 8 * 2.0**-52
NOISE = {"float64": 64 * 2.0**-52, "float32": 2.0**-23, "int16": 2.0**-23}
"""Share of the largest eigenvalue below which one is rounding; products of float32 tiles round there."""


class TiledGram(SymmetricOperator):
    r"""Tiles of the upper triangle; each serves its transpose too, so that a product reads half the matrix.

    With several ranks each holds its share of the tiles, and a product is the sum of theirs.

    ``error`` bounds the Frobenius norm of (held - true), and so the change of every eigenvalue; ``noise`` is
    what an eigenvalue must exceed, beside the largest one, to be told from 0; ``rounding`` is a product's
    relative error.

    Args:
        n: Rows.
        storage: ``"float64"``, ``"float32"``, or ``"int16"``: each tile in whole steps of its largest entry /
            32767.
        device: Where the tiles live.
        side: Rows of a tile; None chooses.
    """

    def __init__(self, n: int, storage: str, device: torch.device, side: int | None = None) -> None:
        # Its own method as the product would be a cycle: the matrix would outlive its last user.
        super().__init__(None, n, device=device)
        self.storage, self.side = storage, side or _side(n)
        self.squared_norm, self._diagonal, self._squared_error = 0.0, 0.0, 0.0
        # One block of memory for all tiles: between the temporaries of their making, single ones leave holes that the
        # allocator does not give back.
        spans = [(rows.stop - rows.start) * (columns.stop - columns.start) for _, _, rows, columns in self.pairs()]
        self._block = torch.empty(sum(spans), dtype=STORAGE[storage], device=device)
        self._held = 0  # entries of it that are in use
        self._tiles: dict[tuple[int, int], tuple[Tensor, float]] = {}
        # Products run in the dtype of the tiles; those in fixed point become float32 in a scratch tile first.
        self._work, self.rounding = torch.float32, 2.0**-24
        if storage == "float64":
            self._work, self.rounding = torch.float64, _ROUNDING
        self._scratch = torch.empty(0, dtype=torch.float32, device=device)
        if storage == "int16":
            self._scratch = torch.empty(self.side, self.side, dtype=torch.float32, device=device)
        self.noise = NOISE[storage]
        if storage == "int16":
            # A fixed-point step, drawn at random in each of n x n entries, has a norm of about 0.6 sqrt(n) steps beside
            # an eigenvalue of order n.
            self.noise += 2 / (_STEPS * n**0.5)

    @classmethod
    def of(cls, kernel: Kernel, x: Tensor, storage: str) -> TiledGram:
        """The Gram matrix of rows that all ranks hold, each tile computed in the dtype of the rows."""
        gram = cls(len(x), storage, x.device)
        for i, j, rows, columns in gram.pairs():
            first = second = x[rows]  # kernels know rows with themselves as one tensor
            if i != j:
                second = x[columns]
            gram.put(i, j, kernel.gram(first, second))
        return gram.settle()

    @property
    def error(self) -> float:
        """Bound on the spectral norm of (held - true)."""
        return float(self._squared_error**0.5)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tile.numel() * tile.element_size() for tile, _ in self._tiles.values())

    def put(self, i: int, j: int, tile: Tensor) -> None:
        """Hold the tile of row block i and column block j, i <= j."""
        twice = 2  # a tile off the diagonal stands for its transpose too
        if i == j:
            twice = 1
            self._diagonal += float(tile.diagonal().double().sum())
        squared = twice * float(torch.linalg.vector_norm(tile)) ** 2
        self.squared_norm += squared
        held = self._block[self._held : self._held + tile.numel()].view(tile.shape)
        self._held += tile.numel()
        if self.storage == "int16":
            step = float(torch.linalg.vector_norm(tile, torch.inf)) / _STEPS or 1.0
            self._tiles[i, j] = held.copy_((tile / step).round_()), step
            self._squared_error += twice * tile.numel() * (step / 2) ** 2
            return
        self._tiles[i, j] = held.copy_(tile), 1.0
        if self.storage == "float32":
            self._squared_error += 2.0**-48 * squared

    def settle(self) -> TiledGram:
        """Call when all tiles are held: trace and norms are then those of all ranks' tiles."""
        sums = torch.tensor([self._diagonal, self.squared_norm, self._squared_error], dtype=torch.float64)
        self._trace, self.squared_norm, self._squared_error = Rows.total(sums.to(self._scratch.device)).tolist()
        return self

    def dense(self) -> Tensor:  # (n, n)
        """The whole matrix in float64, on every rank."""
        out = torch.zeros(self.n, self.n, dtype=torch.float64, device=self.device)
        for (i, j), (stored, step) in self._tiles.items():
            rows, columns = self._span(i), self._span(j)
            out[rows, columns] = stored.double() * step
            if i != j:
                out[columns, rows] = out[rows, columns].mT
        return Rows.total(out)

    def pairs(self) -> Iterator[tuple[int, int, slice, slice]]:
        """This rank's blocks of the upper triangle, with their rows and columns; diagonal ones cost half."""
        blocks = range(-(-self.n // self.side))
        every = [(i, i + offset) for offset in blocks for i in blocks if i + offset in blocks]  # by diagonals
        return ((i, j, self._span(i), self._span(j)) for i, j in deal_out(every))

    @override
    def multiply(self, v: Tensor) -> Tensor:  # (n, b) -> (n, b)
        if v.shape[1] == 1:
            return self._vector(v[:, 0].to(self._work))[:, None]
        v = v.mT.to(self._work).contiguous()  # (b, n): BLAS is several times faster at few rows than at few columns
        out = torch.zeros(v.shape, dtype=torch.float64, device=v.device)
        for (i, j), (stored, step) in self._tiles.items():
            tile = self._float(stored)
            rows, columns = self._span(i), self._span(j)
            out[:, columns].add_(v[:, rows] @ tile, alpha=step)
            if i != j:  # a tile on the diagonal is its own transpose, which is slower to multiply with
                out[:, rows].add_(v[:, columns] @ tile.mT, alpha=step)
        return Rows.total(out).mT

    def _vector(self, v: Tensor) -> Tensor:  # (n,) -> (n,)
        out = torch.zeros(v.shape, dtype=torch.float64, device=v.device)
        for (i, j), (stored, step) in self._tiles.items():
            tile = self._float(stored)
            rows, columns = self._span(i), self._span(j)
            out[rows].add_(tile @ v[columns], alpha=step)
            if i != j:
                out[columns].add_(tile.mT @ v[rows], alpha=step)
        return Rows.total(out)

    def _float(self, stored: Tensor) -> Tensor:
        """A tile to multiply with: as it is, or fixed point in a scratch of float32."""
        if stored.dtype is not torch.int16:
            return stored
        return self._scratch[: stored.shape[0], : stored.shape[1]].copy_(stored)

    def _span(self, block: int) -> slice:
        return slice(block * self.side, min((block + 1) * self.side, self.n))

    @staticmethod
    def bytes_for(n: int, storage: str) -> int:
        """Bytes that this rank's tiles of an n x n matrix take."""
        return (n * (n + _side(n)) // 2) * STORAGE[storage].itemsize // count_ranks()

    @staticmethod
    def choose_storage(where: str, storage: str, n: int, *, matrices: int = 1) -> str:
        """The finest storage that takes at most half of the free memory; ``MemoryError`` where none fits it at all."""
        checks.choice(where, "storage", storage, ["auto", *STORAGE])
        free = checks.available_memory()
        if storage == "auto":
            fits = [s for s in STORAGE if free is None or 2 * matrices * TiledGram.bytes_for(n, s) <= free]
            storage = [*fits, "int16"][0]
        what = f"H of {n} rows as {storage} tiles"
        if matrices > 1:
            what = f"{what}, {matrices} kernels at once,"
        needed = matrices * TiledGram.bytes_for(n, storage)
        checks.memory(where, what, needed, "Use fewer rows: a random subset of them.")
        return storage


def _side(n: int) -> int:
    """Rows of a tile: few rows are one, which costs fewer calls."""
    if n <= 2 * _SIDE:
        return n
    return _SIDE
