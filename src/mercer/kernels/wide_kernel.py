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
from ..linalg.torch_internals import differentiated, records_graph
from .base import Kernel
from .layer_rules import Affine, Layout, Own, Pool, RawCall, Rule, State, diagonal

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
    """The steps with all pairs of positions asked for where a later pooling needs them."""
    full = [False] * (len(steps) + 1)
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        if step.rule.ALL_PAIRS or full[place + 1]:
            for node in step.inputs:
                full[node] = True
    planned = []
    for place, step in enumerate(steps):
        planned.append(dataclasses.replace(step, full=full[place + 1] and len(step.positions) > 0))
    return tuple(planned)


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
        return self.kernels(x, y)[-1]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        steps = self.steps(tuple(x.shape[1:]))
        return self._diagonals(self._own(steps, x, tangent=self.tangent)[-1])[-1]

    def kernels(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:  # (n, ...), (m, ...) -> one or two of (n, m)
        """The NNGP kernel and, where the answer is the tangent kernel, that one too."""
        steps = self.steps(tuple(x.shape[1:]))
        size, symmetric = _largest_state(steps), y is x
        self._check_memory(steps, size, x, y)
        left = self._own(steps, x, tangent=self.tangent and symmetric)
        right = left if symmetric else self._own(steps, y, tangent=False)
        diagonals = self._diagonals(left[-1]) if symmetric else ()

        def pairs(rows: slice, columns: slice) -> tuple[Tensor, ...]:
            parts = self._tile(steps, [own.part(rows) for own in left], [own.part(columns) for own in right])
            if not symmetric or rows != columns:
                return parts
            own_pairs = torch.eye(parts[0].shape[0], dtype=torch.bool, device=x.device)
            return tuple(torch.where(own_pairs, d[rows, None], part) for d, part in zip(diagonals, parts, strict=True))

        # Tiles of at most `block_bytes`, near square because a symmetric matrix leaves half of them out.
        side = self.tile if size == 1 else max(1, math.isqrt(self.block_bytes // (x.element_size() * size)))
        whole = (slice(0, x.shape[0]), slice(0, y.shape[0]))
        if records_graph() or max(x.shape[0], y.shape[0]) <= side:
            return pairs(*whole)
        if not differentiated(x, y) and x.device.type == "cpu":
            dtype = left[-1].r.dtype
            grams = tuple(x.new_empty(len(x), len(y), dtype=dtype) for _ in range(2 if self.tangent else 1))
            fill_tiles(grams, pairs, symmetric=symmetric, side=side)
            return grams
        if size == 1:  # tiles only save the cache
            return pairs(*whole)
        strips = []
        for rows in slices(len(x), side):
            parts = zip(*(pairs(rows, columns) for columns in slices(len(y), side)), strict=True)
            strips.append([torch.cat(part, 1) for part in parts])
        return tuple(torch.cat(part) for part in zip(*strips, strict=True))

    def _own(self, steps: Sequence[Step], x: Tensor, *, tangent: bool) -> list[Own]:
        """What every row knows of itself at every node, some rows at a time where states of all positions are big."""
        size = _largest_state(steps)
        rows = max(1, self.block_bytes // (size * 8))
        if not any(step.full for step in steps) or records_graph() or x.shape[0] <= rows:
            return self._own_block(steps, x, tangent)
        blocks = [self._own_block(steps, x[part], tangent) for part in slices(x.shape[0], rows)]
        return [_joined(owns) for owns in zip(*blocks, strict=True)]

    def _own_block(self, steps: Sequence[Step], x: Tensor, tangent: bool) -> list[Own]:
        means = any(getattr(step.rule, "center", False) for step in steps)
        last_use = _last_uses(steps)
        owns = [Own(x)]
        for place, step in enumerate(steps):
            before = [owns[node] for node in step.inputs]
            after = step.rule.own(before, means)
            if not isinstance(step.rule, RawCall) and (step.full or tangent):
                # the state of each row with itself: correlations are 1 unless all pairs of positions are asked for
                full_before = step.full or step.rule.ALL_PAIRS
                layout = Layout(full_before, zipped=True)
                states = []
                for node, own in zip(step.inputs, before, strict=True):
                    if own.state is not None:
                        states.append(_narrowed(own.state, _is_full(steps, node), full_before, own.r.ndim - 1))
                after = after._replace(state=step.rule.pair(states, (before, after), (before, after), layout))
                if step.rule.ALL_PAIRS:
                    assert after.state is not None
                    after = after._replace(state=_narrowed(after.state, True, step.full, after.r.ndim - 1))
                if not step.full:
                    assert after.state is not None
                    after = after._replace(state=State(torch.ones_like(after.r), after.state.theta))
            owns.append(after)
            for node in step.inputs:
                if last_use[node] == place:
                    owns[node] = owns[node]._replace(state=None)
        return owns

    def _tile(self, steps: Sequence[Step], x: Sequence[Own], y: Sequence[Own]) -> tuple[Tensor, ...]:
        """The kernels of some rows with others."""
        states: list[State | None] = [None]
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
                    before.append(_narrowed(state, _is_full(steps, node), full_before, x[node].r.ndim - 1))
            sides = [([own[node] for node in step.inputs], own[place + 1]) for own in (x, y)]
            state = step.rule.pair(before, sides[0], sides[1], Layout(full_before, zipped=False))
            if step.rule.ALL_PAIRS:
                state = _narrowed(state, True, step.full, len(step.positions))
            states.append(State(state.rho, state.theta if self.tangent else None))
            for node in step.inputs:
                if last_use[node] == place:
                    states[node] = None
        last = states[-1]
        assert last is not None
        rx, ry = x[-1].r[:, None], y[-1].r[None]  # one after the other: their product may overflow
        gram = last.rho * rx * ry
        if not self.tangent:
            return (gram,)
        return gram, torch.zeros_like(gram) if last.theta is None else last.theta * rx * ry

    def _diagonals(self, own: Own) -> tuple[Tensor, ...]:
        if not self.tangent:
            return (own.r.square(),)
        theta = None if own.state is None else own.state.theta
        return own.r.square(), torch.zeros_like(own.r) if theta is None else theta * own.r * own.r

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


def _joined(owns: Sequence[Own]) -> Own:
    """Blocks of rows at one node, together."""

    def cat(tensors: Sequence[Tensor | None]) -> Tensor | None:
        known = [t for t in tensors if t is not None]
        return torch.cat(known) if known else None

    rho = cat([own.state.rho for own in owns if own.state is not None])
    theta = cat([own.state.theta for own in owns if own.state is not None])
    state = None if rho is None else State(rho, theta)
    r = torch.cat([own.r for own in owns])
    return Own(r, cat([own.mean for own in owns]), cat([own.unit for own in owns]), state)


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
    sizes = [
        math.prod(step.positions) ** (2 if step.full else 1) for step in steps if not isinstance(step.rule, RawCall)
    ]
    return max(sizes, default=1)


def _narrowed(state: State, full: bool, wanted: bool, positions: int) -> State:
    """Equal positions of a state of all pairs, where only those are wanted."""
    if not full or wanted or not positions:
        return state
    return State(diagonal(state.rho, positions), None if state.theta is None else diagonal(state.theta, positions))
