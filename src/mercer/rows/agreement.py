"""How ranks work together before rows are read: draws, weights, labels, and who computes what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from .. import distributed
from .rows import Rows

Item = TypeVar("Item")


# Under the names that methods say; each is an identity, or does nothing, on one process.
visit_ranks = distributed.shards  # each rank's rows in turn, on all ranks: holds one more rank's rows at a time
share_generator = distributed.shared_generator  # in the state of rank 0's, so that all ranks draw the same
share_weights = distributed.broadcast_module  # every rank gets the parameters and buffers of rank 0's module


def count_ranks() -> int:
    """How many processes share the work."""
    return distributed.world_size()


def has_several_ranks() -> bool:
    """Whether rows are shared out over several processes; some may then have none."""
    return count_ranks() > 1


def deal_out(items: Sequence[Item]) -> Sequence[Item]:
    """This rank's items of a list that all ranks hold, dealt out one by one."""
    return items[distributed.rank() :: count_ranks()]


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
    mapped: Tensor = Rows(f(take_share(x))).gather()
    return mapped


def take_share(x: Tensor) -> Tensor:
    """This rank's share of rows that all ranks hold."""
    return x[distributed.shard(len(x))]
