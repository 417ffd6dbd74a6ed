"""Finding layers in a torch model, plain or wrapped, the user's or a library's."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import sentence


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own model inside ``DistributedDataParallel``, ``DataParallel`` and ``torch.compile``."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
            model = inner
        else:
            return model


def find_layers(model: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> dict[str, nn.Module]:
    """Every layer of these kinds by its name, in the order of ``named_modules``.

    Args:
        model: Any module, wrapped or not.
        kinds: One class or a tuple of them, subclasses included.
    """
    return {name: module for name, module in unwrap(model).named_modules() if isinstance(module, kinds)}


def layer(model: nn.Module, name: str) -> nn.Module:
    """The layer of that name.

    Raises:
        ValueError: There is none; the sentence lists the closest names.
    """
    layers: dict[str, nn.Module] = dict(unwrap(model).named_modules())
    if name in layers and name:
        return layers[name]
    names = [own_name for own_name in layers if own_name]
    # A name that is nearly right is a slip: show what it could have been.
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.3)
    fix = f"Its layers: {', '.join(names[:8]) or 'none'}."
    if close:
        fix = f"Close: {', '.join(close)}."
    raise ValueError(sentence("layer", f"name must be a layer of {type(unwrap(model)).__name__}", repr(name), fix))


def last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """Name and module of the last ``nn.Linear`` by order of registration: a classifier's read-out.

    Raises:
        ValueError: There is none.
    """
    layers = find_layers(model, nn.Linear)
    if not layers:
        kinds = sorted({type(m).__name__ for m in unwrap(model).modules()})[:8]
        fix = "Name the layer yourself."
        raise ValueError(sentence("last_linear", "model must have an nn.Linear", ", ".join(kinds), fix))
    name, module = list(layers.items())[-1]
    assert isinstance(module, nn.Linear)
    return name, module


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that require grad, by name, detached: what Jacobians are taken over."""
    return {name: p.detach() for name, p in unwrap(model).named_parameters() if p.requires_grad}


def as_logits(output: Any) -> Tensor:
    """The logits in a model's output: the tensor itself, its ``.logits``, ``["logits"]`` or first item.

    Raises:
        TypeError: None of these is a tensor.
    """
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, Mapping):
        logits = output.get("logits")
    if logits is None and isinstance(output, tuple | list) and output:
        logits = output[0]
    if not isinstance(logits, torch.Tensor):
        fix = "Wrap the model so that forward returns its logits."
        raise TypeError(sentence("as_logits", "a model's output must hold logits", type(output).__name__, fix))
    return logits


def output_rows(where: str, output: Tensor, n: int) -> Tensor:  # (n, ...) -> (n, c)
    """A model's output for n rows as ``(n, c)``; ``(n,)``, and ``()`` of a squeezed row, are one logit."""
    if output.shape[:1] == (n,):
        return output.reshape(n, output.shape[1:].numel())
    if n == 1 and output.ndim <= 1:
        return output.reshape(1, -1)
    fix = "Wrap the model so that forward keeps the rows first."
    raise ValueError(sentence(where, f"the model must give an output for each of {n} rows", tuple(output.shape), fix))
