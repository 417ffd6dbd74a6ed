"""One fit over the ranks of ``torch.distributed``; every function is the identity on one process.

The one rule: **each rank passes its own rows** (any number, including zero) and calls the same methods in the same
order. It then gets what one process would get from all rows, in order of rank. What a method needs from all rows is a
sum over them (:func:`sum_over_ranks`) or a few of them (:func:`take_rows`); random draws are the same on every rank
(:func:`shared_generator`). Wrap single-rank work in :func:`alone`.

>>> sum_over_ranks(torch.tensor([1.0, 2.0]))
tensor([1., 2.])
>>> shard(10)
slice(0, 10, None)
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist

from .checks import integer, sentence

__all__ = ["alone", "expect", "joined", "shard"]

_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
_works_alone = contextvars.ContextVar("mercer_alone", default=False)


class Rows(Protocol):
    """A tensor of rows, or a file that is read where it is indexed."""

    def __len__(self) -> int:
        """Rows."""

    def __getitem__(self, index: Any) -> Tensor:
        """The rows of a slice, or rows by number."""


# --- who is there -----------------------------------------------------------------------------------------------------


def rank() -> int:
    """This process's number, 0 where there is only one."""
    return dist.get_rank() if world_size() > 1 else 0


def world_size() -> int:
    """How many processes work together.

    Raises:
        RuntimeError: A launcher started several, and ``torch.distributed`` was not initialised: each would take its own
            rows for all of them.
    """
    if _works_alone.get():
        return 1
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    started = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if started > 1:
        need = f"torch.distributed must be initialised: WORLD_SIZE says {started} processes"
        fix = "Call torch.distributed.init_process_group(), or work in `with mercer.distributed.alone():`."
        raise RuntimeError(sentence("distributed", need, "no process group", fix))
    return 1


def expect(ranks: int) -> None:
    """Raise an error unless this many processes work together; a launcher may start only one.

    >>> expect(1)
    """
    integer("expect", "ranks", ranks, 1)
    if world_size() != ranks:
        fix = f"Start with torchrun --nproc-per-node {ranks}, and call torch.distributed.init_process_group()."
        raise RuntimeError(sentence("expect", f"{ranks} processes must work together", world_size(), fix))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """In this block the rank works alone: nothing is sent, and its rows are all the rows."""
    token = _works_alone.set(True)
    try:
        yield
    finally:
        _works_alone.reset(token)


@contextlib.contextmanager
def joined(timeout: datetime.timedelta | None = None) -> Iterator[None]:
    """Open the process group for this block under ``torchrun`` (gloo on CPU, nccl on GPU); otherwise do nothing."""
    if dist.is_available() and not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        dist.init_process_group(backend, timeout=timeout)
        try:
            yield
        finally:
            dist.destroy_process_group()
        return
    yield


# --- whose rows -------------------------------------------------------------------------------------------------------


def shard(n: int) -> slice:
    """This rank's rows out of ``n``: contiguous, in order of rank, sizes that differ by at most one.

    Ranks beyond the rows get an empty slice.
    """
    n = integer("shard", "n", n, 0)
    first, ranks = rank(), world_size()
    return slice(first * n // ranks, (first + 1) * n // ranks)


def global_slice(n: int) -> tuple[slice, int]:
    """The place of this rank's ``n`` rows among those of all ranks, and the number of all.

    >>> global_slice(3)
    (slice(0, 3, None), 3)
    """
    counts = _gather_counts(n)
    start = sum(counts[: rank()])
    return slice(start, start + n), sum(counts)


def take_rows(rows: Rows, index: Tensor) -> Tensor:  # (n_rank, ...), (m,) -> (m, ...)
    """Chosen rows of all ranks, on all ranks: ``gather_rows(rows)[index]``, but only these are sent.

    Args:
        rows: This rank's.
        index: Numbers among the rows of all ranks, the same on each.
    """
    if world_size() == 1:
        return rows[index]
    ends = list(itertools.accumulate(_gather_counts(len(rows))))
    owner = torch.bucketize(index, torch.tensor(ends, device=index.device), right=True)  # (m,)
    start = ends[rank()] - len(rows)
    everyone = gather_rows(rows[index[owner == rank()] - start])
    return everyone[owner.argsort(stable=True).argsort()]


# --- what is said -----------------------------------------------------------------------------------------------------


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every rank's ``tensor``, the same on all; a new tensor, without gradient, on more than one rank.

    Args:
        tensor: The same shape and dtype on every rank; a rank with no rows passes zeros.

    Raises:
        RuntimeError: A rank died, or none answered within the process group's timeout.
    """
    if world_size() == 1:
        return tensor
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    _call_together("sum_over_ranks", dist.all_reduce, total)
    return total


def gather_rows(rows: Tensor) -> Tensor:  # (n_rank, ...) -> (n, ...)
    """Every rank's rows, one below the other in order of rank, on all ranks.

    Args:
        rows: This rank's; their number may differ from rank to rank and be 0, the rest of the shape may not.

    Raises:
        ValueError: The ranks' rows differ in dtype, or in shape beyond their number.
        RuntimeError: A rank died, or none answered within the process group's timeout.
    """
    if world_size() == 1:
        return rows
    rows = rows.detach().contiguous()
    counts = _check_shapes(rows)
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # all_gather wants one shape
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    _call_together("gather_rows", dist.all_gather, parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def shards(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:  # each (n_rank, ...)
    """Each rank's rows in turn, on all ranks: for sums over all rows that hold only one more shard at a time."""
    if world_size() == 1:
        yield tensors
        return
    mine = [tensor.detach().contiguous() for tensor in tensors]
    counts = [_check_shapes(tensor) for tensor in mine]
    for source in range(world_size()):
        parts = [
            tensor if source == rank() else tensor.new_empty((count[source], *tensor.shape[1:]))
            for tensor, count in zip(mine, counts, strict=True)
        ]
        for part in parts:
            _call_together("shards", dist.broadcast, part, source)
        yield tuple(parts)


def gather_json(value: Any) -> list[Any]:
    """Every rank's value, in order of rank, on all ranks; as JSON, so that nothing is unpickled.

    >>> gather_json({"classes": ["a", "b"]})
    [{'classes': ['a', 'b']}]
    """
    text = json.dumps(value).encode()
    if world_size() == 1:
        return [json.loads(text)]
    said = gather_rows(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(_message_device()))
    ends = [0, *itertools.accumulate(_gather_counts(len(text)))]
    return [json.loads(bytes(said[a:b].tolist())) for a, b in itertools.pairwise(ends)]


def shared_generator(generator: torch.Generator | None) -> torch.Generator | None:
    """The same random generator on all ranks, in the state of rank 0's; None draws a seed on rank 0."""
    if world_size() == 1:
        return generator
    if generator is None:
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (1,))))
    state = generator.get_state().to(_message_device())
    _call_together("shared_generator", dist.broadcast, state, 0)
    generator.set_state(state.cpu())
    return generator


def broadcast_module(module: nn.Module) -> None:
    """Give every rank the parameters and buffers that rank 0's module has."""
    if world_size() == 1:
        return
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        said = tensor.detach().contiguous()
        _call_together("broadcast_module", dist.broadcast, said, 0)
        with torch.no_grad():
            tensor.copy_(said)


def _gather_counts(n: int) -> list[int]:
    if world_size() == 1:
        return [n]
    mine = torch.tensor([n], device=_message_device())
    every = [torch.empty_like(mine) for _ in range(world_size())]
    _call_together("global_slice", dist.all_gather, every, mine)
    return [int(count) for count in every]


def _check_shapes(rows: Tensor) -> list[int]:
    # Unequal shapes in all_gather hang or corrupt: compare them first, in a message of fixed size.
    kind = _DTYPES.index(rows.dtype)
    mine = torch.tensor([kind, rows.ndim, *rows.shape, *(8 - rows.ndim) * [0]], device=rows.device)
    every = [torch.empty_like(mine) for _ in range(world_size())]
    _call_together("gather_rows", dist.all_gather, every, mine)
    said = [message.tolist() for message in every]
    shapes = [tuple(message[2 : 2 + message[1]]) for message in said]
    if len({shape[1:] for shape in shapes}) > 1:
        raise ValueError(sentence("gather_rows", "rows must differ between ranks in number only", shapes))
    if len({message[0] for message in said}) > 1:
        names = ", ".join(str(_DTYPES[message[0]]) for message in said)
        raise ValueError(sentence("gather_rows", "rows must be of one dtype on all ranks", names))
    return [shape[0] for shape in shapes]


def _message_device() -> torch.device:
    """The device that small messages need."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _call_together(where: str, collective: Callable[..., object], *arguments: object) -> None:
    try:
        collective(*arguments)
    except RuntimeError as error:
        need = f"{where}: all {world_size()} ranks must take part"
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"{need}; rank {rank()} got {reason} Did another rank stop? Its log says why.") from error
