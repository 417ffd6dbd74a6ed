"""From what users have (tensors, arrays, loaders) to checked tensors; a loader's embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import distributed
from ..checks import finite, floating, same_device, same_length, sentence
from .capture import capture
from .layers import last_linear
from .private_copy import private_copy
from .stored_rows import StoredRows

Data: TypeAlias = Tensor | NDArray[Any] | StoredRows | Iterable[Any]


def rows(where: str, data: Data, name: str = "x") -> Tensor:  # -> (n, ...)
    """One finite tensor of floats from a tensor, an array or a loader; what every ``fit`` starts with.

    Integers become the default dtype, half precision float32. The input is never changed; nothing moves
    between devices.

    Args:
        where: Who asks, for the error sentence.
        data: A tensor or array ``(n, ...)``, or a ``DataLoader`` of batches; of a tuple the first item counts.
        name: The argument's name, for the error sentence.

    Raises:
        ValueError: No rows, NaN or infinity, text.
        TypeError: Complex or sparse numbers, or no data at all.
    """
    if is_loader(data):
        data = _stacked(where, name, [as_tensor(where, name, _first(batch)) for batch in data])
    x = as_tensor(where, name, data)
    if x.ndim == 0 or (len(x) == 0 and distributed.world_size() == 1):  # of several ranks some may have none
        raise ValueError(sentence(where, f"{name} must have at least one row", tuple(x.shape)))
    return finite(where, name, floating(x.detach()))


def labelled_rows(where: str, data: Data) -> tuple[Tensor, Tensor]:  # -> (n, ...), (n, ...)
    """Inputs and labels of a loader of pairs, or of one pair; labels keep their dtype."""
    pairs: list[Any] = list(data) if is_loader(data) else [data]
    if not pairs:
        raise ValueError(sentence(where, "loader must have at least one row", "no batch"))
    if not all(isinstance(pair, tuple | list) and len(pair) >= 2 for pair in pairs):
        fix = "Use DataLoader(TensorDataset(x, y))."
        raise TypeError(sentence(where, "loader must give pairs (x, y)", type(pairs[0]).__name__, fix))
    x = rows(where, _stacked(where, "x", [as_tensor(where, "x", pair[0]) for pair in pairs]))
    y = finite(where, "y", _stacked(where, "y", [as_tensor(where, "y", pair[1]) for pair in pairs]))
    same_length(where, "x", x, "y", y)
    return x, y


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
    name = last_linear(model)[0] if layer is None else layer
    parts = []
    own = private_copy(model)
    with torch.no_grad(), capture(own, [name]) as seen:
        for batch in loader if is_loader(loader) else [loader]:
            run_model("embeddings", own, batch)
            part = seen[name].input if layer is None else seen[name].output
            parts.append(part.flatten(1))
            seen[name].inputs.clear()
            seen[name].outputs.clear()
    return _stacked("embeddings", "loader", parts)


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
        return _called(where, model, (), named)
    x = as_tensor(where, "loader", _first(batch))
    weight = next(model.parameters(), None)
    if weight is not None:
        same_device(where, "loader", x.device, "model", weight.device)
    return _called(where, model, (x,), {})


def _called(where: str, model: nn.Module, args: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
    try:
        return model(*args, **named)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError) as error:
        values = {**dict(zip(("x",), args, strict=False)), **named}
        shapes = ", ".join(f"{key} {tuple(getattr(value, 'shape', ()))}" for key, value in values.items())
        need = f"batches must fit the forward of {type(model).__name__}"
        raise ValueError(sentence(where, need, shapes, f"It says: {error}.")) from error


def is_loader(data: Any) -> TypeGuard[Iterable[Any]]:
    """Whether data comes in batches."""
    if isinstance(data, list):  # of batches; a list of numbers, or of single rows, is an array
        return all(isinstance(b, tuple | Mapping) or (isinstance(b, Tensor) and b.ndim > 1) for b in data)
    plain = isinstance(data, Tensor | np.ndarray | tuple | Mapping | str | bytes)
    plain = plain or hasattr(data, "__array__") or hasattr(data, "tocsr")
    return not plain and isinstance(data, Iterable)


def _first(batch: Any) -> Any:
    return batch[0] if isinstance(batch, tuple | list) else batch


def _stacked(where: str, name: str, parts: list[Tensor]) -> Tensor:
    if not parts:
        raise ValueError(sentence(where, f"{name} must have at least one row", "a loader without batches"))
    shapes = sorted({tuple(part.shape[1:]) for part in parts})
    if len(shapes) > 1:
        raise ValueError(sentence(where, f"batches of {name} must have rows of one shape", shapes[:3]))
    return torch.cat(parts)


def as_tensor(where: str, name: str, data: Any) -> Tensor:
    """A real, dense tensor from a tensor or an array of numbers, its dtype kept; anything else is refused by name."""
    data = data[:] if isinstance(data, StoredRows) else data
    x = data if isinstance(data, Tensor) else _from_array(where, name, data)
    if x.is_complex():
        raise TypeError(sentence(where, f"{name} must be real", x.dtype, f"Use torch.view_as_real({name})."))
    if x.layout is not torch.strided:
        raise TypeError(sentence(where, f"{name} must be dense", x.layout, f"Use {name}.to_dense()."))
    return x


def _from_array(where: str, name: str, data: Any) -> Tensor:
    if hasattr(data, "tocsr"):
        raise TypeError(sentence(where, f"{name} must be dense", "a sparse matrix", f"Use {name}.toarray()."))
    array = np.asarray(data)
    if array.dtype.kind in "OUSM" and not (isinstance(data, np.ndarray) or hasattr(data, "__array__") or array.ndim):
        fix = "Give a tensor, an array or a DataLoader."
        raise TypeError(sentence(where, f"{name} must be rows of numbers", type(data).__name__, fix))
    try:
        if array.dtype.kind in "USM":
            raise ValueError(f"an array of {array.dtype}")
        array = array.astype(np.float64) if array.dtype.kind == "O" else array
        # A copy: torch takes neither negative strides nor read-only or foreign-endian memory.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (ValueError, TypeError) as error:
        fix = "Encode text and dates as numbers first."
        raise ValueError(sentence(where, f"{name} must be rows of numbers", error, fix)) from error
