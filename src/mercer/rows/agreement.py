"""How ranks work together before rows are read: draws, weights, labels, and who computes what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .. import distributed
from .rows import Rows

Item = TypeVar("Item")


def count_ranks() -> int:
    """How many processes share the work."""
    return distributed.world_size()


def has_several_ranks() -> bool:
    """Whether rows are shared out over several processes; some may then have none."""
    return count_ranks() > 1


def deal_out(items: Sequence[Item]) -> Sequence[Item]:
    """This rank's items of a list that all ranks hold, dealt out one by one."""
    return items[distributed.rank() :: count_ranks()]


def visit_ranks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:  # each (n_rank, ...)
    """Each rank's rows in turn, on all ranks: for sums over all rows that hold one more rank's at a time."""
    return distributed.shards(*tensors)


def share_generator(generator: torch.Generator | None) -> torch.Generator | None:
    """The generator in the state of rank 0's, so that all ranks draw the same."""
    return distributed.shared_generator(generator)


def share_weights(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0's module."""
    distributed.broadcast_module(module)


def unite_values(values: Iterable[Any]) -> list[Any]:
    """The values that any rank has, sorted, each once; strings or numbers.

    >>> unite_values(["b", "a", "b"])
    ['a', 'b']
    """
    return sorted({value for part in distributed.gather_json(list(values)) for value in part})


def map_shared_rows(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # (n, ...) -> (n, ...)
    """``f(x)`` for rows that all ranks hold; each rank computes its share. ``f`` treats every row by itself."""
    if not has_several_ranks():
        return f(x)
    answer: Tensor = Rows(f(take_share(x))).gather()
    return answer


def take_share(x: Tensor) -> Tensor:
    """This rank's share of rows that all ranks hold."""
    return x[distributed.shard(len(x))]
