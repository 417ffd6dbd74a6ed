"""A copy of a model to run in place of the user's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import sentence
from .layers import unwrap


def private_copy(model: nn.Module) -> nn.Module:
    """The model in ``eval`` mode, without hooks, sharing every parameter and buffer with the original.

    Nothing done to the copy's modules (modes, hooks, ``torch.func.functional_call``) is seen by the original, so that
    several threads can each run a copy of one model. A tensor changed in place changes in both. Hooks of
    ``torch.nn.utils`` that compute a weight before each call (weight norm, spectral norm, pruning) are kept: the layer
    is wrong without them.

    Args:
        model: Any module; ``DistributedDataParallel``, ``DataParallel`` and ``torch.compile`` are taken off.

    Raises:
        TypeError: The model holds something that cannot be copied, such as a lock or an open file.
    """
    if torch.compiler.is_compiling():  # as a decorator it would import the compiler, two seconds, with every command
        copied: nn.Module = torch.compiler.disable(_copy_model)(model)
        return copied
    return _copy_model(model)


def _copy_model(model: nn.Module) -> nn.Module:
    model = unwrap(model)
    # deepcopy takes from the memo what must not be copied: tensors are shared, hooks are left out but for those of
    # torch.nn.utils, which compute a weight.
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name.endswith("_hooks") and isinstance(value, dict):
                memo[id(value)] = type(value)()
                for key, hook in value.items():
                    if type(hook).__module__.startswith("torch.nn.utils."):
                        memo[id(value)][key] = hook
            memo.update((id(tensor), tensor) for tensor in _find_tensors(value))
    try:
        private = copy.deepcopy(model, memo).eval()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        fix = "Remove what copy.deepcopy refuses, or give the module a __deepcopy__."
        raise TypeError(sentence("private_copy", "model must be a module that can be copied", error, fix)) from error
    for module in list(private.modules()):
        # A head before the pooling works by hooks on its model: give it hooks on the copy.
        attach = getattr(module, "attach_to", None)
        if callable(attach):
            attach(private)
    return private


def _find_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _find_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_tensors(item)
