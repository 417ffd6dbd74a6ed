"""From kernels and rows to Gram matrices in one pass over the tiles."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from .. import checks
from ..kernels import Kernel, Precomputed
from ..kernels.base import Products
from ..kernels.tiled_gram import TiledGram
from ..linalg.operators import SymmetricOperator

log = logging.getLogger("mercer")


class DenseGram(SymmetricOperator):
    """A matrix the user holds already; it is read, never copied.

    Args:
        matrix: H, ``(n, n)``, symmetric.
    """

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(self._multiply, len(matrix), device=matrix.device)
        self.matrix = matrix.detach()
        self.error = 0.0
        self.noise, self.rounding = 2.0**-23, 2.0**-24
        if matrix.dtype is torch.float64:
            self.noise, self.rounding = 2.0**-46, 2.0**-49
        self._trace = float(self.matrix.diagonal().double().sum())

    @functools.cached_property
    def squared_norm(self) -> float:
        """Squared Frobenius norm."""
        return float(torch.linalg.vector_norm(self.matrix)) ** 2

    def dense(self) -> Tensor:  # (n, n)
        """The matrix in float64; the user's own where it is so already."""
        return self.matrix.double()

    def _multiply(self, v: Tensor) -> Tensor:  # (n, b) -> (n, b), in the matrix's own precision
        v = v.to(self.matrix.dtype)
        if v.shape[1] == 1:
            return (self.matrix @ v[:, 0])[:, None].double()
        return (v.mT.contiguous() @ self.matrix).mT.double()  # H is symmetric, and few rows are faster than few columns


Gram: TypeAlias = TiledGram | DenseGram


@torch.no_grad()
def gram_matrices(where: str, kernels: Sequence[Kernel], x: Tensor, storage: str) -> list[Gram]:
    """The Gram matrices of several kernels on the same rows, each tile of scalar products computed once.

    Args:
        where: The caller's name, for messages.
        kernels: Kernels; those that follow from scalar products share them.
        x: Checked rows of all ranks; each rank computes its share of the tiles.
        storage: ``"auto"``, ``"float64"``, ``"float32"`` or ``"int16"``.
    """
    if len(kernels) == 1 and isinstance(kernels[0], Precomputed):
        return [read_matrix(where, kernels[0].matrix, x, storage)]
    storage = TiledGram.choose_storage(where, storage, len(x), matrices=len(kernels))
    size = TiledGram.bytes_for(len(x), storage) / 2**30
    message = "%s: H of %d rows in %s tiles takes %.2f GiB for each of %d kernels"
    log.info(message, where, len(x), storage, size, len(kernels))
    grams = [TiledGram(len(x), storage, x.device) for _ in kernels]
    # One small matrix gains nothing from sharing, and is then bit for bit what kernel(x) gives.
    sharing = x.ndim == 2 and x.is_floating_point() and (len(kernels) > 1 or len(x) > grams[0].side)
    from_products = [sharing and kernel.follows_from_products for kernel in kernels]
    squared = x
    if any(from_products):
        squared = x.square().sum(1)
    # Tile by tile: the scalar products once, then each kernel's tile out of them or by itself.
    for i, j, rows, columns in grams[0].pairs():
        products: Products | None = None
        if any(from_products):
            products = Products(x[rows], x[columns], (squared[rows], squared[columns]))
        for kernel, follows, gram in zip(kernels, from_products, grams, strict=True):
            if follows and products is not None:
                tile = kernel.gram_from_products(products)
            else:
                tile = kernel.gram(x[rows], x[columns])
            gram.put(i, j, tile.double())
    return [gram.settle() for gram in grams]


def read_matrix(where: str, matrix: Tensor, x: Tensor, storage: str) -> Gram:
    """The user's matrix, at the indices ``x``; read in place where they are all of it, in order.

    With a storage named, it is packed into tiles first: a float32 copy of the triangle is a quarter of a float64
    matrix, and is read four times as fast.
    """
    in_order = len(x) == len(matrix) and torch.equal(x, torch.arange(len(matrix), device=x.device))
    if storage == "auto":
        if in_order:
            return DenseGram(matrix)
        checks.memory(where, f"H of {len(x)} rows", len(x) ** 2 * matrix.element_size(), "Use fewer rows.")
        return DenseGram(matrix[x[:, None], x[None]])
    gram = TiledGram(len(x), TiledGram.choose_storage(where, storage, len(x)), x.device)
    for i, j, rows, columns in gram.pairs():
        if in_order:
            tile = matrix[rows, columns]
        else:
            tile = matrix[x[rows, None], x[None, columns]]
        gram.put(i, j, tile.double())
    return gram.settle()
