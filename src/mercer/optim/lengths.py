"""How long the steps of a network's layers are, beside each other and beside what they move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import distributed
from .inverses import Direction
from .layers import Layer

TRUST = 0.1  # a step that moves hidden outputs by more of their size than this is shortened
_TRUST_READOUT = 3.0  # the same for logits, or a regression's outputs, which have to get where the targets are
_FRESH = 0.05  # weight of a new step in the mean of a factor

# Keys of a layer's state; all are checkpointed.
OUTPUT = "output"  # EMA of the mean square of the outputs
PLACES = "places"  # rows of one sample
BALANCE, BALANCED = "balance", "balanced"  # mean logarithm of the layer's factor, and of how many steps


class Move(NamedTuple):
    """A layer, its state, its direction and its rate."""

    layer: Layer
    state: dict[str, Any]
    direction: Direction
    lr: float


def measure_outputs(state: dict[str, Any], layer: Layer, inputs: Sequence[Tensor], rows: Tensor, weight: float) -> None:
    """Keep the mean square of a layer's outputs, averaged with this weight of the latest, over all ranks."""
    z = layer.apply(rows)
    total = z.square().sum(dtype=torch.float64)
    total, count = distributed.sum_over_ranks(torch.stack((total, total.new_tensor(float(z.numel()))))).tolist()
    fresh = total / count if count else 0.0
    state[OUTPUT] = fresh if OUTPUT not in state else state[OUTPUT] + weight * (fresh - state[OUTPUT])
    state[PLACES] = max(1, len(rows) // max(1, sum(len(x) for x in inputs)))


def choose_lengths(moves: Sequence[Move], readout: str | None, balance: float) -> list[float]:
    """What each direction is multiplied by, from one look at the products of all layers.

    The outputs of every layer but the read-out move, relative to their size, ``balance`` times as far as the logits,
    in the mean over steps, so that every step stays linear in the gradient. No step moves hidden outputs by more than
    a tenth of their size, or logits by more than three times theirs.

    Args:
        moves: The directions, each with a product that is no less than the squared change of the outputs.
        readout: Name of the layer that makes the logits. If it is not among the layers, the last one takes its place.
        balance: How far other layers' outputs move where the logits move by 1.
    """
    products = torch.stack([move.direction.product.double() for move in moves]).tolist()
    # mean squared change of a layer's outputs for a step at rate 1, and the outputs' own mean square
    squares = [max(0.0, product) / move.layer.outputs for move, product in zip(moves, products, strict=True)]
    sizes = [float(move.state[OUTPUT]) for move in moves]
    head = next((i for i, move in enumerate(moves) if move.layer.name == readout), None)
    if head is None:
        head, reference = len(moves) - 1, 1 / moves[-1].state[PLACES]  # its gradient is a sum over places
    else:
        reference, sizes[head] = 1.0, max(sizes[head], 1.0)
    lengths = []
    for i, (move, moved, size) in enumerate(zip(moves, squares, sizes, strict=True)):
        length, trust = reference, TRUST
        if i != head:
            # the factor that makes the layer's relative change that of the logits, averaged over steps
            state = move.state
            if min(moved, size, squares[head]) > 0:
                now = math.log(reference) + 0.5 * math.log(squares[head] / sizes[head] * size / moved)
                count = state[BALANCED] = state.get(BALANCED, 0) + 1
                before = state.get(BALANCE, now)
                state[BALANCE] = before + max(1 / count, _FRESH) * (now - before)
            length = balance * math.exp(state.get(BALANCE, 0.0))
        elif move.layer.name == readout:
            trust = _TRUST_READOUT
        # the bound
        far, limit = move.lr * length * moved**0.5, trust * size**0.5
        lengths.append(length * limit / far if far > limit > 0 else length)
    return lengths
