"""What went into a layer and what gradient came back to its output, for the passes that a step is made of."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from .. import checks
from ..modules import as_logits, unwrap

__all__ = ["Record", "Recorder", "layer_rows", "trained_layers"]


@dataclass
class Record:
    """The passes of one module since the last step, one item for each that was differentiated.

    Attributes:
        inputs: First tensor it was called with, detached.
        gradients: Gradient of the loss at its output.
    """

    inputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)


class Recorder:
    """Forward hooks that keep a module's input once a gradient has reached its output.

    A pass that is never differentiated (an evaluation) leaves nothing, a pass recomputed by checkpointing counts once,
    and several passes before a step (accumulation) are all kept.

    Args:
        where: The optimizer's name, for messages.
        model: The user's model, plain or wrapped.
        modules: What to record, by name.
        once: Refuse a module that runs twice in one forward pass of the model.
    """

    def __init__(self, where: str, model: nn.Module, modules: Mapping[str, nn.Module], *, once: bool = True) -> None:
        self.where = where
        self.records = {name: Record() for name in modules}
        self._inside = False  # a forward pass of the model; a layer called on its own is nobody's second run
        self._ran: set[str] = set()
        self._once = once
        self._root = unwrap(model)
        self._modules = dict(modules)
        self._handles: list[RemovableHandle] = []
        self._closed = False
        self.listen(True)

    def listen(self, on: bool) -> None:
        """Put the hooks on the model, or take them off until the next time they are needed: a hook costs every pass."""
        if on and not self._handles and not self._closed:
            self._handles.append(self._root.register_forward_pre_hook(self._begin))
            for name, module in self._modules.items():
                hook = functools.partial(self._see, name)
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
            self._handles.append(self._root.register_forward_hook(self._end, always_call=True))
        elif not on:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def clear(self) -> None:
        """Forget what was seen."""
        for record in self.records.values():
            record.inputs.clear()
            record.gradients.clear()

    def close(self) -> None:
        """Take the hooks off the model for good."""
        self._closed = True
        self.listen(False)
        self.clear()

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._inside = True
        self._ran.clear()

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._inside = False

    def _see(self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        result = as_logits(output)
        given = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        if not result.requires_grad or not given:
            return
        self._refuse_second_run(name)
        result.register_hook(functools.partial(self._keep, name, given[0].detach()))

    def _refuse_second_run(self, name: str) -> None:
        recomputed = torch._C._current_graph_task_id() != -1  # inside a backward pass: checkpointing
        if self._inside and self._once and not recomputed:
            if name in self._ran:
                fix = f"Leave it to plain SGD with exclude=[{name!r}]."
                need = "a preconditioned layer must run once in a forward pass"
                raise RuntimeError(checks.sentence(self.where, need, f"{name!r} twice", fix))
            self._ran.add(name)

    def _keep(self, name: str, given: Tensor, gradient: Tensor) -> None:
        self.records[name].inputs.append(given)
        self.records[name].gradients.append(gradient.detach())


def trained_layers(
    where: str,
    model: nn.Module,
    parameters: Sequence[Tensor],
    kinds: tuple[type[nn.Module], ...],
    exclude: Sequence[str] = (),
) -> dict[str, nn.Module]:
    """The layers of these kinds whose weight is one of ``parameters``, requires grad, and is nobody else's.

    Args:
        where: The optimizer's name, for messages.
        model: The user's model, plain or wrapped.
        parameters: What the optimizer was given.
        kinds: Classes with a ``weight``.
        exclude: Names of layers, or of modules that hold them, to leave out.

    Raises:
        ValueError: Two modules share a weight, or ``exclude`` names nothing.
    """
    root = unwrap(model)
    names = dict(root.named_modules())
    for name in exclude:
        checks.choice(where, "a name in exclude", name, list(names))
    owned = {id(p) for p in parameters if p.requires_grad}
    found = {}
    for name, module in names.items():
        left_out = any(name == e or name.startswith(f"{e}.") for e in exclude)
        weight = module._parameters.get("weight")
        if isinstance(module, kinds) and not left_out and weight is not None and id(weight) in owned:
            _refuse_shared(where, root, name, weight)
            found[name] = module
    return found


def _refuse_shared(where: str, root: nn.Module, layer: str, weight: Tensor) -> None:
    holders = [name for name, p in root.named_parameters(remove_duplicate=False) if p is weight]
    if len(holders) > 1:
        fix = f"Leave it to plain SGD with exclude=[{layer!r}]."
        need = "a preconditioned layer must not share its weight"
        raise ValueError(checks.sentence(where, need, " and ".join(holders), fix))


def layer_rows(module: nn.Module, x: Tensor, *, bias: bool, most: int | None = None) -> Tensor:
    r"""The rows G that a layer's weight multiplies, :math:`(n, d)`: outputs are :math:`G \tilde W^\top`.

    Args:
        module: ``nn.Linear`` or ``nn.Conv2d`` without groups; of the latter a row is one patch.
        x: The layer's input.
        bias: Add a column of ones for the bias.
        most: Of a convolution, widen the stride until about so many patches are left; the same places in every
            sample, so that the order of samples does not matter.
    """
    if isinstance(module, nn.Conv2d):
        x = _patches(module, x, most)
    g = x.reshape(-1, x.shape[-1])  # (n, d)
    return torch.cat((g, g.new_ones(len(g), 1)), 1) if bias else g


def _patches(module: nn.Conv2d, x: Tensor, most: int | None) -> Tensor:  # (n, c, h, w) -> (n, places, d)
    around = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    if any(around):
        x = F.pad(x if x.ndim == 4 else x[None], around, mode=mode)
    elif x.ndim == 3:
        x = x[None]
    stride = [int(s) for s in module.stride]
    places = len(x) * x.shape[-1] * x.shape[-2] / (stride[0] * stride[1])
    wider = 1 if most is None else max(1, round((places / most) ** 0.5))
    size, dilation = tuple(module.kernel_size), tuple(module.dilation)
    return F.unfold(x, size, dilation, 0, (stride[0] * wider, stride[1] * wider)).mT
