"""One layer's preconditioner: its moments, when they are renewed, and what they make of a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import checks, distributed
from .factors import Dual, damped_inverse, dual, moment, ridge
from .recording import Record, layer_rows

__all__ = ["LayerFactor", "Memory", "finite_everywhere"]

# Keys of the state kept with a layer's weight; all of them are checkpointed.
REFRESHES, PLACES = "refreshes", "places"  # how often the moments were renewed; outputs of one sample
MOMENT, INVERSE, RIDGE = "moment", "inverse", "ridge"  # EMA of G^T G / n, its damped inverse, lambda
ROWS, CORE = "rows", "core"  # the dual side, in their place
OUTPUT_MOMENT, OUTPUT_INVERSE = "output_moment", "output_inverse"

State = dict[str, Any]


@dataclass(frozen=True)
class Memory:
    """How moments are kept: see the arguments of :class:`FunctionSpaceSGD`."""

    damping: float
    ema: float
    output_factor: bool
    max_width: int
    max_rows: int


class LayerFactor:
    """Moments of one layer, held in the optimizer's state of its weight.

    Args:
        where: The optimizer's name, for messages.
        name: The layer's.
        module: ``nn.Linear`` or ``nn.Conv2d``.
        bias: The layer's bias where it is trained with the weight, else None.
        memory: How moments are kept.
    """

    def __init__(self, where: str, name: str, module: nn.Module, bias: Tensor | None, memory: Memory) -> None:
        self.where = where
        self.name = name
        self.module = module
        self.weight: Tensor = module._parameters["weight"]  # type: ignore[assignment]
        self.bias = bias
        self.memory = memory

    def gradient(self) -> Tensor:  # (c, d)
        """The gradient of weight and bias as one matrix."""
        assert self.weight.grad is not None
        g = self.weight.grad.reshape(len(self.weight), -1)
        if self.bias is None:
            return g
        column = self.bias.grad if self.bias.grad is not None else torch.zeros_like(self.bias)
        return torch.cat((g, column[:, None]), 1)

    def split(self, direction: Tensor) -> dict[int, Tensor]:
        """A direction ``(c, d)`` as one tensor for each parameter, in its shape, by the parameter's ``id``."""
        if self.bias is None:
            return {id(self.weight): direction.reshape(self.weight.shape)}
        parts = {id(self.weight): direction[:, :-1].reshape(self.weight.shape)}
        if self.bias.grad is not None:
            parts[id(self.bias)] = direction[:, -1]
        return parts

    def refresh(self, state: State, record: Record) -> None:
        """Renew the moments by the rows of the passes since the last step."""
        g = self.rows(record)
        if not finite_everywhere(g):
            checks.warn(self.where, f"the input of layer {self.name!r} is not finite; its moment was left as it was.")
            return
        state[REFRESHES] = state.get(REFRESHES, 0) + 1
        state[PLACES] = _places(self.module, record.inputs[0], record.gradients[0])
        n = distributed.global_slice(len(g))[1]  # all ranks must take the same side
        if g.shape[1] > self.memory.max_width or (self.memory.ema == 0 and n < g.shape[1]):
            side = dual(g, self.memory.damping, where=self.where)
            state.update({ROWS: side.rows, CORE: side.core, RIDGE: side.ridge})
            state.pop(INVERSE, None)
        else:
            a = state[MOMENT] = self._averaged(state, MOMENT, moment(g))
            state[INVERSE] = damped_inverse(a, self.memory.damping, where=self.where).to(self.weight.dtype)
            state[RIDGE] = ridge(a.diagonal().mean(), self.memory.damping)
            state.pop(CORE, None)
        if self.memory.output_factor:
            self._refresh_output(state, record)

    def direction(self, state: State, gradient: Tensor) -> tuple[Tensor, Tensor]:  # (c, d) -> (c, d), (c, d)
        """The preconditioned gradient u, and u (A + lambda I), by which `change` measures it."""
        if CORE in state:
            u = Dual(state[ROWS], state[CORE], state[RIDGE])(gradient)
        else:
            inverse = state[INVERSE]
            u = (gradient.to(inverse.dtype) @ inverse).to(gradient.dtype)
        if OUTPUT_INVERSE not in state:
            return u, gradient
        left = state[OUTPUT_INVERSE]
        return left @ u, left @ gradient

    def change(self, state: State, u: Tensor, product: float) -> float:
        r"""Mean square by which u moves the layer's outputs: :math:`u A u^\top` over outputs and places.

        Args:
            state: Of the weight.
            u: A direction.
            product: Its product with :math:`u (A + \lambda I)`, so that none with A is needed.
        """
        rest = float(state[RIDGE] * u.double().square().sum())
        return max(0.0, product - rest) / (len(u) * int(state[PLACES]))

    def rows(self, record: Record) -> Tensor:  # (n, d)
        """What weight and bias multiply, scaled so that the mean over rows is a sum over places, mean over samples.

        The gradient of a layer that sees a sample at many places (pixels, tokens) is a sum over them, and so must be
        its curvature: a mean made convolutions' steps as many times too long.
        """
        parts = []
        most = max(1, self.memory.max_rows // distributed.world_size())
        for x, gradient in zip(record.inputs, record.gradients, strict=True):
            g = layer_rows(self.module, x, bias=self.bias is not None, most=most)
            parts.append(g * _places(self.module, x, gradient) ** 0.5)
        return torch.cat(parts)

    def _refresh_output(self, state: State, record: Record) -> None:
        d = torch.cat([output_rows(self.module, g) for g in record.gradients])  # (n, c)
        b = moment(d)
        mean = b.diagonal().mean()
        if not bool(mean > 0):
            return
        b = state[OUTPUT_MOMENT] = self._averaged(state, OUTPUT_MOMENT, b / mean)  # free of any scale of the loss
        state[OUTPUT_INVERSE] = damped_inverse(b, self.memory.damping, where=self.where).to(self.weight.dtype)

    def _averaged(self, state: State, key: str, fresh: Tensor) -> Tensor:
        if key not in state or self.memory.ema == 0:
            return fresh
        kept = self.memory.ema
        weight = (1 - kept) / (1 - kept ** state[REFRESHES])  # of a bias-corrected average
        return torch.lerp(state[key], fresh, weight)


def finite_everywhere(g: Tensor) -> bool:
    """Whether the squares of every rank's rows are finite: what one rank leaves out, all leave out."""
    bad = (~g.double().square().sum().isfinite()).long()
    return not bool(distributed.sum_over_ranks(bad))


def _places(module: nn.Module, x: Tensor, gradient: Tensor) -> int:
    samples = len(x) if x.ndim > (3 if isinstance(module, nn.Conv2d) else 1) else 1
    return max(1, len(output_rows(module, gradient)) // max(1, samples))


def output_rows(module: nn.Module, gradient: Tensor) -> Tensor:  # (n, c)
    """The gradient at a layer's output, one row for each row of `layer_rows` (all places of a convolution)."""
    if isinstance(module, nn.Conv2d):
        gradient = gradient.movedim(-3, -1)
    return gradient.reshape(-1, gradient.shape[-1])
