"""Row sums over the ranks of ``torch.distributed``; every function is the identity on one process.

Each rank holds a shard of the rows. What a method needs of all rows is a sum over them (a covariance, a Gram product, a
gradient), so :func:`sum_over_ranks` is the one call that methods make.

>>> sum_over_ranks(torch.tensor([1.0, 2.0]))
tensor([1., 2.])
>>> shard(10)
slice(0, 10, None)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist

from .checks import integer, sentence

__all__ = ["gather_rows", "rank", "shard", "sum_over_ranks", "world_size"]


def rank() -> int:
    """This process's number, 0 where there is only one."""
    return dist.get_rank() if _initialized() else 0


def world_size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if _initialized() else 1


def shard(n: int) -> slice:
    """The rows of ``n`` that are this rank's: contiguous, in order of rank, sizes that differ by at most one.

    Ranks beyond the rows get an empty slice.
    """
    n = integer("shard", "n", n, 0)
    first, ranks = rank(), world_size()
    return slice(first * n // ranks, (first + 1) * n // ranks)


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every rank's ``tensor``, the same on all; a new tensor, without gradient, on more than one rank.

    Args:
        tensor: Of the same shape and dtype on every rank; a rank with no rows gives zeros.

    Raises:
        RuntimeError: A rank died, or none answered within the process group's timeout.
    """
    if world_size() == 1:
        return tensor
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    _together("sum_over_ranks", lambda: dist.all_reduce(total))
    return total


def gather_rows(rows: Tensor) -> Tensor:  # (n_rank, ...) -> (n, ...)
    """Every rank's rows, one below the other in order of rank, on all ranks.

    Args:
        rows: This rank's; their number may differ from rank to rank and be 0, the rest of the shape may not.

    Raises:
        ValueError: The ranks' rows differ in shape beyond their number.
        RuntimeError: A rank died, or none answered within the process group's timeout.
    """
    if world_size() == 1:
        return rows
    rows = rows.detach().contiguous()
    counts = _shapes(rows)
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # all_gather wants one shape
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    _together("gather_rows", lambda: dist.all_gather(parts, padded))
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _shapes(rows: Tensor) -> list[int]:
    # Unequal shapes in all_gather hang or corrupt: compare them first, in a message of known size.
    mine = torch.tensor([rows.ndim, *rows.shape, *(8 - rows.ndim) * [0]], device=rows.device)
    every = [torch.empty_like(mine) for _ in range(world_size())]
    _together("gather_rows", lambda: dist.all_gather(every, mine))
    shapes = [tuple(s[1 : 1 + int(s[0])].tolist()) for s in every]
    if len({shape[1:] for shape in shapes}) > 1:
        raise ValueError(sentence("gather_rows", "rows must differ between ranks in number only", shapes))
    return [shape[0] for shape in shapes]


def _together(where: str, call: Callable[[], object]) -> None:
    try:
        call()
    except RuntimeError as error:
        need = f"{where}: all {world_size()} ranks must take part"
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"{need}; rank {rank()} got {reason} Did another rank stop? Its log says why.") from error


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()
