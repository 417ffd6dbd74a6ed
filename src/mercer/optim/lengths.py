"""How long the steps of a network's layers are, beside each other and beside what they move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import distributed
from .directions import Direction
from .layers import Layer
from .recording import Record

TRUST = 0.1  # a step that moves hidden outputs by more of their size than this is shortened
_READOUT = 3.0  # of logits, or of a regression's outputs, that have to get where the targets are
_FRESH = 0.05  # weight of a new step in the mean of a factor

# Keys of the state kept with a layer's weight; all are checkpointed.
PLACES, OUTPUT = "places", "output"  # outputs of one sample and unit; EMA of the mean square of the outputs
BALANCE, BALANCED = "balance", "balanced"  # mean logarithm of the layer's factor, and of how many steps

State = dict[str, Any]


class Move(NamedTuple):
    """A layer, its state, its direction and its rate."""

    layer: Layer
    state: State
    direction: Direction
    lr: float


@dataclass(frozen=True)
class _Length:
    """What a direction at rate 1 does to its layer's outputs, in squares."""

    moved: float  # an upper bound on the mean square change of the outputs
    size: float  # their mean square; of logits at least 1
    readout: bool


def measure_outputs(state: State, layer: Layer, record: Record, weight: float) -> None:
    """Keep the size of a layer's outputs, averaged with this weight of the latest, over all ranks."""
    state[PLACES] = layer.places(record.inputs[0], record.gradients[0])
    z = torch.cat([x.flatten() for x in record.outputs]).double()
    total, count = distributed.sum_over_ranks(torch.stack((z.square().sum(), z.new_tensor(float(len(z)))))).tolist()
    fresh = total / count if count else 0.0
    state[OUTPUT] = fresh if OUTPUT not in state else state[OUTPUT] + weight * (fresh - state[OUTPUT])


def outputs_of(state: State, layer: Layer) -> int:
    """Outputs of one sample."""
    return len(layer.weight) * int(state[PLACES])


def lengthened(
    moves: Sequence[Move],
    readout: str | None,
    balance: float | None,
    most: float | str | None,
    change: Callable[[Move], float],
) -> list[Move]:
    """The directions at the length they are taken; one look at the products of all layers.

    Args:
        moves: The directions, each with a product that is no less than the squared change of the outputs.
        readout: Name of the layer that makes the logits; without it nothing is balanced.
        balance: How far other layers' outputs move, relative to their size, where the logits move by 1; None: as they
            do.
        most: Largest change of a layer's outputs; ``"auto"``: as much as their size allows; None: no bound.
        change: The mean square by which a move changes the outputs, where the bound has to be exact.
    """
    products = torch.stack([move.direction.product.double() for move in moves]).tolist()
    lengths = [_length(move, product, readout) for move, product in zip(moves, products, strict=True)]
    head = next((length for length in lengths if length.readout), None)
    made = []
    for move, length in zip(moves, lengths, strict=True):
        factor = 1.0
        if balance is not None and head is not None and length is not head:
            factor = balance * _balanced(move.state, length, head)
        longer = move._replace(direction=move.direction.scaled(factor))
        made.append(_bounded(longer, length, most, change))
    return made


def _length(move: Move, product: float, readout: str | None) -> _Length:
    moved = max(0.0, product) * move.direction.scale**2 / outputs_of(move.state, move.layer)
    last = move.layer.name == readout
    return _Length(moved, max(move.state[OUTPUT], 1.0) if last else float(move.state[OUTPUT]), last)


def _balanced(state: State, length: _Length, readout: _Length) -> float:
    """The factor by which a layer's outputs move, relative to their size, as far as the logits: a mean over steps."""
    if min(length.moved, length.size, readout.moved) > 0:
        now = 0.5 * math.log(readout.moved / readout.size * length.size / length.moved)
        count = state[BALANCED] = state.get(BALANCED, 0) + 1
        before = state.get(BALANCE, now)
        state[BALANCE] = before + max(1 / count, _FRESH) * (now - before)
    return math.exp(state.get(BALANCE, 0.0))


def _bounded(move: Move, length: _Length, most: float | str | None, change: Callable[[Move], float]) -> Move:
    if most is None:
        return move
    limit = most if not isinstance(most, str) else (_READOUT if length.readout else TRUST) * length.size**0.5
    far = move.lr * move.direction.scale * length.moved**0.5
    if far > limit and not isinstance(most, str):
        far = move.lr * change(move) ** 0.5  # the product alone is no less than the change: look closer
    return move._replace(direction=move.direction.scaled(limit / far)) if far > limit > 0 else move
