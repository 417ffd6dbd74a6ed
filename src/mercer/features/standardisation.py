"""Centre and spread of rows, in blocks and over ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed import global_slice, sum_over_ranks
from ..linalg import block_rows, slices
from ..modules import Readable


def centre_and_spread(x: Readable) -> tuple[Tensor, Tensor]:  # (n, ...) -> (...), ()
    """The mean row, and one standard deviation of all numbers, 1 where that is 0; in float64, over all ranks.

    Two passes: the square of a large mean would drown the spread.
    """
    n, size = global_slice(len(x))[1], x.shape[1:].numel()
    parts = list(slices(len(x), block_rows(2 * 8 * size)))
    zero = torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
    centre = sum_over_ranks(sum((x[part].double().sum(0) for part in parts), zero)) / n
    middle = centre.mean()
    squares = sum(((x[part].double() - middle).square().sum() for part in parts), zero.new_zeros(()))
    spread = (sum_over_ranks(squares) / (n * size)).sqrt()
    return centre, torch.where(spread > 0, spread, 1.0)
