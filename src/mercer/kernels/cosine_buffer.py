"""Powers, or Gegenbauer polynomials, of many cosines in one buffer that each thread uses again; norms of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

Factors = tuple[tuple[float, float], ...] | None  # of the Gegenbauer recurrence; None for powers
BLOCK = 2**15  # cosines worked on at a time on a CPU: their powers stay in the cache
_BLOCK_GPU = 2**21
_USUAL = (1e-15, 1e15)  # norms between these have float32 squares that neither over- nor underflow


class Scratch(threading.local):
    """What a thread's next call may use again."""

    key: object = None  # of the buffer: sizes, dtype, device, factors
    buffer: Tensor  # its row 0 is 1
    first: Tensor | None  # its row 1
    steps: Sequence[Callable[[], object]]  # what fills the others
    last: object = None  # the forward pass whose polynomials are in the buffer
    slopes: tuple[Tensor, Tensor] | None = None  # as given, and as last asked for


scratch = Scratch()


def polynomials(t: Tensor, count: int, factors: Factors) -> Tensor:
    """All polynomials at a block of cosines, clamped, a row each, in the buffer that is used again."""
    _set_buffer(t, count, factors)
    scratch.last = None
    if scratch.first is not None:
        torch.clamp(t.view(-1), -1, 1, out=scratch.first)
    for step in scratch.steps:
        step()
    return scratch.buffer


def row_blocks(t: Tensor) -> Iterator[slice]:
    """A few rows of the cosines at a time, such that all polynomials at them stay in the cache."""
    n, m = t.shape
    rows = max(1, (BLOCK if t.device.type == "cpu" else _BLOCK_GPU) // max(1, m))
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def _set_buffer(t: Tensor, count: int, factors: Factors) -> None:
    """Have a buffer for t; in small heads the views of its rows cost more than the numbers in them."""
    key = (count, t.numel(), t.dtype, t.device, factors)
    if scratch.key != key:
        with torch.inference_mode(False):  # else a later call outside that mode could not write into it
            buffer = scratch.buffer = torch.empty(count, t.numel(), dtype=t.dtype, device=t.device)
            buffer[0].fill_(1.0)
            scratch.first, scratch.steps = buffer[1] if count > 1 else None, _steps(buffer, factors)
        scratch.key = key


def _steps(buffer: Tensor, factors: Factors) -> list[Callable[[], object]]:
    """What fills rows 2, 3, ... of the buffer from row 1; the views are made once, not for every block."""
    order = len(buffer) - 1
    if order < 2:
        return []
    if factors is not None:
        t = buffer[1]
        return [
            partial(_next_polynomial, t, buffer[m - 1], buffer[m], buffer[m + 1], *factors[m - 1])
            for m in range(1, order)
        ]
    steps: list[Callable[[], object]] = []
    done = 1
    while done < order:  # rows 1..k times row k are rows k+1..2k
        count = min(done, order - done)
        left, right, out = buffer[1 : 1 + count], buffer[done], buffer[done + 1 : done + 1 + count]
        steps.append(partial(torch.mul, left, right, out=out))
        done += count
    return steps


def _next_polynomial(t: Tensor, before: Tensor, now: Tensor, after: Tensor, a: float, b: float) -> None:
    torch.mul(t, now, out=after)
    after.mul_(a).sub_(before, alpha=b)


def slopes_like(slopes: Tensor, a: Tensor) -> Tensor:
    """The slopes in the dtype and on the device of a; the last are kept, for a copy costs as much as the product."""
    kept = scratch.slopes
    if kept is None or kept[0] is not slopes or kept[1].dtype != a.dtype or kept[1].device != a.device:
        kept = scratch.slopes = (slopes, slopes.to(a))
    return kept[1]


class Norms(NamedTuple):
    """Of rows, as a head needs them."""

    inverse: Tensor  # (n, 1): 1 / |x| for each row, 0 for rows too short to have a direction
    usual: bool  # whether all are of a usual size


def norms(x: Tensor) -> Norms:  # (n, d)
    """Norms of rows of any size."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if x.device.type == "cpu" and norm.numel():
        least, most = (value.item() for value in torch.aminmax(norm))
        if least > _USUAL[0] and most < _USUAL[1]:
            return Norms(norm.reciprocal_(), True)
    if x.dtype == torch.float64:
        largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
        scale = torch.where(largest > torch.finfo(x.dtype).tiny, largest, 1.0)
        norm = scale * torch.linalg.vector_norm(x / scale, dim=1, keepdim=True)
    else:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
    inverse = torch.where(norm > 4 * torch.finfo(x.dtype).tiny, norm.reciprocal(), 0.0)
    return Norms(inverse.to(x.dtype), False)
