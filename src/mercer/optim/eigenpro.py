"""EigenPro: SGD with the leading directions of the features made as flat as the rest, and a rate of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks, distributed
from ..modules import last_linear
from .base import CheckedOptimizer, Closure, descend
from .layer_factor import LayerFactor, Memory, finite_everywhere
from .recording import Record, Recorder, trained_layers

__all__ = ["EigenProSGD", "eigenpro_plan"]

# Keys of the state kept with a layer's weight; all of them are checkpointed.
TOTAL, ROWS, NEXT = "total", "rows", "next"  # sum of g g^T, rows in it, rows at the next decomposition
VECTORS, SHRINK, RATE = "vectors", "shrink", "rate"


class EigenProSGD(CheckedOptimizer):
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
    ) -> None:
        where = "EigenProSGD"
        if isinstance(lr, str):
            checks.choice(where, "lr", lr, ("auto",))
        self.automatic = isinstance(lr, str)
        super().__init__(params, {"lr": 1.0 if isinstance(lr, str) else lr, "foreach": foreach})
        self.k = None if k is None else checks.integer(where, "k", k, 0)
        self.rest_lr = checks.non_negative(where, "rest_lr", rest_lr)
        self.max_samples = checks.integer(where, "max_samples", max_samples, 1)
        checks.choice(where, "layers", layers, ("last", "all"))
        chosen = self._chosen(model, layers, exclude)
        if not chosen:
            checks.warn(where, "params hold no weight of a chosen layer of model; all take SGD steps.")
        memory = Memory(damping=0.0, ema=0.0, output_factor=False, max_width=0, max_rows=4096)
        self._factors = [LayerFactor(where, name, m, self._own_bias(m), memory) for name, m in chosen.items()]
        self._recorder = Recorder(where, model, chosen)

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        directions: dict[int, Tensor] = {}
        for factor in self._factors:
            state, record = self.state[factor.weight], self._recorder.records[factor.name]
            if factor.weight.grad is not None and (record.inputs or RATE in state):
                if record.inputs and state.get(ROWS, 0) < self.max_samples:
                    self._learn(factor, state, record)
                directions |= factor.split(self._direction(state, factor.gradient()))
        for group in self.param_groups:
            lr = float(group["lr"])
            own = [p for p in group["params"] if p.grad is not None]
            rest = self.rest_lr * (lr if self.automatic else 1.0)
            for mine, rate in ((True, lr), (False, rest)):
                chosen = [p for p in own if (id(p) in directions) is mine]
                descend(chosen, [directions.get(id(p), p.grad) for p in chosen], rate, foreach=group["foreach"])
        self._recorder.clear()

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the inputs that belong to them."""
        super().zero_grad(set_to_none)
        self._recorder.clear()

    def close(self) -> None:
        """Take the hooks off the model."""
        self._recorder.close()

    def _direction(self, state: dict[str, Any], gradient: Tensor) -> Tensor:
        vectors = state[VECTORS]
        u: Tensor = gradient - (gradient @ vectors * state[SHRINK]) @ vectors.mT
        return u.mul(state[RATE]) if self.automatic else u

    def _learn(self, factor: LayerFactor, state: dict[str, Any], record: Record) -> None:
        g = factor.rows(record).double()  # (n, d)
        if not finite_everywhere(g):
            checks.warn("EigenProSGD", f"the input of layer {factor.name!r} is not finite; it was not learned from.")
            return
        rows = distributed.sum_over_ranks(torch.tensor(float(len(g)), dtype=torch.float64, device=g.device))
        total = distributed.sum_over_ranks(g.mT @ g)
        state[TOTAL] = total if TOTAL not in state else state[TOTAL] + total
        state[ROWS] = state.get(ROWS, 0) + int(rows)
        if state[ROWS] >= state.get(NEXT, 0):
            state[NEXT] = 2 * state[ROWS]
            batch = distributed.gather_rows(g)
            k, vectors, shrink, rate = eigenpro_plan(state[TOTAL] / state[ROWS], batch, state[ROWS], self.k)
            dtype = factor.weight.dtype
            state.update({VECTORS: vectors[:, :k].to(dtype), SHRINK: shrink.to(dtype), RATE: rate})

    def _chosen(self, model: nn.Module, layers: str, exclude: tuple[str, ...]) -> dict[str, nn.Module]:
        mine = [p for group in self.param_groups for p in group["params"]]
        found = trained_layers("EigenProSGD", model, mine, (nn.Linear, nn.Conv2d), exclude)
        if layers == "last":
            last = last_linear(model)[0]
            found = {name: m for name, m in found.items() if name == last}
        return {name: m for name, m in found.items() if getattr(m, "groups", 1) == 1}

    def _own_bias(self, module: nn.Module) -> Tensor | None:
        bias = module._parameters.get("bias")
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        return bias if bias is not None and bias.requires_grad and id(bias) in mine else None


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
