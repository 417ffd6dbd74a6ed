"""Finding the ReLU that rectifies an embedding, and taking it off."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

# What stands between the last activation and the head without changing signs.
_PASSING = (
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten, nn.Identity, nn.AdaptiveMaxPool2d, nn.MaxPool2d,
)  # fmt: skip
_PASSING_FUNCTIONS = {
    F.adaptive_avg_pool2d, F.avg_pool2d, F.dropout, torch.flatten, torch.mean, torch.squeeze, operator.getitem,
    torch.adaptive_avg_pool1d,
}  # fmt: skip
_PASSING_METHODS = {"flatten", "mean", "view", "reshape", "squeeze", "contiguous", "size"}
_RELU_FUNCTIONS = {F.relu, torch.relu, F.relu_}


def take_relu_off(model: nn.Module, head: str) -> str:
    """Replace the ReLU module on the embedding by an identity where it is safe; says what happened.

    Safe is a ReLU that is a module of its own and is called once in a pass. A functional one, or one module that a
    block calls twice, stays: taking it off would need the model's source.
    """
    relu = _find_in_sequential(model, head) or _find_in_trace(model, head)
    if relu is None:
        return "none found"
    name, is_called_once = relu
    if not is_called_once:
        return f"{name}, left on (not a module that is called once)"
    parent, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(parent), own_name, nn.Identity())
    return f"{name}, taken off"


def _find_in_sequential(model: nn.Module, head: str) -> tuple[str, bool] | None:
    """The ReLU before the head in the same ``nn.Sequential``, and whether it is called once."""
    parent_name, _, own_name = head.rpartition(".")
    parent = model.get_submodule(parent_name)
    if not isinstance(parent, nn.Sequential):
        return None
    before = list(parent.named_children())
    before = before[: [name for name, _ in before].index(own_name)]
    for name, module in reversed(before):
        if isinstance(module, nn.ReLU):
            uses = sum(m is module for _, m in model.named_modules(remove_duplicate=False))
            return f"{parent_name}.{name}".lstrip("."), uses == 1
        if not isinstance(module, _PASSING):
            return None
    return None


class _Leaves(fx.Tracer):
    """Follows a model's own blocks; torch's layers stay whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("mercer.nn") or super().is_leaf_module(m, module_qualified_name)


def _find_in_trace(model: nn.Module, head: str) -> tuple[str, bool] | None:
    """The ReLU before the head in the model's graph, by way of first arguments, and whether it is called once."""
    try:
        graph = _Leaves().trace(model)
    except Exception:  # models with data-dependent control flow cannot be traced: nothing is found, nothing changed
        return None
    # From the head backwards: pass over what keeps signs, stop at anything else.
    node: Any = next((n for n in graph.nodes if n.op == "call_module" and n.target == head), None)
    while node is not None:
        node = next((arg for arg in node.args if isinstance(arg, fx.Node)), None)
        if node is None or node.op in ("placeholder", "get_attr"):
            return None
        if node.op == "call_module":
            module = model.get_submodule(node.target)
            if isinstance(module, nn.ReLU):
                calls = sum(n.op == "call_module" and model.get_submodule(n.target) is module for n in graph.nodes)
                return str(node.target), calls == 1
            if not isinstance(module, _PASSING):
                return None
        elif node.op == "call_function":
            if node.target in _RELU_FUNCTIONS:
                return "a functional relu", False
            if node.target not in _PASSING_FUNCTIONS:
                return None
        elif node.target == "relu":
            return "a functional relu", False
        elif node.target not in _PASSING_METHODS:
            return None
    return None
