"""The base of all optimizers: checked gradients, closures, one way to descend, a state that keeps its dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from .. import checks, distributed
from ..linalg.torch_internals import add_in_place, leave_uncompiled, norms, scale_in_place

KEPT = "mercer"  # the one key of a parameter's state: a dictionary of all that is kept with the parameter
FORMAT, CURRENT = "format", 3  # kept with every parameter: what the other keys mean
STEPS = "steps"  # kept with the first trainable parameter

Closure = Callable[[], Any]  # evaluates the loss, calls backward, returns the loss


class CheckedOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose variants write `update` alone.

    A step evaluates the closure, refuses sparse, complex and non-finite gradients before any parameter has changed,
    and updates. The state keeps its dtype through ``load_state_dict``: torch would cast float64 factors to the
    parameter's dtype. ``copy.deepcopy`` and ``pickle`` keep every attribute; the parameters are copied with it.
    Every parameter must be whole and on every rank: DDP is served, ``fully_shard`` and ``ZeroRedundancyOptimizer``
    are refused.

    Args:
        params: Parameters, named parameters or groups.
        defaults: Options of a group.
        maximize: Ascend in place of descending.
    """

    remembers = True  # whether a step leaves something in the state, beside the count of steps
    looks_itself = False  # whether `update` looks at the gradients before it moves anything: one look in place of two

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        maximize: bool = False,
    ) -> None:
        self._ranks_agree = False
        super().__init__(params, {**defaults, "maximize": bool(maximize)})
        self._first_state()[STEPS] = 0

    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        """Move the parameters, without autograd; ``live`` are those that have a gradient, checked."""
        raise NotImplementedError

    @override
    @leave_uncompiled  # a step looks at numbers and edits hooks: a compiled training loop calls it as it is
    def step(self, closure: Closure | None = None) -> Any:
        """One step; with a closure, which evaluates the loss and calls backward, its value is returned."""
        if not self._ranks_agree and distributed.world_size() > 1:
            self._refuse_partitions()
        self._ranks_agree = True
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            live = self.live_parameters()
            if live:
                if not self.looks_itself:
                    sizes = norms([p.grad for p in live if p.grad is not None])
                    if len({(size.dtype, size.device) for size in sizes}) == 1:
                        total = float(torch.stack(sizes).sum())
                    else:
                        total = sum(map(float, sizes))
                    self.refuse_infinite(total)
                self.update(live, closure)
                first = self._first_state()
                first[STEPS] = first.get(STEPS, 0) + 1
        return loss

    @property
    def steps(self) -> int:
        """How many steps have been taken."""
        return int(self._first_state().get(STEPS, 0))

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all groups, in order."""
        return [p for group in self.param_groups for p in group["params"]]

    def state_of(self, p: Tensor) -> dict[str, Any]:
        """All that is kept with a parameter, by name.

        It lies one level below ``state[p]``: ``torch.distributed.checkpoint`` restores a flattened state by the keys
        that a new optimizer has, and everything below them; and it wants an entry for every trainable parameter.
        """
        entry = self.state[p]
        if KEPT not in entry:
            entry[KEPT] = {FORMAT: CURRENT}
        state: dict[str, Any] = entry[KEPT]
        return state

    def _first_state(self) -> dict[str, Any]:
        """The state that counts steps: the first trainable parameter's, even if it is frozen later."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state_of(p)
                if STEPS in state:
                    return state
        parameters = self.parameters
        return self.state_of(next((p for p in parameters if p.requires_grad), parameters[0]))

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own; complex and sharded ones are refused."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        where = type(self).__name__
        try:
            if not isinstance(group["lr"], str):
                checks.non_negative(where, "lr", float(group["lr"]))
            for name, p in _name_parameters(group):
                if p.is_complex():
                    fix = "Hold real and imaginary parts as two parameters."
                    raise TypeError(checks.sentence(where, "parameters must be real", f"{p.dtype} in {name}", fix))
                if hasattr(p, "to_local"):  # DTensor, without importing it
                    fix = "Replace fully_shard by DistributedDataParallel, or use an optimizer of torch.optim."
                    got = f"{type(p).__name__} in {name}"
                    raise TypeError(checks.sentence(where, "parameters must not be sharded", got, fix))
        except (TypeError, ValueError):
            self.param_groups.pop()  # as it was
            raise
        for p in group["params"]:
            self.state_of(p)

    def _refuse_partitions(self) -> None:
        """Refuse ranks with different parameters before their collectives, or closures, mix what does not match."""
        shapes = distributed.gather_json([list(p.shape) for p in self.parameters])
        if any(shapes_of_rank != shapes[0] for shapes_of_rank in shapes):
            counts = [len(shapes_of_rank) for shapes_of_rank in shapes]
            got = f"{', '.join(map(str, counts))} parameters on ranks 0 to {len(shapes) - 1}"
            if len(set(counts)) == 1:
                got = "parameters of other shapes on some ranks"
            fix = "Use DistributedDataParallel without ZeroRedundancyOptimizer: a step needs all parameters."
            need = "every rank must have the same parameters"
            raise RuntimeError(checks.sentence(type(self).__name__, need, got, fix))

    def live_parameters(self) -> list[Tensor]:
        """The parameters with a gradient, in order.

        Raises:
            TypeError: A gradient is sparse.
        """
        live = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    live.append(p)
                    if p.grad.is_sparse:
                        got = next(f"{p.grad.layout} in {name}" for name, q in _name_parameters(group) if q is p)
                        fix = "Use sparse=False, or give it to torch.optim.SparseAdam."
                        raise TypeError(checks.sentence(type(self).__name__, "gradients must be dense", got, fix))
        return live

    def refuse_infinite(self, total: float) -> None:
        """Raise if a gradient is not finite; to be called before any parameter changes.

        Args:
            total: A sum of squares or norms of all gradients. It may overflow where every number is finite, so the
                numbers are looked at before anything is refused.

        Raises:
            FloatingPointError: A gradient is not finite.
        """
        if not math.isfinite(total):
            named = [pair for group in self.param_groups for pair in _name_parameters(group)]
            bad = [name for name, p in named if p.grad is not None and not bool(p.grad.isfinite().all())]
            if bad:
                got = f"NaN or infinity in {', '.join(bad[:3])}"
                fix = "No parameter was changed: lower lr, or clip the gradients."
                raise FloatingPointError(checks.sentence(type(self).__name__, "gradients must be finite", got, fix))

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; tensors keep the dtype they were saved in and move to their parameter's device.

        Options that the groups of the state do not have stay as they are.
        """
        # The last hook sees what the user's hooks returned, and hides the tensors from torch, which would cast them.
        handle = self.register_load_state_dict_pre_hook(_seal_tensors)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the attributes of a copy, or from ``load_state_dict`` the state and the groups alone."""
        if state.keys() == {"state", "param_groups"}:
            # Options that the loaded groups lack stay as they are.
            for old, new in zip(self.param_groups, state["param_groups"], strict=True):
                for key, option in old.items():
                    new.setdefault(key, option)

            # A state of another optimizer or version is dropped, with a warning; ours gets its tensors back.
            entries = {p: state["state"].get(p, {}) for p in self.parameters}
            if any(entry and entry.get(KEPT, {}).get(FORMAT) != CURRENT for entry in entries.values()):
                text = "the loaded state is another optimizer's or of another version: it is learned anew."
                checks.warn(type(self).__name__, text, stacklevel=4)
                entries = {p: {} for p in entries}
            for p, entry in entries.items():
                state["state"][p] = {KEPT: {FORMAT: CURRENT, **_open_tensors(entry.get(KEPT, {}), p.device)}}
            super().__setstate__(state)

            # A count of steps without anything learned is what torch.distributed.checkpoint leaves of a full state.
            memories = [self.state_of(p).keys() - {FORMAT, STEPS} for p in self.parameters]
            if self.steps and self.remembers and not any(memories):
                text = f"the loaded state counts {self.steps} steps and holds nothing else: the rest is learned anew."
                fix = "torch.distributed.checkpoint.load fills in only what a new optimizer has: convert the checkpoint"
                fix += " with its format_utils.dcp_to_torch_save, and load that."
                checks.warn(type(self).__name__, f"{text} {fix}", stacklevel=4)
        else:
            super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        """All attributes but torch's hooks on steps, which no copy of a torch optimizer has."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_optimizer_")}


def _name_parameters(group: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The parameters of a group with their names, or their shapes where they came without names."""
    names = group.get("param_names") or [f"the parameter of shape {tuple(p.shape)}" for p in group["params"]]
    return list(zip(names, group["params"], strict=True))


class _Sealed:
    """A tensor that torch takes for something else."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _seal_tensors(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state with its tensors sealed; a hook, which is why it takes the optimizer."""

    def seal(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: seal(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [seal(item) for item in value]
        if isinstance(value, Tensor):
            return _Sealed(value)
        return value

    return {**state_dict, "state": seal(state_dict["state"])}


def _open_tensors(value: Any, device: torch.device) -> Any:
    """Copies of sealed tensors on a device; single numbers stay where they are, as torch's optimizers want them."""
    if isinstance(value, dict):
        return {key: _open_tensors(item, device) for key, item in value.items()}
    if isinstance(value, list):
        return [_open_tensors(item, device) for item in value]
    if not isinstance(value, _Sealed):
        return value
    tensor = value.tensor.detach()
    if tensor.ndim == 0:
        return tensor.clone()
    return tensor.to(device, copy=True)


def step_factor(group: dict[str, Any], lr: float | None = None) -> float:
    """The factor of a direction: minus the rate, or plus where the group maximizes."""
    if lr is None:
        lr = float(group["lr"])
    if group["maximize"]:
        return lr
    return -lr


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
    if lr is None:
        lr = float(group["lr"])
    decay = 1 - lr * group.get("weight_decay", 0.0)
    alpha = step_factor(group, lr)
    if group["foreach"]:
        if decay != 1:
            scale_in_place(parameters, decay)
        add_in_place(parameters, directions, alpha)  # type: ignore[arg-type]
        return
    for p, u in zip(parameters, directions, strict=True):
        if decay != 1:
            p.mul_(decay)
        p.add_(u, alpha=alpha)  # type: ignore[arg-type]
