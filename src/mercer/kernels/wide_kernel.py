"""Kernels of infinitely wide networks: a list of layer rules, run over tiles of pairs of rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.blocks import slices
from ..linalg.distances import fill_tiles
from ..linalg.torch_internals import may_be_differentiated, records_graph
from .base import Kernel
from .layer_rules import (
    Affine,
    Enter,
    EnterConvolution,
    Layout,
    PairState,
    Pool,
    RawCall,
    RowState,
    Rule,
    Side,
    diagonal,
)

_ASK_BYTES = 2**30  # less is allocated without looking at the free memory
_TEMPORARIES = 8  # covariances of a tile that are held at once, at most


class WideKernels(NamedTuple):
    """Both kernels of one network, ``(n, m)`` each."""

    nngp: Tensor
    ntk: Tensor


@dataclasses.dataclass(frozen=True)
class Step:
    """One layer of a network, whose output is node ``1 +`` its place; node 0 is the input.

    Args:
        rule: What it does.
        inputs: The nodes that it reads.
        positions: Shape of its output's positions.
        full: Whether later steps ask for all pairs of positions; `plan` says so.
    """

    rule: Rule
    inputs: tuple[int, ...]
    positions: tuple[int, ...] = ()
    full: bool = False


def plan(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, marked where a later pooling needs all pairs of positions, with the first convolution fused."""
    # From the end: a step that pools, or that must give all pairs itself, needs them of its inputs.
    full = [False] * (len(steps) + 1)
    for place in range(len(steps) - 1, -1, -1):
        if steps[place].rule.ALL_PAIRS or full[place + 1]:
            for node in steps[place].inputs:
                full[node] = True
    planned = []
    for place, step in enumerate(steps):
        planned.append(dataclasses.replace(step, full=full[place + 1] and len(step.positions) > 0))
    return tuple(fuse_first_convolution(planned))


def fuse_first_convolution(steps: Sequence[Step]) -> list[Step]:
    """Make one step of the input's entry and a convolution behind it that leaves at most half of the positions.

    Products of whole patches cost as many products as they have taps; a stride leaves so few patches that they cost
    less than products of single pixels.
    """
    # A node that another step reads too must stay.
    readers = [node for step in steps for node in step.inputs]
    fused: list[Step] = []
    moved = [0]  # where each node is now
    for place, step in enumerate(steps):
        entry, rule = steps[place - 1], step.rule
        if (
            isinstance(rule, Affine)
            and rule.patch is not None
            and len(rule.patch.size) <= 2
            and len(set(rule.trained)) == 1  # weights and biases, or neither
            and isinstance(entry.rule, Enter)
            and entry.rule.channel == 1
            and step.inputs == (place,)
            and readers.count(place) == 1
            and not step.full
            and 2 * math.prod(step.positions) <= math.prod(entry.positions)
        ):
            fused[-1] = Step(EnterConvolution(rule), fused[-1].inputs, step.positions)
        else:
            fused.append(dataclasses.replace(step, inputs=tuple(moved[node] for node in step.inputs)))
        moved.append(len(fused))
    return fused


def chain(rules: Sequence[Rule], positions: tuple[int, ...] = ()) -> tuple[Step, ...]:
    """A network without branches; all its states have these positions until a layer reads all of them."""
    steps = []
    for place, rule in enumerate(rules):
        if isinstance(rule, Pool) or (isinstance(rule, Affine) and rule.flattened):
            positions = ()
        steps.append(Step(rule, (place,), positions))
    return plan(steps)


class WideKernel(Kernel):
    """A kernel computed by layer rules; a variant writes :meth:`steps`.

    Rows are taken in tiles, and of a symmetric matrix only the upper triangle; the diagonal is exact. Positions
    (pixels) cost memory for each pair of rows in a tile, not for the whole matrix.
    """

    TANGENT: ClassVar[bool] = False  # whether the tangent kernel is the answer
    tile = 256  # rows of a tile without positions: it and its temporaries stay in the cache
    block_bytes = 2 * 2**20  # one covariance of a tile of pairs of rows, over all positions: it stays in the cache

    def steps(self, shape: tuple[int, ...]) -> tuple[Step, ...]:
        """The planned layers for rows of this shape."""
        raise NotImplementedError(f"{type(self).__name__} must define steps(shape)")

    @property
    def tangent(self) -> bool:
        """Whether the answer is the tangent kernel."""
        return self.TANGENT

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, ...), (m, ...) -> (n, m)
        return self._fill(x, y, both=False)[0]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        steps = self.steps(tuple(x.shape[1:]))
        return self._diagonals(self._follow_rows(steps, x, tangent=self.tangent)[-1], both=False)[0]

    def kernels(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:  # (n, ...), (m, ...) -> one or two of (n, m)
        """The NNGP kernel and, where the answer is the tangent kernel, that one too."""
        return self._fill(x, y, both=self.tangent)

    def _fill(self, x: Tensor, y: Tensor, *, both: bool) -> tuple[Tensor, ...]:  # -> one or two of (n, m)
        """The kernel, or ``both`` kernels, tile by tile."""
        steps = self.steps(tuple(x.shape[1:]))
        size, symmetric = _largest_state(steps), y is x
        self._check_memory(steps, size, x, y)

        # Follow single rows through all layers first: pairs read their deviations and factors.
        row_states = self._follow_rows(steps, x, tangent=self.tangent and symmetric)
        if symmetric:
            column_states, diagonals = row_states, self._diagonals(row_states[-1], both)
        else:
            column_states, diagonals = self._follow_rows(steps, y, tangent=False), ()

        def pairs(rows: slice, columns: slice) -> tuple[Tensor, ...]:
            a, b = [node.part(rows) for node in row_states], [node.part(columns) for node in column_states]
            parts = self._tile(steps, a, b, both)
            if not symmetric or rows != columns:
                return parts
            # Rows with themselves are known exactly; the rounding of a correlation near 1 would grow in an arc cosine.
            diagonal = torch.eye(parts[0].shape[0], dtype=torch.bool, device=x.device)
            return tuple(torch.where(diagonal, d[rows, None], part) for d, part in zip(diagonals, parts, strict=True))

        # Tiles of at most `block_bytes`, near square because a symmetric matrix leaves half of them out.
        side = self.tile
        if size > 1:
            side = max(1, math.isqrt(self.block_bytes // (x.element_size() * size)))
        all_rows, all_columns = slice(0, x.shape[0]), slice(0, y.shape[0])
        if records_graph() or max(x.shape[0], y.shape[0]) <= side:
            return pairs(all_rows, all_columns)
        if not may_be_differentiated(x, y) and x.device.type == "cpu":
            dtype = row_states[-1].r.dtype
            grams = tuple(x.new_empty(len(x), len(y), dtype=dtype) for _ in range(1 + both))
            fill_tiles(grams, pairs, symmetric=symmetric, side=side)
            return grams
        if size == 1:  # tiles only save the cache
            return pairs(all_rows, all_columns)
        strips = []
        for rows in slices(len(x), side):
            parts = zip(*(pairs(rows, columns) for columns in slices(len(y), side)), strict=True)
            strips.append([torch.cat(part, 1) for part in parts])
        return tuple(torch.cat(part) for part in zip(*strips, strict=True))

    def _follow_rows(self, steps: Sequence[Step], x: Tensor, *, tangent: bool) -> list[RowState]:
        """The states of single rows at every node, block by block where states of all positions are big."""
        size = _largest_state(steps)
        # All rows at once where no states of all pairs of positions are held.
        rows = max(1, self.block_bytes // (size * 8))
        if not any(step.full for step in steps) or records_graph() or x.shape[0] <= rows:
            return self._follow_block(steps, x, tangent)
        # Else block by block, joined node by node.
        blocks = [self._follow_block(steps, x[part], tangent) for part in slices(x.shape[0], rows)]

        def join(tensors: Sequence[Tensor | None]) -> Tensor | None:
            parts = [t for t in tensors if t is not None]
            if not parts:
                return None
            return torch.cat(parts)

        joined = []
        for parts in zip(*blocks, strict=True):  # the blocks of one node
            states = [row.state for row in parts if row.state is not None]
            rho, theta = join([state.rho for state in states]), join([state.theta for state in states])
            r, mean = torch.cat([row.r for row in parts]), torch.cat([row.mean for row in parts])
            factors = tuple(map(torch.cat, zip(*(row.factors for row in parts), strict=True)))
            state = None
            if rho is not None:
                state = PairState(rho, theta)
            joined.append(RowState(r, mean, join([row.unit for row in parts]), state, factors))
        return joined

    def _follow_block(self, steps: Sequence[Step], x: Tensor, tangent: bool) -> list[RowState]:
        last_use = _last_uses(steps)
        row_states = [RowState(x, x)]
        for place, step in enumerate(steps):
            before = [row_states[node] for node in step.inputs]
            after = step.rule.advance_rows(before)
            if not isinstance(step.rule, RawCall) and (step.full or tangent):
                # The state of each row with itself, from those before.
                full_before = step.full or step.rule.ALL_PAIRS
                states = []
                for node, row in zip(step.inputs, before, strict=True):
                    if row.state is not None:
                        full = _is_full(steps, node)
                        states.append(_take_equal_positions(row.state, full, full_before, row.r.ndim - 1))
                side = Side(before, after)
                state = step.rule.advance_pairs(states, side, side, Layout(full_before, zipped=True))
                if step.rule.ALL_PAIRS:
                    state = _take_equal_positions(state, True, step.full, after.r.ndim - 1)
                # A row's correlations with itself are 1 at equal positions.
                if not step.full:
                    state = PairState(torch.ones_like(after.r), state.theta)
                after = after._replace(state=state)
            row_states.append(after)
            # Drop states that no later step reads: with all pairs of positions they are large.
            for node in step.inputs:
                if last_use[node] == place:
                    row_states[node] = row_states[node]._replace(state=None)
        return row_states

    def _tile(
        self, steps: Sequence[Step], x: Sequence[RowState], y: Sequence[RowState], both: bool
    ) -> tuple[Tensor, ...]:
        """The kernels of some rows with others."""
        # Node by node: the state of all pairs after each step, from those before.
        states: list[PairState | None] = [None]
        last_use = _last_uses(steps)
        for place, step in enumerate(steps):
            if isinstance(step.rule, RawCall):
                states.append(None)
                continue
            full_before = step.full or step.rule.ALL_PAIRS
            before = []
            for node in step.inputs:
                state = states[node]
                if state is not None:
                    before.append(_take_equal_positions(state, _is_full(steps, node), full_before, x[node].r.ndim - 1))
            # The rule reads the row states before and after it.
            sides = [Side([row[node] for node in step.inputs], row[place + 1]) for row in (x, y)]
            state = step.rule.advance_pairs(before, sides[0], sides[1], Layout(full_before, zipped=False))
            if step.rule.ALL_PAIRS:
                state = _take_equal_positions(state, True, step.full, len(step.positions))
            if not self.tangent:
                state = PairState(state.rho, None)
            states.append(state)
            for node in step.inputs:
                if last_use[node] == place:
                    states[node] = None
        # Covariances out of the last state's correlations.
        last = states[-1]
        assert last is not None
        relative = []
        if both or not self.tangent:
            relative.append(last.rho)
        if self.tangent and last.theta is not None:
            relative.append(last.theta)
        elif self.tangent:  # no parameter of the model is trained
            relative.append(torch.zeros_like(last.rho))
        rx, ry = x[-1].r[:, None], y[-1].r[None]  # one after the other: their product may overflow
        return tuple(t * rx * ry for t in relative)

    def _diagonals(self, row: RowState, both: bool) -> tuple[Tensor, ...]:
        diagonals = []
        if both or not self.tangent:
            diagonals.append(row.r.square())
        if self.tangent and row.state is not None and row.state.theta is not None:
            diagonals.append(row.state.theta * row.r * row.r)
        elif self.tangent:
            diagonals.append(torch.zeros_like(row.r))
        return tuple(diagonals)

    def _check_memory(self, steps: Sequence[Step], size: int, x: Tensor, y: Tensor) -> None:
        """Refuse, before work, pictures too large for one pair of them or for what all rows know of themselves."""
        if records_graph() or x.device.type != "cpu":
            return
        where, bytes_each = type(self).__name__, x.element_size()
        pair = _TEMPORARIES * size * bytes_each
        positions = max((math.prod(step.positions) for step in steps), default=1)
        if pair > _ASK_BYTES:
            fix = "Use smaller pictures (an nn.AvgPool2d first), or nn.Flatten in place of pooling."
            checks.memory(where, f"one pair of rows with {positions} x {positions} pairs of positions", pair, fix)
        rows = sum(math.prod(step.positions) for step in steps) * (len(x) + len(y)) * bytes_each
        if rows > _ASK_BYTES:
            fix = "Use kernel.matmul or the Gram matrix of fewer rows at a time."
            checks.memory(where, f"variances of {len(x) + len(y)} rows at all positions and layers", rows, fix)


def _is_full(steps: Sequence[Step], node: int) -> bool:
    return node > 0 and steps[node - 1].full


def _last_uses(steps: Sequence[Step]) -> list[int]:
    """The place of the last step that reads each node."""
    last = [-1] * (len(steps) + 1)
    for place, step in enumerate(steps):
        for node in step.inputs:
            last[node] = place
    return last


def _largest_state(steps: Sequence[Step]) -> int:
    """Numbers of the largest state of one pair of rows."""
    sizes = [math.prod(step.positions) ** (1 + step.full) for step in steps if not isinstance(step.rule, RawCall)]
    return max(sizes, default=1)


def _take_equal_positions(state: PairState, full: bool, wanted: bool, positions: int) -> PairState:
    """Equal positions of a state of all pairs, where only those are wanted."""
    if not full or wanted or not positions:
        return state
    return state.map(lambda t: diagonal(t, positions))
