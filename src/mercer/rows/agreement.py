"""What all ranks must agree on before rows are read: draws, weights, labels, who computes what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .. import distributed
from .rows import Rows


def has_several_ranks() -> bool:
    """Whether rows are shared out over several processes; some may then have none."""
    return distributed.world_size() > 1


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
