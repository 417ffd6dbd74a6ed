"""What is remembered of a layer: its moments, when they are renewed, and what they make of a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import checks, distributed
from .directions import Direction, Whole
from .inverses import LowRank, damped_inverse, dual, dual_operator, low_rank_inverse, moment, ridge
from .layers import Layer
from .lengths import measure_outputs, outputs_of
from .recording import Record

# Keys of the state kept with a layer's weight; all of them are checkpointed.
REFRESHES = "refreshes"  # how often the moments were renewed
INTERVAL, NEXT = "interval", "next"  # steps between two renewals; the step of the next one
MOMENT, RIDGE = "moment", "ridge"  # EMA of G^T G / n; lambda
INVERSE = "inverse"  # its damped inverse
VECTORS, SHRINK, OUTSIDE, ERROR = "vectors", "shrink", "outside", "error"  # or its leading directions: see LowRank
ROWS, CORE = "rows", "core"  # or the dual side
OUTPUT_MOMENT, OUTPUT_INVERSE = "output_moment", "output_inverse"

_FORMS = ((INVERSE,), (VECTORS, SHRINK, OUTSIDE, ERROR), (ROWS, CORE))

State = dict[str, Any]


@dataclass(frozen=True)
class Memory:
    """How moments are kept: see the arguments of :class:`FunctionSpaceSGD`."""

    damping: float
    ema: float
    output_factor: bool
    max_width: int
    max_rows: int
    rank_tolerance: float
    update_every: int
    drift: float


class Preconditioner:
    """Moments of one layer, held in the optimizer's state of its weight.

    Args:
        where: The optimizer's name, for messages.
        layer: The layer.
        memory: How moments are kept.
    """

    def __init__(self, where: str, layer: Layer, memory: Memory) -> None:
        self.where = where
        self.layer = layer
        self.memory = memory

    def refresh(self, state: State, record: Record, step: int) -> None:
        """Renew the moments by the rows of the passes since the last step, and say when to do so again."""
        g = self.layer.rows(record, self.memory.max_rows)
        g = g.to(torch.promote_types(g.dtype, torch.float32))
        if not finite_everywhere(g):
            name = self.layer.name
            checks.warn(self.where, f"the input of layer {name!r} is not finite; its moment was left as it was.")
            return
        state[REFRESHES] = state.get(REFRESHES, 0) + 1
        n = distributed.global_slice(len(g))[1]  # all ranks must take the same side
        drift = 1.0
        if g.shape[1] > self.memory.max_width or (self.memory.ema == 0 and n < g.shape[1]):
            rows, core, lam = dual(g, self.memory.damping, where=self.where)
            self._replace(state, {ROWS: rows, CORE: core, RIDGE: float(lam)})
        else:
            drift = self._average(state, MOMENT, moment(g))
            self._invert(state)
        measure_outputs(state, self.layer, record, self._weight(state))
        if self.memory.output_factor:
            self._refresh_output(state, record)
        self._schedule(state, step, drift)

    def direction(self, state: State) -> Direction:
        """The preconditioned gradient."""
        weight, bias = self.layer.gradients()
        if VECTORS in state:
            low = LowRank(state[VECTORS], state[SHRINK], state[OUTSIDE], state[ERROR])
            made = low.direction(weight, bias)
        else:
            g = self.layer.gradient()
            if CORE in state:
                u = (dual_operator(state[ROWS], state[CORE], state[RIDGE]) @ g.mT).mT.to(g.dtype)
            else:
                u = (g.to(state[INVERSE].dtype) @ state[INVERSE]).to(g.dtype)
            made = self.layer.whole(u, (u * g).sum())
        return self._at_output(state, made, weight, bias)

    def change(self, state: State, u: Direction) -> float:
        r"""Mean square by which u moves the layer's outputs: :math:`u A u^\top` over outputs and places.

        :math:`u (A + \lambda I) u^\top` is the product that the direction came with.
        """
        inside = float(u.product) - float(state[RIDGE]) * u.squares()
        return u.scale**2 * max(0.0, inside) / outputs_of(state, self.layer)

    def _invert(self, state: State) -> None:
        a, memory = state[MOMENT], self.memory
        lam = float(ridge(a.diagonal().mean(), memory.damping))
        found = None
        if memory.rank_tolerance:
            found = low_rank_inverse(a, lam, memory.rank_tolerance, state.get(VECTORS), state[REFRESHES])
        if found is not None:
            form = {VECTORS: found.vectors, SHRINK: found.shrink, OUTSIDE: found.outside, ERROR: found.error}
        else:
            form = {INVERSE: damped_inverse(a, memory.damping, where=self.where).to(a.dtype)}
        self._replace(state, {**form, RIDGE: lam})

    @staticmethod
    def _replace(state: State, form: State) -> None:
        for key in (key for keys in _FORMS for key in keys):
            state.pop(key, None)
        state.update(form)

    def _schedule(self, state: State, step: int, drift: float) -> None:
        """Steps 0, 1, 2, 4, ... have a moment; beyond ``update_every`` they get rarer while the moment is settled."""
        interval, shortest = state.get(INTERVAL, 0), self.memory.update_every
        if interval < shortest:
            interval = min(shortest, max(1, 2 * interval))
        elif drift <= self.memory.drift:
            interval = min(2 * interval, 32 * shortest)
        elif drift > 2 * self.memory.drift:
            interval = max(interval // 2, shortest)
        state[INTERVAL], state[NEXT] = interval, step + interval

    def _at_output(self, state: State, u: Direction, weight: Tensor, bias: Tensor | None) -> Direction:
        if OUTPUT_INVERSE not in state:
            return u
        left = state[OUTPUT_INVERSE].to(weight.dtype)
        w = left @ u.weight.dense().to(weight.dtype)
        product = (w * (left @ weight)).sum()
        if u.bias is None or bias is None:
            return Direction(Whole(w), None, product)
        b = left @ u.bias.dense().to(bias.dtype)
        return Direction(Whole(w), Whole(b), product + (b * (left @ bias)).sum())

    def _refresh_output(self, state: State, record: Record) -> None:
        d = self.layer.output_gradients(record)  # (n, c)
        b = moment(d.to(torch.promote_types(d.dtype, torch.float32)))
        mean = b.diagonal().mean()
        if bool(mean > 0):
            self._average(state, OUTPUT_MOMENT, b / mean)  # free of any scale of the loss
            inverse = damped_inverse(state[OUTPUT_MOMENT], self.memory.damping, where=self.where)
            state[OUTPUT_INVERSE] = inverse.to(b.dtype)

    def _average(self, state: State, key: str, fresh: Tensor) -> float:
        """Move the average towards a fresh moment; by how much of its norm it moved."""
        if key not in state or self.memory.ema == 0:
            state[key] = fresh
            return 1.0
        before = state[key].to(fresh.dtype)
        state[key] = torch.lerp(before, fresh, self._weight(state))
        norm = float(state[key].norm())
        return float((state[key] - before).norm()) / norm if norm else 0.0

    def _weight(self, state: State) -> float:
        """Weight of a fresh value in a bias-corrected average."""
        kept = self.memory.ema
        return float((1 - kept) / (1 - kept ** state[REFRESHES]))


def finite_everywhere(g: Tensor) -> bool:
    """Whether the squares of every rank's rows are finite: what one rank leaves out, all leave out."""
    bad = (~g.square().sum().isfinite()).long()
    return not bool(distributed.sum_over_ranks(bad))
