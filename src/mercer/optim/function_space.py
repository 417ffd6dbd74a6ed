"""SGD in function space: each layer's gradient times the inverse second moment of the layer's inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks
from ..kernels import Kernel
from ..modules import last_linear, unwrap
from .base import CheckedOptimizer, Closure, descend
from .fixed_kernel import fixed_kernel_direction, sample_inverse
from .layer_factor import REFRESHES, LayerFactor, Memory
from .recording import Recorder, trained_layers

__all__ = ["FunctionSpaceSGD"]

MOMENTUM = "momentum"  # the one key of the state that is of every parameter; the others are LayerFactor's

_KINDS = (nn.Linear, nn.Conv2d)


class FunctionSpaceSGD(CheckedOptimizer):
    r"""SGD in function space, :math:`W' = W - \eta\, \nabla_W J\, (G^\top G / n + \lambda I)^{-1}`.

    G are the rows of n samples that the layer's weight multiplies, a column of ones for the bias included; of a
    convolution the patches, of a layer on tokens the tokens, and the product sums over them. :math:`\lambda` is
    ``damping`` times the mean eigenvalue. By the push-through identity this is
    :math:`D^\top (G G^\top / n + \lambda I)^{-1} G`, with D the gradient at the layer's output: the kernel SGD of
    chen2022 with the kernel of the layer's own features, at the place where dimensions fit. The order of samples does
    not matter, the step descends, and for squared loss on a linear layer it is the Gauss-Newton step.

    It needs one forward hook for each layer and a plain ``backward()``, and acts on ``p.grad``: clipping,
    accumulation, loss scaling, frozen parameters and DDP keep their meaning. Layers are chosen at construction;
    parameters of groups added later take SGD steps.

    Args:
        params: Parameters, named parameters or groups.
        lr: :math:`\eta`; 0.3 suits most networks at the default damping.
        model: Where the layers' inputs are seen, plain or wrapped in DDP.
        layers: Precondition all linear and (ungrouped) 2-d convolutional layers, or the last linear one.
        damping: :math:`\lambda` in units of the mean eigenvalue of the moment.
        momentum: Of the preconditioned direction.
        nesterov: Nesterov's momentum.
        weight_decay: Apart from the gradient, as in AdamW.
        ema: Memory of the moment, bias-corrected; 0 uses the latest batch alone and solves on the smaller side.
        update_every: Steps between two moments; before, steps 0, 1, 2, 4, ... have one.
        output_factor: Precondition at the layer's output as well, by the moment of D with unit mean diagonal (K-FAC
            with the empirical Fisher).
        graft: Give each layer's direction the norm of its gradient (``"sgd"``).
        max_change: Shorten a layer's step so that its outputs move by at most this, in root mean square over rows
            and outputs; None for no bound. 3 is out of a sane step's way.
        kernel: A fixed kernel on the model's inputs in the place of :math:`G G^\top` (labelled so: the identity above
            then no longer holds); every step has its own matrix.
        base: Makes the optimizer of the remaining parameters from their list; None gives them SGD steps. Its rate
            follows ours in proportion.
        exclude: Names of layers, or of modules that hold them, to leave with the remaining parameters.
        max_width: A layer with more columns uses the latest batch alone, on the dual side: memory n d, not d^2.
        max_rows: Patches of a convolution used for a moment, about; every sample gives as many.
        foreach: Update parameters by torch's fused loops.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        model: nn.Module,
        layers: str = "all",
        damping: float = 1.0,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        ema: float = 0.95,
        update_every: int = 10,
        output_factor: bool = False,
        graft: str = "none",
        max_change: float | None = 3.0,
        kernel: Kernel | None = None,
        base: Callable[[list[Tensor]], Optimizer] | None = None,
        exclude: Sequence[str] = (),
        max_width: int = 4096,
        max_rows: int = 4096,
        foreach: bool = True,
    ) -> None:
        where = "FunctionSpaceSGD"
        own = {"momentum": _share(where, "momentum", momentum), "nesterov": bool(nesterov)}
        own |= {"weight_decay": checks.non_negative(where, "weight_decay", weight_decay), "foreach": foreach}
        super().__init__(params, {"lr": lr, **own, "steps": 0})
        self.update_every = checks.integer(where, "update_every", update_every, 1)
        self.graft = checks.choice(where, "graft", graft, ("none", "sgd"))
        self.max_change = None if max_change is None else checks.positive(where, "max_change", max_change)
        self.kernel = kernel
        self.memory = Memory(
            damping=checks.positive(where, "damping", damping),
            ema=_share(where, "ema", ema),
            output_factor=output_factor,
            max_width=checks.integer(where, "max_width", max_width, 1),
            max_rows=checks.integer(where, "max_rows", max_rows, 1),
        )
        chosen = self._chosen(model, checks.choice(where, "layers", layers, ("all", "last")), exclude)
        if not chosen:
            checks.warn(where, "params hold no weight of a linear or convolutional layer of model; all take SGD steps.")
        self._factors = [LayerFactor(where, name, m, self._own_bias(m), self.memory) for name, m in chosen.items()]
        self._recorder = Recorder(where, model, {**chosen, **({} if kernel is None else {"": unwrap(model)})})
        self._warned: set[str] = set()
        remaining = self._remaining()
        self._base = base(remaining) if base is not None and remaining else None
        self._base_rates = [] if self._base is None else [float(g["lr"]) for g in self._base.param_groups]
        self._first_rate = float(self.param_groups[0]["lr"])

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        directions = self._directions()
        rest = set() if self._base is None else {id(p) for g in self._base.param_groups for p in g["params"]}
        for group in self.param_groups:
            own = [p for p in group["params"] if p.grad is not None and id(p) not in rest]
            moves = [directions.get(id(p), p.grad) for p in own]
            if group["momentum"]:
                moves = [self._with_momentum(p, u, group) for p, u in zip(own, moves, strict=True)]
            descend(own, moves, float(group["lr"]), decay=group["weight_decay"], foreach=group["foreach"])
        self._step_base()
        self.param_groups[0]["steps"] += 1
        self._recorder.clear()
        self._recorder.listen(self._due())

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the inputs that belong to them."""
        super().zero_grad(set_to_none)
        self._recorder.clear()

    def close(self) -> None:
        """Take the hooks off the model."""
        self._recorder.close()

    @override
    def state_dict(self) -> dict[str, Any]:
        """The state, with that of the base optimizer."""
        own: dict[str, Any] = super().state_dict()
        return own if self._base is None else {**own, "base": self._base.state_dict()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and that of the base optimizer."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "base"})
        if self._base is not None:
            self._base.load_state_dict(state_dict["base"])
        self._recorder.listen(self._due())

    def _due(self) -> bool:
        steps = self.param_groups[0]["steps"]
        early = steps < self.update_every and steps & (steps - 1) == 0  # 0, 1, 2, 4, 8: the first moments are poor
        return bool(self.kernel is not None or early or steps % self.update_every == 0)

    def _directions(self) -> dict[int, Tensor]:
        """The preconditioned direction of every parameter that has one, by the parameter's ``id``."""
        inverse = None
        if self.kernel is not None and self._recorder.records[""].inputs:
            inverse = sample_inverse(self.kernel, self._recorder.records[""], self.memory.damping)
        found: list[tuple[LayerFactor, Tensor]] = []
        products: list[Tensor] = []
        for factor in self._factors:
            if factor.weight.grad is not None and (made := self._direction(factor, inverse)) is not None:
                found.append((factor, made[0]))
                products.append(torch.dot(made[0].flatten(), made[1].flatten()))
        if self.max_change is not None and self.kernel is None and found:
            found = self._bounded(found, products, self.max_change)
        return {key: u for factor, direction in found for key, u in factor.split(direction).items()}

    def _direction(self, factor: LayerFactor, inverse: Tensor | None) -> tuple[Tensor, Tensor] | None:
        state, record, gradient = self.state[factor.weight], self._recorder.records[factor.name], factor.gradient()
        if inverse is not None and record.inputs:
            return self._grafted(fixed_kernel_direction(factor, record, inverse, gradient), gradient, gradient)
        if record.inputs:
            factor.refresh(state, record)
        if REFRESHES not in state:
            self._warn_unseen(factor.name)
            return None
        return self._grafted(*factor.direction(state, gradient), gradient)

    def _grafted(self, u: Tensor, against: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        if self.graft == "none":
            return u, against
        scale = gradient.norm() / u.norm().clamp(min=torch.finfo(u.dtype).tiny)
        return u * scale, against * scale

    def _bounded(
        self, found: list[tuple[LayerFactor, Tensor]], products: list[Tensor], most: float
    ) -> list[tuple[LayerFactor, Tensor]]:
        """Directions shortened where they move a layer's outputs by more than ``most``; one look at all layers."""
        rates = {id(p): float(group["lr"]) for group in self.param_groups for p in group["params"]}
        bounded = []
        for (factor, u), product in zip(found, torch.stack(products).tolist(), strict=True):
            lr = rates[id(factor.weight)]
            if lr * lr * product > most * most:  # the product alone is no less than the change: most steps end here
                change = lr * factor.change(self.state[factor.weight], u, product) ** 0.5
                u = u * min(1.0, most / change) if change else u
            bounded.append((factor, u))
        return bounded

    def _with_momentum(self, p: Tensor, u: Tensor, group: dict[str, Any]) -> Tensor:
        buffer = self.state[p].get(MOMENTUM)
        buffer = u.clone() if buffer is None else buffer.mul_(group["momentum"]).add_(u)
        self.state[p][MOMENTUM] = buffer
        return u.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer

    def _step_base(self) -> None:
        if self._base is not None:
            ratio = float(self.param_groups[0]["lr"]) / self._first_rate if self._first_rate else 0.0
            for group, rate in zip(self._base.param_groups, self._base_rates, strict=True):
                group["lr"] = rate * ratio
            self._base.step()

    def _warn_unseen(self, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            text = f"layer {name!r} has a gradient but its forward was never called; it takes plain SGD steps."
            checks.warn("FunctionSpaceSGD", text)

    def _chosen(self, model: nn.Module, layers: str, exclude: Sequence[str]) -> dict[str, nn.Module]:
        mine = [p for group in self.param_groups for p in group["params"]]
        found = trained_layers("FunctionSpaceSGD", model, mine, _KINDS, exclude)
        if layers == "last":
            last = last_linear(model)[0]
            found = {name: m for name, m in found.items() if name == last}
        return {name: m for name, m in found.items() if getattr(m, "groups", 1) == 1}

    def _own_bias(self, module: nn.Module) -> Tensor | None:
        bias = module._parameters.get("bias")
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        return bias if bias is not None and bias.requires_grad and id(bias) in mine else None

    def _remaining(self) -> list[Tensor]:
        taken = {id(p) for f in self._factors for p in (f.weight, f.bias) if p is not None}
        return [p for group in self.param_groups for p in group["params"] if id(p) not in taken]


def _share(where: str, name: str, value: float) -> float:
    if checks.non_negative(where, name, value) >= 1:
        raise ValueError(checks.sentence(where, f"{name} must be below 1", value))
    return float(value)
