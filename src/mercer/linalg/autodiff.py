"""Whether derivatives are being taken; every private name of torch that Mercer's maths needs is in this file."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad

__all__ = ["differentiated", "forward_mode", "in_backward", "in_batched_backward", "transformed"]


def transformed() -> bool:
    """Whether ``torch.func`` (vmap, grad, jvp, ...) or forward-mode differentiation is active.

    Code must then use operations that they can see through: none in place, none that reads a value.
    """
    return peek_interpreter_stack() is not None or forward_mode()


def forward_mode() -> bool:
    """Whether forward-mode differentiation is active, in this thread or in another: torch counts them together."""
    return forward_ad._current_level >= 0


def differentiated(*tensors: Tensor) -> bool:
    """Whether a result of these tensors may be differentiated, transformed or compiled: fast paths are then closed."""
    if torch.compiler.is_compiling() or transformed():
        return True
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def in_backward() -> bool:
    """Whether a backward pass is running in this thread, as when checkpointing runs a layer again."""
    return torch._C._current_graph_task_id() != -1


def in_batched_backward(gradient: Tensor) -> bool:
    """Whether ``gradient`` is one of many that ``is_grads_batched`` carries through a backward pass at once."""
    return bool(is_legacy_batchedtensor(gradient))
