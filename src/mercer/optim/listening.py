"""Hearing what a model's layers are given, for the passes that a step is made of."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from .. import checks
from ..linalg.torch_internals import leave_uncompiled, mark_for_compiler
from ..signals.layers import as_logits, unwrap
from .base import CheckedOptimizer
from .layers import Layer, find_trained_layers

Reader = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Tensor]  # what to keep of a module's call


class ListeningOptimizer(CheckedOptimizer):
    """An optimizer with hooks on a model; call `listen_to` once the groups are set.

    The hooks go with `close`, or with the optimizer. They are in no copy or pickle of the model.
    """

    _recorder: Recorder
    remaining_steps = "SGD"  # how parameters without a layer are moved, for messages

    def listen_to(self, model: nn.Module, readers: Mapping[str, tuple[nn.Module, Reader]]) -> None:
        """Record what these readers see of their modules: see :class:`Recorder`."""
        self._recorder = Recorder(model, readers)
        self._warned: set[str] = set()

    def choose_layers(self, model: nn.Module, layers: str, exclude: Sequence[str]) -> list[Layer]:
        """The layers that can be preconditioned and whose weights are ours: all, or the last linear one."""
        where = type(self).__name__
        checks.choice(where, "layers", layers, ("all", "last"))
        chosen = find_trained_layers(where, model, self.parameters, exclude, last=layers == "last")
        if not chosen:
            text = "params hold no weight of a linear, convolutional, attention or recurrent layer of model"
            checks.warn(where, f"{text}; all take {self.remaining_steps} steps.")
        return chosen

    def warn_unheard(self, layers: Sequence[Layer]) -> None:
        """Say once of each layer that it has a gradient, and that nobody heard where the gradient came from."""
        names = [a.name for a in layers if a.name not in self._warned and bool(a.gradients()[0].any())]
        if names:
            self._warned.update(names)
            which = ", ".join(map(repr, names))
            subject = f"layer {which} has" if len(names) == 1 else f"layers {which} have"
            effect = f"the steps are {self.remaining_steps}'s, or use what earlier batches gave"
            fix = "Call each layer as a module, not through its weight; if the model was compiled, call "
            fix += f"torch.compiler.reset() once; or leave them out with exclude=[{which}]."
            checks.warn(type(self).__name__, f"{subject} a gradient but no recorded input; {effect}. {fix}")

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the inputs that belong to them."""
        super().zero_grad(set_to_none)
        self._recorder.clear()

    def close(self) -> None:
        """Take the hooks off the model."""
        self._recorder.close()


class Recorder:
    """Forward hooks that keep what a module was given once a gradient has reached its output.

    A pass that is never differentiated (an evaluation) leaves nothing, a pass recomputed by checkpointing counts once,
    and several passes before a step (accumulation), or several calls in one pass, are all kept. The model's hooks refer
    to the recorder weakly: they go when it goes, and no copy or pickle of the model holds them or what they have seen.
    A copy of the recorder listens to its own copy of the model.

    Args:
        model: The user's model, plain or wrapped.
        readers: A module and what to keep of its calls, by name.
    """

    def __init__(self, model: nn.Module, readers: Mapping[str, tuple[nn.Module, Reader]]) -> None:
        self._root = unwrap(model)
        self._readers = dict(readers)
        self._closed = False
        self._begin_empty()
        self.listen(self._readers)

    def _begin_empty(self) -> None:
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in self._readers}
        self._heard: frozenset[str] = frozenset()
        self._handles: list[RemovableHandle] = []
        self._marks: list[tuple[Tensor, set[str]]] = []  # the attributes that a mark for the compiler consists of
        weakref.finalize(self, _remove, self._handles, self._marks)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("inputs", "_handles", "_marks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        heard = self._heard
        self._begin_empty()
        self.listen(heard)

    def listen(self, names: Collection[str]) -> None:
        """Hear these readers' modules from the next pass on, and no others: hooks cost time, so none stay in vain.

        Compiled code does not look for hooks that came after it, but it does look for marks on parameters. So these
        are marked as long as there are hooks: torch then compiles the model once more, with the hooks. All modules
        have hooks, or none: otherwise there would be code for every choice of them.
        """
        self._heard = frozenset(() if self._closed else names)
        if not self._heard:
            _remove(self._handles, self._marks)
        elif not self._handles:
            for name, (module, _) in self._readers.items():
                handle = module.register_forward_hook(_WeakHook(self, "_see", name), with_kwargs=True)
                self._handles.append(handle)
                _leave_out_of_copies(module, handle.id)
            self._marks.extend((p, mark_for_compiler(p)) for p in self._root.parameters())

    def clear(self) -> None:
        """Forget what was seen."""
        for inputs in self.inputs.values():
            inputs.clear()

    def close(self) -> None:
        """Take the hooks off the model for good."""
        self._closed = True
        self.listen(())
        self.clear()

    def _see(self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if name in self._heard and torch.is_grad_enabled():
            whole = output
            while isinstance(output, tuple | list):  # of attention, recurrent layers and packed sequences
                output = output[0]
            result = as_logits(output)
            if result.requires_grad:
                with torch.no_grad():
                    x = self._readers[name][1](module, args, named, whole).detach()
                result.register_hook(_WeakHook(self, "_keep", name, x))

    def _keep(self, name: str, x: Tensor, gradient: Tensor) -> None:
        self.inputs[name].append(x)


class _WeakHook:
    """Calls a method of a recorder for as long as there is one."""

    def __init__(self, recorder: Recorder, method: str, *args: Any) -> None:
        self._recorder = weakref.ref(recorder)
        self._method = method
        self._args = args

    @leave_uncompiled
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

    def _others(self) -> OrderedDict[int, Any]:
        return OrderedDict((key, hook) for key, hook in (self._hooks() or {}).items() if key not in self.ours)

    def deepcopy(self, memo: dict[int, Any]) -> OrderedDict[int, Any]:
        return copy.deepcopy(self._others(), memo)

    def reduce(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return OrderedDict, (), None, None, iter(self._others().items())


def _leave_out_of_copies(module: nn.Module, key: int) -> None:
    """Keep the hook of this key out of every copy and pickle of the module.

    ``copy.deepcopy`` and ``pickle`` ask an object itself how it is copied, and torch keeps hooks in ordered
    dictionaries, which may have attributes. A hook that copied into something harmless would still stay in the copy.
    """
    for kind in ("_forward_hooks", "_forward_hooks_with_kwargs"):
        attributes = vars(hooks := getattr(module, kind))
        if "without_ours" not in attributes:
            view = _WithoutOurs(hooks)
            attributes.update({"without_ours": view, "__deepcopy__": view.deepcopy, "__reduce_ex__": view.reduce})
        attributes["without_ours"].ours.add(key)
