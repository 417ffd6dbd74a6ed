"""Large matrices of pairs, tile by tile: each tile and its temporaries stay in the processor's cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .blocks import slices
from .distances import squared_distances, squared_tiles
from .manhattan import manhattan_distances, manhattan_tiles
from .torch_internals import differentiated

_TILE_BYTES = 2**20

METRICS = {"squared": (squared_distances, squared_tiles), "manhattan": (manhattan_distances, manhattan_tiles)}


def fill_tiles(
    matrices: Sequence[Tensor], tile: Callable[[slice, slice], Sequence[Tensor]], *, symmetric: bool, side: int
) -> None:
    """Write ``tile(rows, columns)`` into every matrix; of symmetric ones the lower triangle is the upper mirrored.

    Args:
        matrices: ``(n, m)`` each, overwritten.
        tile: Gives a part of every matrix.
        symmetric: Only tiles on and above the diagonal are computed.
        side: Rows and columns of a tile.
    """
    n, m = matrices[0].shape
    for rows in slices(n, side):
        for columns in slices(m, side):
            if symmetric and columns.start < rows.start:
                continue
            for matrix, part in zip(matrices, tile(rows, columns), strict=True):
                matrix[rows, columns] = part
                if symmetric and rows != columns:
                    matrix[columns, rows] = part.mT


def map_distances(
    metric: str, x: Tensor, y: Tensor, profile: Callable[[Tensor], Tensor], hyper: Sequence[Tensor] = ()
) -> Tensor:  # (n, d), (m, d) -> (n, m)
    """``profile`` of the distances between rows, elementwise.

    Where a derivative may be asked for, the distances are held whole; elsewhere only the result is.

    Args:
        metric: ``"squared"``, Euclidean distances squared, or ``"manhattan"``, sums of absolute differences.
        x: Rows.
        y: Rows; ``x`` itself makes the matrix symmetric, and half the work.
        profile: Function of a matrix of distances.
        hyper: Tensors that ``profile`` uses, for their derivatives.
    """
    whole, tiles = METRICS[metric]
    side = math.isqrt(_TILE_BYTES // x.element_size())
    if differentiated(x, y, *hyper) or x.device.type != "cpu" or x.shape[0] * y.shape[0] <= side**2:
        return profile(whole(x, y))
    distances = tiles(x, y)
    out = torch.empty(len(x), len(y), dtype=x.dtype)
    fill_tiles([out], lambda rows, columns: (profile(distances(rows, columns)),), symmetric=y is x, side=side)
    return out
