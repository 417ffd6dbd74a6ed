"""SGD in function space: each layer's gradient times the inverse second moment of the layer's inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks
from ..kernels import Kernel
from ..linalg import norms
from ..signals.layers import unwrap
from .base import Closure, descend, signed
from .directions import Direction, Part, Whole
from .fixed_kernel import fixed_kernel_direction, sample_inverse
from .layers import Layer
from .lengths import TRUST, Move, lengthened
from .listening import ListeningOptimizer, readout_of
from .preconditioner import NEXT, REFRESHES, Memory, Preconditioner

# Keys of the state of every parameter; the others are Preconditioner's and of a layer's weight.
MOMENTUM, BASE = "momentum", "base"  # the preconditioned momentum; or what the base optimizer keeps


class FunctionSpaceSGD(ListeningOptimizer):
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

    Every layer but the read-out gets a direction of such a length that its outputs move, relative to their size,
    ``balance`` times as far as the logits. Without this the layers of an MLP move too far, and convolutions hardly
    move. It does not change a network of one layer.

    Args:
        params: Parameters, named parameters or groups.
        lr: :math:`\eta`. ``"auto"`` is 1 less the momentum, made safe by the bound on the step; groups then hold it.
        model: Where the layers' inputs are seen, plain or wrapped in DDP.
        layers: Precondition all linear and (ungrouped) 2-d convolutional layers, or the last linear one.
        damping: :math:`\lambda` in units of the mean eigenvalue of the moment.
        momentum: Momentum of the preconditioned direction. Transformers want 0.9, with ``nesterov``.
        nesterov: Nesterov's momentum.
        weight_decay: Apart from the gradient, as in AdamW.
        ema: Memory of the moment, bias-corrected; 0 uses the latest batch alone and solves on the smaller side.
        update_every: Steps between two moments; at the start, steps 0, 1, 2, 4, ... have one.
        output_factor: Precondition at the layer's output as well, by the moment of D with unit mean diagonal (K-FAC
            with the empirical Fisher).
        graft: Give each layer's direction the norm of its gradient (``"sgd"``).
        balance: How far the outputs of other layers move, relative to their size, when the logits move by 1. It is
            averaged over steps, so that every step stays linear in the gradient. None changes no length.
        max_change: Shorten a layer's step so that its outputs move by at most this, in root mean square over rows
            and outputs. ``"auto"`` is a tenth of their size, three times the read-out's (at least 3), and a tenth of
            the size of parameters that take SGD steps; None is no bound.
        kernel: A fixed kernel on the model's inputs in place of :math:`G G^\top` (labelled so: the identity above
            then no longer holds); every step has its own matrix.
        base: Makes the optimizer of the remaining parameters from their list; None gives them SGD steps. Its rate
            for a parameter is multiplied by the ``lr`` of the parameter's group over the ``lr`` given here.
        exclude: Names of layers, or of modules that hold them, to leave with the remaining parameters.
        max_width: A layer with more columns uses the latest batch alone, on the dual side: memory n d, not d^2.
        max_rows: Approximate number of a convolution's patches used for a moment; every sample gives as many.
        rank_tolerance: Directions whose eigenvalue is at most this times :math:`\lambda + \rho` are treated alike,
            with :math:`\rho` their mean; ``state_of(weight)["error"]`` bounds what that changes. 0 inverts the whole
            moment, as do layers where more than half of the directions are above.
        drift: A moment that moved by at most this, relative to its norm, is renewed half as often from then on.
        foreach: Update parameters by torch's fused loops.
        maximize: Ascend.
        differentiable: Refused.
        capturable: Refused.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | str = "auto",
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
        balance: float | None = 4.0,
        max_change: float | str | None = "auto",
        kernel: Kernel | None = None,
        base: Callable[[list[Tensor]], Optimizer] | None = None,
        exclude: Sequence[str] = (),
        max_width: int = 4096,
        max_rows: int = 4096,
        rank_tolerance: float = 2.0,
        drift: float = 0.05,
        foreach: bool = True,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        where = "FunctionSpaceSGD"
        own: dict[str, Any] = {"momentum": _share(where, "momentum", momentum), "nesterov": bool(nesterov)}
        own |= {"weight_decay": checks.non_negative(where, "weight_decay", weight_decay), "foreach": foreach}
        own["lr"] = 1 - own["momentum"] if isinstance(lr, str) and checks.choice(where, "lr", lr, ("auto",)) else lr
        super().__init__(params, own, maximize=maximize, differentiable=differentiable, capturable=capturable)
        self.graft = checks.choice(where, "graft", graft, ("none", "sgd"))
        self.balance = None if balance is None else checks.positive(where, "balance", balance)
        self.max_change = _bound(where, max_change)
        self.kernel = kernel
        self.memory = Memory(
            damping=checks.positive(where, "damping", damping),
            ema=_share(where, "ema", ema),
            output_factor=output_factor,
            max_width=checks.integer(where, "max_width", max_width, 1),
            max_rows=checks.integer(where, "max_rows", max_rows, 1),
            rank_tolerance=checks.non_negative(where, "rank_tolerance", rank_tolerance),
            update_every=checks.integer(where, "update_every", update_every, 1),
            drift=checks.non_negative(where, "drift", drift),
        )
        chosen = self.choose_layers(model, layers, exclude)
        self._readout = readout_of(model)
        self._preconditioners = [Preconditioner(where, layer, self.memory) for layer in chosen]
        heard = {layer.name: layer.module for layer in chosen}
        self.listen_to(model, heard if kernel is None else {**heard, "": unwrap(model)})
        self._base: Optimizer | None = None
        self._base_rates: list[tuple[float, int]] = []  # of each group of the base: its rate, and which group of ours
        remaining = self._remaining()
        if base is not None and remaining:
            self._base = base(remaining)
            self._split_base()

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        directions = self._directions()
        rest = set() if self._base is None else {id(p) for g in self._base.param_groups for p in g["params"]}
        for group in self.param_groups:
            own = [p for p in group["params"] if p.grad is not None and id(p) not in rest]
            if not group["momentum"]:
                others = [p for p in own if id(p) not in directions]
                descend(others, self._bounded_gradients(others, float(group["lr"])), group)
                own = [p for p in own if id(p) in directions]
            for p in own:
                self._move(p, *directions.get(id(p), (Whole(p.grad), 1.0)), group)
        self._step_base()
        self._recorder.clear()
        self._listen(self.steps + 1)

    def _move(self, p: Tensor, direction: Part, scale: float, group: dict[str, Any]) -> None:
        alpha, momentum = signed(group), group["momentum"]
        if group["weight_decay"]:
            p.mul_(1 - float(group["lr"]) * group["weight_decay"])
        if not momentum:
            direction.add_to(p, alpha * scale)
            return
        if MOMENTUM not in self.state_of(p):
            self.state_of(p)[MOMENTUM] = torch.zeros_like(p)
        buffer = self.state_of(p)[MOMENTUM].mul_(momentum)
        direction.add_to(buffer, scale)
        p.add_(buffer, alpha=alpha * (momentum if group["nesterov"] else 1.0))
        if group["nesterov"]:
            direction.add_to(p, alpha * scale)

    def _bounded_gradients(self, parameters: list[Tensor], lr: float) -> list[Tensor]:
        """The gradients of parameters that take SGD steps, no step longer than a tenth of the values' size, or of 1."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.max_change != "auto" or not gradients:
            return gradients
        sizes = torch.stack(norms(parameters)).tolist()
        lengths = torch.stack(norms(gradients)).tolist()
        limits = [TRUST * max(size, p.numel() ** 0.5) for p, size in zip(parameters, sizes, strict=True)]
        return [
            g if lr * length <= limit else g * (limit / (lr * length))
            for g, length, limit in zip(gradients, lengths, limits, strict=True)
        ]

    @override
    def state_dict(self) -> dict[str, Any]:
        """The state, with that of the base optimizer."""
        self._keep_base_state()
        own: dict[str, Any] = super().state_dict()
        return own

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and that of the base optimizer."""
        super().load_state_dict(state_dict)
        if self._base is not None:
            parameters = [p for group in self._base.param_groups for p in group["params"]]
            states = dict(enumerate(self.state_of(p).get(BASE, {}) for p in parameters))
            if "base" in state_dict:  # until version 0.2 beside our own state, by the parameters' numbers
                states = copy.deepcopy(state_dict["base"]["state"])
            states = {index: state for index, state in states.items() if state}
            self._base.load_state_dict({"state": states, "param_groups": self._base.state_dict()["param_groups"]})
            self._keep_base_state()
        self._listen(self.steps)

    def _listen(self, step: int) -> None:
        """Hear the layers whose moments are due at this step; a fixed kernel sees every pass."""
        layers = [p.layer for p in self._preconditioners]
        due = [a.name for a in layers if self.kernel is not None or self.state_of(a.weight).get(NEXT, 0) <= step]
        self._recorder.listen(due if self.kernel is None else [*due, ""])

    def _directions(self) -> dict[int, tuple[Part, float]]:
        """The preconditioned direction of every parameter that has one, by the parameter's ``id``."""
        inverse = None
        if self.kernel is not None and self._recorder.records[""].inputs:
            inverse = sample_inverse(self.kernel, self._recorder.records[""], self.memory.damping)
        rates = {id(p): float(group["lr"]) for group in self.param_groups for p in group["params"]}
        moves, owners, unheard = [], {}, []
        for own in self._preconditioners:
            layer = own.layer
            if layer.weight.grad is None:
                continue
            if self._is_unheard(layer, inverse):
                unheard.append(layer)
            direction = self._direction(own, inverse)
            if direction is not None:
                moves.append(Move(layer, self.state_of(layer.weight), direction, rates[id(layer.weight)]))
                owners[layer.name] = own
        self.warn_unheard(unheard)
        if self.kernel is None and moves:
            balance = self.balance if self.graft == "none" else None
            moves = lengthened(
                moves,
                self._readout,
                balance,
                self.max_change,
                lambda move: owners[move.layer.name].change(move.state, move.direction),
            )
        return {key: part for move in moves for key, part in move.layer.keyed(move.direction).items()}

    def _direction(self, own: Preconditioner, inverse: Tensor | None) -> Direction | None:
        layer = own.layer
        state, record = self.state_of(layer.weight), self._recorder.records[layer.name]
        if self.kernel is not None:
            if inverse is None or not record.inputs:
                return None
            u = fixed_kernel_direction(layer, record, inverse)
            return self._grafted(own, layer.whole(u, u.new_zeros(())))
        if record.inputs:
            own.refresh(state, record, self.steps)
        return self._grafted(own, own.direction(state)) if REFRESHES in state else None

    def _is_unheard(self, layer: Layer, inverse: Tensor | None) -> bool:
        """Whether a layer was to be heard before this step, and was not."""
        due = self.kernel is not None or self.state_of(layer.weight).get(NEXT, 0) <= self.steps
        heard = self._recorder.records[layer.name].inputs and (self.kernel is None or inverse is not None)
        return due and not heard

    def _grafted(self, own: Preconditioner, u: Direction) -> Direction:
        if self.graft == "none":
            return u
        norm = u.squares() ** 0.5
        return u.scaled(float(own.layer.gradient().norm()) / norm if norm else 1.0)

    def _split_base(self) -> None:
        """Give the base a group for each of our groups, so that each can have a rate of its own."""
        assert self._base is not None
        ours = {id(p): i for i, group in enumerate(self.param_groups) for p in group["params"]}
        groups = []
        for group in self._base.param_groups:
            for i in sorted({ours[id(p)] for p in group["params"]}):
                groups.append({**group, "params": [p for p in group["params"] if ours[id(p)] == i]})
                self._base_rates.append((float(group["lr"]), i))
        self._base.param_groups[:] = groups

    def _step_base(self) -> None:
        if self._base is not None:
            full = float(self.defaults["lr"])
            for group, (rate, i) in zip(self._base.param_groups, self._base_rates, strict=True):
                group["lr"] = rate * float(self.param_groups[i]["lr"]) / full if full else 0.0
            self._base.step()
            self._keep_base_state()

    def _keep_base_state(self) -> None:
        """Let our state refer to the base's: checkpoints know no state but that of parameters."""
        if self._base is not None:
            for p in (p for group in self._base.param_groups for p in group["params"]):
                if p in self._base.state:
                    self.state_of(p)[BASE] = self._base.state[p]

    def _remaining(self) -> list[Tensor]:
        layers = [own.layer for own in self._preconditioners]
        taken = {id(p) for layer in layers for p in (layer.weight, layer.bias) if p is not None}
        return [p for p in self.parameters if id(p) not in taken]


def _share(where: str, name: str, value: float) -> float:
    if checks.non_negative(where, name, value) >= 1:
        raise ValueError(checks.sentence(where, f"{name} must be below 1", value))
    return float(value)


def _bound(where: str, most: float | str | None) -> float | str | None:
    if isinstance(most, str):
        return checks.choice(where, "max_change", most, ("auto",))
    return None if most is None else checks.positive(where, "max_change", most)
