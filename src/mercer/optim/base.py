"""What the optimizers share: checked gradients, closures, one way to descend, a state that keeps its dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks
from ..linalg import add_in_place, norms, scale_in_place

STEPS = "steps"  # kept with the first parameter

Closure = Callable[[], Any]  # evaluates the loss, calls backward, returns the loss


class CheckedOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose variants write `update` alone.

    A step evaluates the closure, refuses sparse, complex and non-finite gradients before any parameter has changed,
    and updates. The state keeps its dtype through ``load_state_dict``: torch would cast float64 factors to the
    parameter's dtype. ``copy.deepcopy`` and ``pickle`` keep every attribute; the parameters are copied with it.

    Args:
        params: Parameters, named parameters or groups.
        defaults: Options of a group.
        maximize: Ascend in place of descending.
        differentiable: Refused: a step is not part of any graph.
        capturable: Refused: a step looks at numbers on the host, which no CUDA graph can.
    """

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        where = type(self).__name__
        if differentiable:
            fix = "Differentiate through the steps of torch.optim.SGD instead."
            raise ValueError(checks.sentence(where, "differentiable must be False", differentiable, fix))
        if capturable:
            fix = "Capture the model's passes without the step: a step looks at numbers on the host."
            raise ValueError(checks.sentence(where, "capturable must be False", capturable, fix))
        super().__init__(params, {**defaults, "maximize": bool(maximize)})

    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        """Move the parameters, without autograd; ``live`` are those that have a gradient, checked."""
        raise NotImplementedError

    @override
    def step(self, closure: Closure | None = None) -> Any:
        """One step; with a closure, which evaluates the loss and calls backward, its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            live = self.live_parameters()
            if live:
                self.update(live, closure)
                self._first_state()[STEPS] = self.steps + 1
        return loss

    @property
    def steps(self) -> int:
        """How many steps have been taken."""
        return int(self._first_state().get(STEPS, 0))

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all groups, in order."""
        return [p for group in self.param_groups for p in group["params"]]

    def _first_state(self) -> dict[str, Any]:
        first: dict[str, Any] = self.state[self.param_groups[0]["params"][0]]
        return first

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own; complex ones are refused."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        where = type(self).__name__
        if not isinstance(group["lr"], str):
            checks.non_negative(where, "lr", float(group["lr"]))
        for name, p in self._named(group):
            if p.is_complex():
                fix = "Hold real and imaginary parts as two parameters."
                raise TypeError(checks.sentence(where, "parameters must be real", f"{p.dtype} in {name}", fix))

    def live_parameters(self) -> list[Tensor]:
        """The parameters with a gradient, in order.

        Raises:
            TypeError: A gradient is sparse.
            FloatingPointError: A gradient is not finite; no parameter has been changed.
        """
        live = [p for p in self.parameters if p.grad is not None]
        gradients = [p.grad for p in live if p.grad is not None]
        if any(g.is_sparse for g in gradients):
            self._refuse_sparse()
        if gradients and not _all_finite(gradients):
            self._refuse_non_finite()
        return live

    def _refuse_sparse(self) -> None:
        named = [pair for group in self.param_groups for pair in self._named(group)]
        got = next(f"{p.grad.layout} in {n}" for n, p in named if p.grad is not None and p.grad.is_sparse)
        fix = "Use sparse=False, or give it to torch.optim.SparseAdam."
        raise TypeError(checks.sentence(type(self).__name__, "gradients must be dense", got, fix))

    def _refuse_non_finite(self) -> None:
        named = [pair for group in self.param_groups for pair in self._named(group)]
        bad = [name for name, p in named if p.grad is not None and not bool(p.grad.isfinite().all())]
        if bad:  # a norm may overflow where every number is finite
            where, got = type(self).__name__, f"NaN or infinity in {', '.join(bad[:3])}"
            fix = "No parameter was changed: lower lr, or clip the gradients."
            raise FloatingPointError(checks.sentence(where, "gradients must be finite", got, fix))

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; tensors keep the dtype they were saved in and move to their parameter's device."""
        super().load_state_dict(state_dict)
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, p in zip(saved, self.parameters, strict=True):
            for key, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][key] = value.detach().to(p.device, copy=True)
        head = self.param_groups[0]
        for key in (STEPS, "estimates"):  # a state of version 0.1 counts in its first group
            if key in head:
                self._first_state()[key] = head[key]
        for group in self.param_groups:
            group.pop(STEPS, None), group.pop("estimates", None)
            group.setdefault("maximize", False)

    def __getstate__(self) -> dict[str, Any]:
        """All attributes but torch's hooks on steps, which no copy of a torch optimizer has."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_optimizer_")}

    @staticmethod
    def _named(group: dict[str, Any]) -> list[tuple[str, Tensor]]:
        names = group.get("param_names") or [f"the parameter of shape {tuple(p.shape)}" for p in group["params"]]
        return list(zip(names, group["params"], strict=True))


def _all_finite(gradients: list[Tensor]) -> bool:
    sizes = norms(gradients)  # one call for all, one look at the result
    same = len({(n.dtype, n.device) for n in sizes}) == 1
    return math.isfinite(float(torch.stack(sizes).sum()) if same else sum(map(float, sizes)))


def signed(group: dict[str, Any], lr: float | None = None) -> float:
    """What a direction is multiplied by: minus the rate, or plus where the group maximizes."""
    lr = float(group["lr"]) if lr is None else lr
    return lr if group["maximize"] else -lr


def descend(
    parameters: Sequence[Tensor], directions: Sequence[Tensor | None], group: dict[str, Any], lr: float | None = None
) -> None:
    r""":math:`p \leftarrow (1 - \eta \delta) p - \eta u`, or plus where the group maximizes.

    Args:
        parameters: p, changed in place.
        directions: u, of the parameters' shapes.
        group: Their options: ``lr`` :math:`\eta`, ``weight_decay`` :math:`\delta` (apart from the gradient),
            ``foreach`` (torch's fused loops, to the same result), ``maximize``.
        lr: :math:`\eta`, where it is not the group's.
    """
    if not parameters:
        return
    lr = float(group["lr"]) if lr is None else lr
    decay = 1 - lr * group.get("weight_decay", 0.0)
    alpha = signed(group, lr)
    if group["foreach"]:
        if decay != 1:
            scale_in_place(parameters, decay)
        add_in_place(parameters, directions, alpha)  # type: ignore[arg-type]
        return
    for p, u in zip(parameters, directions, strict=True):
        if decay != 1:
            p.mul_(decay)
        p.add_(u, alpha=alpha)  # type: ignore[arg-type]
