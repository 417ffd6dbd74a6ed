"""What went into a layer and what gradient came back to its output, for the passes that a step is made of."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .. import checks
from ..linalg import in_backward, mark_for_compiler
from ..signals.layers import as_logits, unwrap


@dataclass
class Record:
    """The passes of one module since the last step, one item for each that was differentiated.

    Attributes:
        inputs: First tensor it was called with, detached.
        outputs: What came of it, detached.
        gradients: Gradient of the loss at its output.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def clear(self) -> None:
        """Forget them."""
        for kept in (self.inputs, self.outputs, self.gradients):
            kept.clear()


class Recorder:
    """Forward hooks that keep a module's input once a gradient has reached its output.

    A pass that is never differentiated (an evaluation) leaves nothing, a pass recomputed by checkpointing counts once,
    and several passes before a step (accumulation) are all kept. The model's hooks refer to the recorder weakly: they
    go when it goes, and no copy or pickle of the model holds them or what they have seen. A copy of the recorder
    listens to its own copy of the model.

    Args:
        where: The optimizer's name, for messages.
        model: The user's model, plain or wrapped.
        modules: What to record, by name.
        once: Refuse a module that runs twice in one forward pass of the model.
    """

    def __init__(self, where: str, model: nn.Module, modules: Mapping[str, nn.Module], *, once: bool = True) -> None:
        self.where = where
        self._root = unwrap(model)
        self._modules = dict(modules)
        self._once = once
        self._closed = False
        self._begin_empty()
        self.listen(self._modules)

    def _begin_empty(self) -> None:
        self.records = {name: Record() for name in self._modules}
        self._inside = False  # a forward pass of the model; a layer called on its own is nobody's second run
        self._ran: set[str] = set()
        self._heard: frozenset[str] = frozenset()
        self._handles: list[RemovableHandle] = []
        self._marks: list[tuple[Tensor, set[str]]] = []  # the attributes that a mark for the compiler consists of
        weakref.finalize(self, _remove, self._handles, self._marks)

    def __getstate__(self) -> dict[str, Any]:
        seen = ("records", "_inside", "_ran", "_handles", "_marks")
        return {key: value for key, value in self.__dict__.items() if key not in seen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        heard = self._heard
        self._begin_empty()
        self.listen(heard)

    def listen(self, names: Collection[str]) -> None:
        """Hear these modules from the next pass on, and no others: without any there are no hooks, which cost time.

        Compiled code does not look for hooks that came after it, but it does look for marks on parameters. So these
        are marked as long as there are hooks: torch then compiles the model once more, with the hooks. All modules
        have hooks, or none: otherwise there would be code for every choice of them.
        """
        self._heard = frozenset(() if self._closed else names)
        if not self._heard:
            _remove(self._handles, self._marks)
        elif not self._handles:
            self._hook(self._root, "begin")
            for name, module in self._modules.items():
                self._hook(module, "see", name)
            self._hook(self._root, "end")
            self._marks.extend((p, mark_for_compiler(p)) for p in self._root.parameters())

    def clear(self) -> None:
        """Forget what was seen."""
        for record in self.records.values():
            record.clear()

    def close(self) -> None:
        """Take the hooks off the model for good."""
        self._closed = True
        self.listen(())
        self.clear()

    def _hook(self, module: nn.Module, event: str, *args: str) -> None:
        hook = _WeakHook(self, f"_{event}", *args)
        if event == "begin":
            handle = module.register_forward_pre_hook(hook)
        else:
            handle = module.register_forward_hook(hook, with_kwargs=event == "see", always_call=event == "end")
        self._handles.append(handle)
        leave_out_of_copies(module, handle.id)

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._inside = True
        self._ran.clear()

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._inside = False

    def _see(self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        recomputed = in_backward()  # checkpointing runs the layer again; first, for here compiled code hands over to us
        if name not in self._heard or not torch.is_grad_enabled():
            return
        result = as_logits(output)
        given = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        if not result.requires_grad or not given:
            return
        if self._inside and self._once and not recomputed:
            if name in self._ran:
                fix = f"Leave it to plain SGD with exclude=[{name!r}]."
                need = "a preconditioned layer must run once in a forward pass"
                raise RuntimeError(checks.sentence(self.where, need, f"{name!r} twice", fix))
            self._ran.add(name)
        result.register_hook(_WeakHook(self, "_keep", name, given[0].detach(), result.detach()))

    def _keep(self, name: str, given: Tensor, output: Tensor, gradient: Tensor) -> None:
        record = self.records[name]
        record.inputs.append(given)
        record.outputs.append(output)
        record.gradients.append(gradient.detach())


class _WeakHook:
    """Calls a method of a recorder for as long as there is one."""

    def __init__(self, recorder: Recorder, method: str, *args: Any) -> None:
        self._recorder = weakref.ref(recorder)
        self._method = method
        self._args = args

    def __call__(self, *args: Any) -> None:
        recorder = self._recorder()
        if recorder is not None:
            getattr(recorder, self._method)(*self._args, *args)


def _remove(handles: list[RemovableHandle], marks: list[tuple[Tensor, set[str]]]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
    for p, attributes in marks:
        for name in attributes:
            vars(p).pop(name, None)
    marks.clear()


class _WithoutOurs:
    """A module's dictionary of hooks, as ``copy`` and ``pickle`` see it."""

    def __init__(self, hooks: OrderedDict[int, Any]) -> None:
        self._hooks = weakref.ref(hooks)
        self.ours: set[int] = set()

    def _kept(self) -> OrderedDict[int, Any]:
        return OrderedDict((key, hook) for key, hook in (self._hooks() or {}).items() if key not in self.ours)

    def deepcopy(self, memo: dict[int, Any]) -> OrderedDict[int, Any]:
        return copy.deepcopy(self._kept(), memo)

    def reduce(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return OrderedDict, (), None, None, iter(self._kept().items())


def leave_out_of_copies(module: nn.Module, key: int) -> None:
    """Keep the hook of this key out of every copy and pickle of the module.

    ``copy.deepcopy`` and ``pickle`` ask an object itself how it is copied, and torch keeps hooks in ordered
    dictionaries, which may have attributes. A hook that copied into something harmless would still stay in the copy.
    """
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
    for hooks in (getattr(module, kind) for kind in kinds):
        own = vars(hooks)
        if "without_ours" not in own:
            view = _WithoutOurs(hooks)
            own.update({"without_ours": view, "__deepcopy__": view.deepcopy, "__reduce_ex__": view.reduce})
        own["without_ours"].ours.add(key)
