"""Work in blocks of rows whose size follows from a byte budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import checks
from .torch_internals import records_graph

BUDGET = 64 * 2**20
"""Bytes one block may take: enough for matrix products at full speed, small beside any memory."""


def block_rows(row_bytes: int, *, budget: int = BUDGET) -> int:
    """How many rows of ``row_bytes`` bytes fit the budget, at least one."""
    return max(1, budget // max(1, row_bytes))


def slices(n: int, block: int) -> Iterator[slice]:
    """``0..n`` cut into slices of ``block``; the last may be shorter."""
    return (slice(start, min(start + block, n)) for start in range(0, n, block))


def apply_to_both(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``f(x), f(y)``: rows that are one tensor are computed once and stay one, so that kernels know them as equal."""
    first = f(x)
    if y is x:
        return first, first
    return first, f(y)


def blockwise(f: Callable[[Tensor], Tensor], x: Tensor, *, block: int) -> Tensor:  # (n, ...) -> (n, ...)
    """Rows of ``f(x)`` where every row depends on its own row of ``x`` only, ``block`` rows at a time."""
    checks.integer("blockwise", "block", block, 1)
    if records_graph() or len(x) <= block:  # an exported graph must not know the number of rows
        return f(x)
    return torch.cat([f(x[rows]) for rows in slices(len(x), block)])


def blockwise_matmul(
    gram: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    v: Tensor,
    *,
    block: int | None = None,
    budget: int = BUDGET,
) -> Tensor:  # (n, ...), (m, ...), (m,) or (m, c) -> (n,) or (n, c)
    r"""The product :math:`K(x, y) v`, holding only ``block`` rows of K at a time; without gradients.

    Args:
        gram: ``gram(x, y) -> (n, m)``.
        x: Rows of K.
        y: Columns of K.
        v: What K is applied to.
        block: Rows at a time; None takes them from the budget, with room for two temporaries of the block's
            size.
        budget: Bytes.
    """
    # Room for a block of K and two temporaries of its size.
    if block is None:
        block = block_rows(3 * max(1, len(y)) * v.element_size(), budget=budget)
    checks.integer("matmul", "block", block, 1)
    out = v.new_zeros((len(x), *v.shape[1:]))
    for number, rows in enumerate(slices(len(x), block)):
        part = gram(x[rows], y)
        # One result, written in place: small ones kept between the blocks would each sit in the memory that a block
        # freed, and the heap would grow by a block each time, up to the size of K.
        if number == 0:
            out = out.to(part.dtype)
        out[rows] = part @ v.to(part.dtype)
    return out
