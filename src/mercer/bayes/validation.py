"""Checks that every posterior makes of its rows, its labels and the network's outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import checks
from ..rows.agreement import has_several_ranks
from ..rows.loading import Data, as_tensor, load_labelled_rows, load_rows
from ..rows.packing import Packing, split_labels
from ..rows.stored import Readable, StoredRows


def training_pairs(where: str, loader: Iterable[Any], model: nn.Module) -> tuple[Readable, Tensor, Packing | None]:
    """Rows and labels of a loader, or of one pair, as the network takes them; rows in a file stay there.

    Batches that are dictionaries of the network's arguments are packed; the packing says how.
    """
    # Rows in a file are checked block by block, as they are read.
    if isinstance(loader, tuple) and loader and isinstance(loader[0], StoredRows):

        def check_block(block: Tensor) -> Tensor:
            if not len(block):
                return block
            return check_rows(where, block, model, None)

        stored = loader[0].then(check_block)
        y = checks.finite(where, "y", as_tensor(where, "y", loader[1]))
        checks.same_length(where, "x", stored, "y", y)
        return stored, y, None

    # One batch, or all of a loader's; a list is a pair, as default collators give it.
    batches: list[Any] = [loader]
    if not isinstance(loader, Tensor | tuple | Mapping):
        batches = [tuple(batch) if isinstance(batch, list) else batch for batch in loader]

    # Dictionaries of arguments are packed into one tensor.
    named = split_labels(where, batches)
    if named is not None:
        dictionaries, labels = named
        packing = Packing.of(where, dictionaries[0])
        packed = torch.cat([packing.pack(where, arguments) for arguments in dictionaries])
        y = checks.finite(where, "y", torch.cat(labels))
        checks.same_length(where, "x", packed, "y", y)
        return check_rows(where, packed, model, None), y.to(packed.device), packing
    if any(isinstance(batch, tuple) and len(batch) > 2 for batch in batches):
        fix = "Give dictionaries of the network's arguments, with 'labels'."
        raise ValueError(checks.sentence(where, "loader must give pairs (x, y)", "more than 2 items a batch", fix))
    x, y = load_labelled_rows(where, batches)
    return check_rows(where, x, model, None), y.to(x.device), None


def training_rows(where: str, loader: Data, model: nn.Module) -> tuple[Tensor, Packing | None]:
    """Rows alone, whatever else a loader gives with them; dictionaries of the network's arguments are packed."""
    # One batch, or all of a loader's; the first item of each is the input.
    is_one_batch = isinstance(loader, Tensor | tuple | Mapping | np.ndarray | StoredRows)
    batches: Any = loader
    if is_one_batch:
        batches = [loader]
    inputs: list[Any] = [batch[0] if isinstance(batch, tuple | list) and batch else batch for batch in batches]

    # Dictionaries of arguments are packed into one tensor.
    if inputs and all(isinstance(arguments, Mapping) for arguments in inputs):
        packing = Packing.of(where, inputs[0])
        packed = torch.cat([packing.pack(where, arguments) for arguments in inputs])
        return check_rows(where, packed, model, None), packing
    rows: Any = inputs
    if is_one_batch:
        rows = inputs[0]
    return check_rows(where, load_rows(where, rows), model, None), None


def check_rows(where: str, x: object, model: nn.Module, shape: tuple[int, ...] | None) -> Tensor:
    """Finite rows of the shape met in ``fit``, in the network's dtype (float32 where that is half precision).

    Whole numbers go into a network with an embedding layer as they are.
    """
    if not isinstance(x, Tensor) or x.ndim < 2:
        got: object = type(x).__name__
        if isinstance(x, Tensor):
            got = tuple(x.shape)
        fix = "Use x[None] for one row."
        raise ValueError(checks.sentence(where, "x must be a tensor of shape (n, ...)", got, fix))
    if shape is not None and tuple(x.shape[1:]) != shape:
        if x.ndim == 2 and len(shape) == 1:
            need = f"x has {x.shape[1]} features, expecting {shape[0]}"
        else:
            need = f"rows of x must have shape {shape}"
        raise ValueError(checks.sentence(where, need, tuple(x.shape)))
    weight = next(iter(model.parameters()))
    checks.same_device(where, "x", x.device, "the network", weight.device)
    reads_tokens = any(isinstance(layer, nn.Embedding) for layer in model.modules())
    if reads_tokens and bool((x == x.long()).all()):
        return x.detach().long()
    x = checks.finite(where, "x", checks.floating(x))
    # The posterior runs on a float32 copy of a network in half precision.
    dtype = weight.dtype
    if dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    empty = len(x) == 0 and has_several_ranks()  # of several ranks some may have no row
    return checks.squarable(where, "x", x.to(dtype), empty=empty)


def check_outputs(where: str, f: Tensor) -> Tensor:
    """Refuse outputs that are not finite, in a sentence that says where to look."""
    if not bool(torch.isfinite(f).all()):
        need, fix = "the network's outputs must be finite", "Look for NaN weights, or standardise x."
        raise ValueError(checks.sentence(where, need, "NaN or infinity", fix))
    return f


def check_network_runs(where: str, call: Callable[[Tensor], Tensor], row: Tensor) -> None:
    """Run the network on one row; rows of another width than it takes are refused by our own sentence."""
    try:
        call(row)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        need, fix = "the network must run on these rows", f"It says: {reason}"
        raise ValueError(checks.sentence(where, need, f"rows of shape {tuple(row.shape[1:])}", fix)) from error


def not_fitted(where: str) -> Exception:
    """scikit-learn's error, in the house's sentence."""
    from sklearn.exceptions import NotFittedError

    error: Exception = NotFittedError(checks.sentence(where, "must be fitted first", "no fit", "Call fit(loader)."))
    return error


def real_targets(where: str, y: Tensor, f: Tensor) -> Tensor:
    """Targets of the outputs' shape ``(n, c)``."""
    if y.ndim == 1:
        y = y[:, None]
    y = y.flatten(1).to(f.dtype)
    if y.shape != f.shape:
        raise ValueError(checks.sentence(where, f"targets must be {tuple(f.shape)}", tuple(y.shape)))
    return checks.finite(where, "y", y)


def class_labels(where: str, y: Tensor, c: int) -> Tensor:
    """Labels ``(n,)`` in 0..c-1."""
    if y.ndim == 2 and y.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(f"{where}: labels of shape (n, 1) were taken as (n,).", DataConversionWarning, stacklevel=5)
        y = y[:, 0]
    if y.is_floating_point() or y.ndim != 1 or (len(y) and (int(y.min()) < 0 or int(y.max()) >= c)):
        need = f"labels must be whole numbers in 0..{c - 1}, shape (n,)"
        came: object = y.dtype
        if not y.is_floating_point():
            came = f"{int(y.min())}..{int(y.max())}, shape {tuple(y.shape)}"
        raise ValueError(checks.sentence(where, need, came))
    return y.long()
