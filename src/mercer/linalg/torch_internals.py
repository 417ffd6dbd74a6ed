"""Every private name of torch that Mercer uses: whether derivatives are being taken, and loops that torch has fused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])


def is_transforming() -> bool:
    """Whether ``torch.func`` (vmap, grad, jvp, ...) or forward-mode differentiation is active.

    Code must then use operations that they can see through: none in place, none that reads a value.
    """
    return peek_interpreter_stack() is not None or forward_mode()


def forward_mode() -> bool:
    """Whether forward-mode differentiation is active, in this thread or in another: torch counts them together."""
    return forward_ad._current_level >= 0


def records_graph() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace records: a graph must not depend on sizes or values."""
    return torch.compiler.is_compiling() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def may_be_differentiated(*tensors: Tensor) -> bool:
    """Whether a result of these tensors may be differentiated, transformed or recorded: fast paths are then closed."""
    if records_graph() or is_transforming():
        return True
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def readable(*tensors: Tensor) -> bool:
    """Whether code may branch on values: on the CPU, where that neither waits nor breaks a trace or a transform."""
    if records_graph() or is_transforming():
        return False
    return all(t.device.type == "cpu" for t in tensors)


def leave_uncompiled(function: Function) -> Function:
    """A decorator: compiled code calls the function as it is."""
    return torch._disable_dynamo(function)  # type: ignore[attr-defined, return-value]


def mark_for_compiler(parameter: Tensor) -> set[str]:
    """Make torch compile code with this parameter again; returns the attributes that the mark consists of.

    The mark says that sizes are static, which those of parameters are anyway. Compiled code looks for it.
    """
    before = set(vars(parameter))
    if "torch._dynamo" in sys.modules:  # otherwise nothing has been compiled
        torch._dynamo.mark_static(parameter)
    return set(vars(parameter)) - before


def in_batched_backward(gradient: Tensor) -> bool:
    """Whether ``gradient`` is one of many that ``is_grads_batched`` carries through a backward pass at once."""
    return bool(is_legacy_batchedtensor(gradient))


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The Euclidean norm of each tensor, in one fused loop."""
    return list(torch._foreach_norm(list(tensors)))


def add_in_place(tensors: Sequence[Tensor], others: Sequence[Tensor], alpha: float) -> None:
    """``tensor += alpha * other`` for each pair, in one fused loop."""
    torch._foreach_add_(list(tensors), list(others), alpha=alpha)


def multiply_in_place(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """``tensor *= other`` for each pair, in one fused loop."""
    torch._foreach_mul_(list(tensors), list(others))


def add_products_in_place(tensors: Sequence[Tensor], left: Sequence[Tensor], right: Sequence[Tensor]) -> None:
    """``tensor += left * right`` for each triple, in one fused loop."""
    torch._foreach_addcmul_(list(tensors), list(left), list(right))


def scale_in_place(tensors: Sequence[Tensor], factor: float) -> None:
    """``tensor *= factor`` for each, in one fused loop."""
    torch._foreach_mul_(list(tensors), factor)


def cdist_gradient(grad: Tensor, x: Tensor, y: Tensor, distances: Tensor) -> Tensor:  # (n, m), ... -> (n, d)
    """The gradient of ``torch.cdist(x, y, p=1)`` with respect to x."""
    gradient: Tensor = torch.ops.aten._cdist_backward(grad, x, y, 1.0, distances)
    return gradient
