"""EigenPro: SGD with the leading directions of the features made as flat as the rest, and a rate of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks, distributed
from .base import Closure, descend
from .inverses import LowRank
from .layers import Layer
from .listening import ListeningOptimizer
from .preconditioner import finite_everywhere
from .recording import Record

__all__ = ["EigenProSGD", "eigenpro_plan"]

# Keys of the state kept with a layer's weight; all of them are checkpointed.
TOTAL, ROWS, NEXT = "total", "rows", "next"  # sum of g g^T, rows in it, rows at the next decomposition
VECTORS, SHRINK, RATE = "vectors", "shrink", "rate"

_ROWS = 4096  # patches of a convolution, or tokens, that a batch gives


class EigenProSGD(ListeningOptimizer):
    r"""SGD with :math:`u = \nabla J\, (I - \sum_{i \le k} (1 - \lambda_{k+1} / \lambda_i)\, e_i e_i^\top)`, untuned.

    :math:`(\lambda_i, e_i)` is the eigensystem of the second moment of a layer's inputs (its features), learned from
    the batches as they come and decomposed anew whenever the rows seen have doubled. k is the least number for which
    the critical batch size :math:`\beta / \lambda_{k+1}` reaches twice the batch, with :math:`\beta` the largest
    squared norm of a preconditioned row, and the rate is :math:`\eta = m / (\beta + (m - 1) \lambda_{k+1})` (Ma,
    Bassily and Belkin 2018, Theorem 4; the preconditioner of Ma and Belkin 2017). Made for a read-out on
    fixed features, where it needs no tuning; the loss should have curvature of at most 1 in its logits, as
    cross-entropy and half the squared error have.

    Args:
        params: Parameters, named parameters or groups.
        lr: ``"auto"`` for the rate above (the groups' ``lr`` is then a factor, 1, that schedulers may change), or a
            number in its place.
        model: Where the features are seen, plain or wrapped in DDP.
        layers: The last linear layer, or all linear and 2-d convolutional ones, each with its own eigensystem and rate.
        k: Directions to flatten; None chooses as above.
        rest_lr: Rate of SGD steps for all other parameters.
        max_samples: Rows after which the eigensystem is final.
        exclude: Names of layers to leave to plain SGD.
        foreach: Update parameters by torch's fused loops.
        maximize: Ascend.
        differentiable: Refused.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | str = "auto",
        *,
        model: nn.Module,
        layers: str = "last",
        k: int | None = None,
        rest_lr: float = 0.01,
        max_samples: int = 20_000,
        exclude: tuple[str, ...] = (),
        foreach: bool = True,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        where = "EigenProSGD"
        if isinstance(lr, str):
            checks.choice(where, "lr", lr, ("auto",))
        self.automatic = isinstance(lr, str)
        options = {"lr": 1.0 if isinstance(lr, str) else lr, "foreach": foreach}
        super().__init__(params, options, maximize=maximize, differentiable=differentiable)
        self.k = None if k is None else checks.integer(where, "k", k, 0)
        self.rest_lr = checks.non_negative(where, "rest_lr", rest_lr)
        self.max_samples = checks.integer(where, "max_samples", max_samples, 1)
        self._layers = self.choose_layers(model, layers, exclude)
        self.listen_to(model, {layer.name: layer.module for layer in self._layers})

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        directions: dict[int, Tensor] = {}
        for layer in self._layers:
            state, record = self.state[layer.weight], self._recorder.records[layer.name]
            if layer.weight.grad is not None and (record.inputs or RATE in state):
                if record.inputs and state.get(ROWS, 0) < self.max_samples:
                    self._learn(layer, state, record)
                directions |= self._direction(layer, state)
        for group in self.param_groups:
            own = [p for p in group["params"] if p.grad is not None]
            rest = self.rest_lr * (float(group["lr"]) if self.automatic else 1.0)
            for rate, chosen in (
                (None, [p for p in own if id(p) in directions]),
                (rest, [p for p in own if id(p) not in directions]),
            ):
                descend(chosen, [directions.get(id(p), p.grad) for p in chosen], group, rate)
        self._recorder.clear()

    def _direction(self, layer: Layer, state: dict[str, Any]) -> dict[int, Tensor]:
        outside = 1 / state[RATE] if self.automatic else 1.0
        u = LowRank(state[VECTORS], state[SHRINK], outside, 0.0).direction(*layer.gradients())
        return layer.keyed(u.weight, u.bias)

    def _learn(self, layer: Layer, state: dict[str, Any], record: Record) -> None:
        g = layer.rows(record, _ROWS).double()  # (n, d)
        if not finite_everywhere(g):
            checks.warn("EigenProSGD", f"the input of layer {layer.name!r} is not finite; it was not learned from.")
            return
        rows = distributed.sum_over_ranks(torch.tensor(float(len(g)), dtype=torch.float64, device=g.device))
        total = distributed.sum_over_ranks(g.mT @ g)
        state[TOTAL] = total if TOTAL not in state else state[TOTAL] + total
        state[ROWS] = state.get(ROWS, 0) + int(rows)
        if state[ROWS] >= state.get(NEXT, 0):
            state[NEXT] = 2 * state[ROWS]
            batch = distributed.gather_rows(g)
            k, vectors, shrink, rate = eigenpro_plan(state[TOTAL] / state[ROWS], batch, state[ROWS], self.k)
            dtype = layer.weight.dtype
            state.update({VECTORS: vectors[:, :k].to(dtype), SHRINK: shrink.to(dtype), RATE: rate})


def eigenpro_plan(
    a: Tensor, batch: Tensor, rows: int, k: int | None = None
) -> tuple[int, Tensor, Tensor, float]:  # (d, d), (m, d)
    r"""k, the eigenvectors ``(d, d)``, the factors :math:`1 - \lambda_{k+1} / \lambda_i` ``(k,)``, and the rate.

    Args:
        a: Second moment of the features.
        batch: A batch of them.
        rows: How many rows the moment has: at most half as many directions are trusted.
        k: Directions to flatten; None takes the least for which the critical batch size is twice the batch.
    """
    values, vectors = torch.linalg.eigh(a)
    values, vectors = values.flip(0), vectors.flip(1)
    floor = values[0].clamp(min=torch.finfo(values.dtype).tiny) * 1e-12
    values = values.clamp(min=floor)
    m, most = len(batch), max(0, min(len(values) - 1, rows // 2))
    energies = (batch @ vectors).square()  # (m, d)
    tail = energies.sum(1, keepdim=True) - energies.cumsum(1) + energies  # (m, d): energy from direction j on
    scaled = (energies / values).cumsum(1) - energies / values  # energy over eigenvalue before direction j
    beta = (tail + values * scaled).max(0).values  # (d,): largest row once the first j directions are flat
    reached = (beta / values >= 2 * m).nonzero()
    if k is None:
        k = min(most, int(reached[0, 0]) if len(reached) else most)
    k = min(k, len(values) - 1)
    rate = m / (beta[k] + (m - 1) * values[k])
    return k, vectors, 1 - values[k] / values[:k], float(rate)
