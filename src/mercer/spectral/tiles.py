"""A symmetric matrix held as tiles of its upper triangle, in float64, float32 or int16 fixed point."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from .. import checks
from ..distributed import rank, sum_over_ranks, world_size

STORAGE = {"float64": torch.float64, "float32": torch.float32, "int16": torch.int16}
SIDE = 1024  # wide enough for BLAS, and both products of a tile find it in the cache
_STEPS = 32767
_NOISE = 64 * 2.0**-52
_ROUNDING = 8 * 2.0**-52


class Gram(Protocol):
    """What a spectrum asks of H: products, trace, norm, and how far what is held may be from what is meant."""

    n: int
    noise: float
    rounding: float

    @property
    def trace(self) -> float:
        """Sum of the diagonal."""

    @property
    def squared_norm(self) -> float:
        """Squared Frobenius norm."""

    @property
    def error(self) -> float:
        """Bound on the spectral norm of (held - true)."""

    def matmul(self, v: Tensor) -> Tensor:  # (n, b) -> (n, b)
        """The product H v in float64."""


class DenseGram:
    """A matrix the user holds already; it is read, never copied.

    Args:
        matrix: H, ``(n, n)``, symmetric.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.detach()
        self.n = len(matrix)
        self.error = 0.0
        double = matrix.dtype is torch.float64
        self.noise, self.rounding = (_NOISE, _ROUNDING) if double else (2.0**-23, 2.0**-24)

    @functools.cached_property
    def trace(self) -> float:
        """Sum of the diagonal."""
        return float(self.matrix.diagonal().double().sum())

    @functools.cached_property
    def squared_norm(self) -> float:
        """Squared Frobenius norm."""
        return float(torch.linalg.vector_norm(self.matrix)) ** 2

    def matmul(self, v: Tensor) -> Tensor:
        """The product H v, in the matrix's own precision."""
        v = v.to(self.matrix.dtype)
        if v.shape[1] == 1:
            return (self.matrix @ v[:, 0])[:, None].double()
        return (v.mT.contiguous() @ self.matrix).mT.double()  # H is symmetric, and few rows are faster than few columns


class TiledGram:
    r"""Tiles of the upper triangle; each serves its transpose too, so that a product reads half the matrix.

    Of several ranks each holds its share of the tiles, and a product is the sum of theirs.

    ``error`` bounds the Frobenius norm of (held - true), and so the change of every eigenvalue; ``noise`` is
    what an eigenvalue must exceed, beside the largest one, to be told from 0; ``rounding`` is a product's
    relative error.

    Args:
        n: Rows.
        storage: ``"float64"``, ``"float32"``, or ``"int16"``: each tile in whole steps of its largest entry /
            32767.
        device: Where the tiles live.
    """

    def __init__(self, n: int, storage: str, device: torch.device) -> None:
        self.n, self.storage = n, storage
        self.trace, self.squared_norm, self._squared_error = 0.0, 0.0, 0.0
        self._tiles: dict[tuple[int, int], tuple[Tensor, float]] = {}
        self._work = torch.float64 if storage == "float64" else torch.float32
        self._scratch = torch.empty(0, dtype=torch.float32, device=device)
        if storage == "int16":
            self._scratch = torch.empty(SIDE, SIDE, dtype=torch.float32, device=device)
        # Products of tiles in float32 round in float32; a fixed-point step, drawn at random in each of n x n entries,
        # has a norm of about 0.6 sqrt(n) steps beside an eigenvalue of order n.
        self.noise = {"float64": _NOISE, "float32": 2.0**-23, "int16": 2.0**-23 + 2 / (_STEPS * n**0.5)}[storage]
        self.rounding = _ROUNDING if storage == "float64" else 2.0**-24

    @property
    def error(self) -> float:
        """Bound on the spectral norm of (held - true)."""
        return float(self._squared_error**0.5)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tile.numel() * tile.element_size() for tile, _ in self._tiles.values())

    def put(self, i: int, j: int, tile: Tensor) -> None:
        """Hold the float64 tile of row block i and column block j, i <= j."""
        twice = 1 if i == j else 2
        if i == j:
            self.trace += float(tile.diagonal().sum())
        squared = twice * float(torch.linalg.vector_norm(tile)) ** 2
        self.squared_norm += squared
        if self.storage == "float64":
            self._tiles[i, j] = tile, 1.0
        elif self.storage == "float32":
            self._tiles[i, j] = tile.float(), 1.0
            self._squared_error += 2.0**-48 * squared
        else:
            step = float(torch.linalg.vector_norm(tile, torch.inf)) / _STEPS or 1.0
            self._tiles[i, j] = (tile / step).round_().to(torch.int16), step
            self._squared_error += twice * tile.numel() * (step / 2) ** 2

    def settle(self) -> TiledGram:
        """Call when all tiles are held: trace and norms are then those of all ranks' tiles."""
        own = torch.tensor([self.trace, self.squared_norm, self._squared_error], dtype=torch.float64)
        self.trace, self.squared_norm, self._squared_error = sum_over_ranks(own.to(self._scratch.device)).tolist()
        return self

    def matmul(self, v: Tensor) -> Tensor:
        """The product H v; each tile is read once."""
        if v.shape[1] == 1:
            return self._vector(v[:, 0].to(self._work))[:, None]
        v = v.mT.to(self._work).contiguous()  # (b, n): BLAS is several times faster at few rows than at few columns
        out = torch.zeros(v.shape, dtype=torch.float64, device=v.device)
        for (i, j), (held, step) in self._tiles.items():
            tile = self._float(held)
            rows, columns = _span(i, self.n), _span(j, self.n)
            out[:, rows].add_(v[:, columns] @ tile.mT, alpha=step)
            if i != j:
                out[:, columns].add_(v[:, rows] @ tile, alpha=step)
        return sum_over_ranks(out).mT

    def _vector(self, v: Tensor) -> Tensor:  # (n,) -> (n,)
        out = torch.zeros(v.shape, dtype=torch.float64, device=v.device)
        for (i, j), (held, step) in self._tiles.items():
            tile = self._float(held)
            rows, columns = _span(i, self.n), _span(j, self.n)
            out[rows].add_(tile @ v[columns], alpha=step)
            if i != j:
                out[columns].add_(tile.mT @ v[rows], alpha=step)
        return sum_over_ranks(out)

    def _float(self, held: Tensor) -> Tensor:
        if held.dtype is not torch.int16:
            return held
        return self._scratch[: held.shape[0], : held.shape[1]].copy_(held)


def pairs(n: int) -> Iterator[tuple[int, int, slice, slice]]:
    """Row and column blocks of the upper triangle that are this rank's, with their rows; diagonal ones cost half."""
    blocks = range(-(-n // SIDE))
    every = [(i, i + offset) for offset in blocks for i in blocks if i + offset in blocks]  # by diagonals
    return ((i, j, _span(i, n), _span(j, n)) for i, j in every[rank() :: world_size()])


def upper_bytes(n: int, storage: str) -> int:
    """Bytes that this rank's tiles of an n x n matrix take."""
    return (n * (n + SIDE) // 2) * STORAGE[storage].itemsize // world_size()


def choose_storage(where: str, storage: str, n: int, *, matrices: int = 1) -> str:
    """The finest storage that takes at most half of the free memory; ``MemoryError`` where none fits it at all."""
    checks.choice(where, "storage", storage, ["auto", *STORAGE])
    free = checks.available_memory()
    if storage == "auto":
        fits = [s for s in STORAGE if free is None or 2 * matrices * upper_bytes(n, s) <= free]
        storage = fits[0] if fits else "int16"
    what = f"H of {n} rows as {storage} tiles" + (f", {matrices} kernels at once," if matrices > 1 else "")
    checks.memory(where, what, matrices * upper_bytes(n, storage), "Use fewer rows: a random subset of them.")
    return storage


def _span(block: int, n: int) -> slice:
    return slice(block * SIDE, min((block + 1) * SIDE, n))
