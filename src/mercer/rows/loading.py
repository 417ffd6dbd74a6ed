"""From what users have (tensors, arrays, loaders) to checked tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import distributed
from ..checks import dense, finite, floating, real, same_length, sentence
from .stored import StoredRows

Data: TypeAlias = Tensor | NDArray[Any] | StoredRows | Iterable[Any]


def load_rows(where: str, data: Data, name: str = "x") -> Tensor:  # -> (n, ...)
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
        data = stack_batches(where, name, [as_tensor(where, name, first_item(batch)) for batch in data])
    x = as_tensor(where, name, data)
    if x.ndim == 0 or (len(x) == 0 and distributed.world_size() == 1):  # of several ranks some may have none
        raise ValueError(sentence(where, f"{name} must have at least one row", tuple(x.shape)))
    return finite(where, name, floating(x.detach()))


def load_labelled_rows(where: str, data: Data) -> tuple[Tensor, Tensor]:  # -> (n, ...), (n, ...)
    """Inputs and labels of a loader of pairs, or of one pair; labels keep their dtype."""
    pairs: list[Any] = [data]
    if is_loader(data):
        pairs = list(data)
    if not pairs:
        raise ValueError(sentence(where, "loader must have at least one row", "no batch"))
    if not all(isinstance(pair, tuple | list) and len(pair) >= 2 for pair in pairs):
        fix = "Use DataLoader(TensorDataset(x, y))."
        raise TypeError(sentence(where, "loader must give pairs (x, y)", type(pairs[0]).__name__, fix))
    x = load_rows(where, stack_batches(where, "x", [as_tensor(where, "x", pair[0]) for pair in pairs]))
    y = finite(where, "y", stack_batches(where, "y", [as_tensor(where, "y", pair[1]) for pair in pairs]))
    same_length(where, "x", x, "y", y)
    return x, y


def is_loader(data: Any) -> TypeGuard[Iterable[Any]]:
    """Whether data comes in batches."""
    if isinstance(data, list):  # of batches; a list of numbers, or of single rows, is an array
        return all(isinstance(b, tuple | Mapping) or (isinstance(b, Tensor) and b.ndim > 1) for b in data)
    # Arrays, frames and sparse matrices can be iterated over, too: they are one batch.
    one_batch = isinstance(data, Tensor | np.ndarray | tuple | Mapping | str | bytes)
    one_batch = one_batch or hasattr(data, "__array__") or hasattr(data, "tocsr")
    return not one_batch and isinstance(data, Iterable)


def first_item(batch: Any) -> Any:
    """The input of a batch: the first item of a tuple or list, else the batch."""
    if isinstance(batch, tuple | list):
        return batch[0]
    return batch


def stack_batches(where: str, name: str, parts: list[Tensor]) -> Tensor:
    """Join the batches of a loader, whose rows must have one shape."""
    if not parts:
        raise ValueError(sentence(where, f"{name} must have at least one row", "a loader without batches"))
    shapes = sorted({tuple(part.shape[1:]) for part in parts})
    if len(shapes) > 1:
        raise ValueError(sentence(where, f"batches of {name} must have rows of one shape", shapes[:3]))
    return torch.cat(parts)


def as_tensor(where: str, name: str, data: Any) -> Tensor:
    """A real, dense tensor from a tensor or an array of numbers, its dtype kept; anything else is refused by name."""
    if isinstance(data, StoredRows):
        data = data[:]
    if hasattr(data, "tocsr"):
        raise TypeError(sentence(where, f"{name} must be dense", "a sparse matrix", f"Use {name}.toarray()."))
    x = data
    if not isinstance(data, Tensor):
        array = np.asarray(data)
        # A single object that is no array is no data at all; text inside an array is data of the wrong kind.
        is_array = isinstance(data, np.ndarray) or hasattr(data, "__array__") or array.ndim
        if array.dtype.kind in "OUSM" and not is_array:
            fix = "Give a tensor, an array or a DataLoader."
            raise TypeError(sentence(where, f"{name} must be rows of numbers", type(data).__name__, fix))
        try:
            # Objects may be numbers; text and dates never are.
            if array.dtype.kind in "USM":
                raise ValueError(f"an array of {array.dtype}")
            if array.dtype.kind == "O":
                array = array.astype(np.float64)
            # A copy: torch takes neither negative strides nor read-only or foreign-endian memory.
            x = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
        except (ValueError, TypeError) as error:
            fix = "Encode text and dates as numbers first."
            raise ValueError(sentence(where, f"{name} must be rows of numbers", error, fix)) from error
    return dense(where, name, real(where, name, x))
