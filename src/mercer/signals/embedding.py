"""A loader's embeddings: a network's representation of every row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import same_device, sentence
from ..rows.loading import Data, as_tensor, first_item, is_loader, stack_batches
from .capture import capture
from .layers import last_linear
from .private_copy import private_copy


def embeddings(model: nn.Module, loader: Data, layer: str | None = None) -> Tensor:  # -> (n, d)
    """The representation of every row: what goes into the last linear layer, or comes out of the named one.

    A private copy of the model runs in ``eval`` mode without gradients; the model itself is not touched. A layer that
    runs twice in a pass gives its last output. Shapes ``(n, ...)`` are flattened.

    Args:
        model: Any module, wrapped or not.
        loader: Batches: tensors, tuples whose first item is the input, or dictionaries of the model's arguments;
            or one tensor or array.
        layer: A name of ``model.named_modules()``; None for the input of the last ``nn.Linear``.
    """
    name = layer or ""
    if layer is None:
        name = last_linear(model)[0]
    batches: Iterable[Any] = [loader]
    if is_loader(loader):
        batches = loader

    # Run a private copy on each batch, and keep what its layer saw last.
    parts = []
    private = private_copy(model)
    with torch.no_grad(), capture(private, [name]) as signals:
        signal = signals[name]
        for batch in batches:
            run_model("embeddings", private, batch)
            if layer is None:
                parts.append(signal.input.flatten(1))
            else:
                parts.append(signal.output.flatten(1))
            signal.inputs.clear()
            signal.outputs.clear()
    return stack_batches("embeddings", "loader", parts)


def run_model(where: str, model: nn.Module, batch: Any) -> Any:
    """The model's output for one batch of a loader.

    Args:
        where: Who asks, for the error sentence.
        model: Called as it is.
        batch: A tensor or array; a tuple, whose first item is the input; or a dictionary of the model's arguments, of
            which ``label`` and ``labels`` are left out.

    Raises:
        ValueError: The batch is on another device, or has rows that the model does not take.
    """
    if isinstance(batch, Mapping):  # as transformers' collators make them
        named = {key: value for key, value in batch.items() if key not in ("label", "labels")}
        return _call_model(where, model, (), named)
    x = as_tensor(where, "loader", first_item(batch))
    # Nothing moves between devices: say which two are in the way.
    weight = next(model.parameters(), None)
    if weight is not None:
        same_device(where, "loader", x.device, "model", weight.device)
    return _call_model(where, model, (x,), {})


def _call_model(where: str, model: nn.Module, args: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
    try:
        return model(*args, **named)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError) as error:
        values = {**dict(zip(("x",), args, strict=False)), **named}
        shapes = ", ".join(f"{key} {tuple(getattr(value, 'shape', ()))}" for key, value in values.items())
        need = f"batches must fit the forward of {type(model).__name__}"
        raise ValueError(sentence(where, need, shapes, f"It says: {error}.")) from error
