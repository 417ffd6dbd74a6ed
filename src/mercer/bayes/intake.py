"""What every posterior asks of its rows, its labels and the network's outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .. import checks
from ..distributed import world_size
from ..modules import Readable, StoredRows, as_tensor, labelled_rows


def training_pairs(where: str, loader: Iterable[Any], model: nn.Module) -> tuple[Readable, Tensor]:
    """Rows and labels of a loader, or of one pair, as the network takes them; rows in a file stay there."""
    if isinstance(loader, tuple) and isinstance(loader[0], StoredRows):
        stored = loader[0].then(lambda block: checked_rows(where, block, model, None) if len(block) else block)
        y = checks.finite(where, "y", as_tensor(where, "y", loader[1]))
        checks.same_length(where, "x", stored, "y", y)
        return stored, y
    x, y = labelled_rows(where, loader)
    return checked_rows(where, x, model, None), y.to(x.device)


def checked_rows(where: str, x: object, model: nn.Module, shape: tuple[int, ...] | None) -> Tensor:
    """Finite rows of the shape met in ``fit``, in the network's dtype (float32 where that is half precision).

    Whole numbers go into a network with an embedding layer as they are.
    """
    if not isinstance(x, Tensor) or x.ndim < 2:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
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
    x = x.detach()
    if _reads_tokens(model) and bool((x == x.long()).all()):
        return x.long()
    x = checks.finite(where, "x", checks.floating(x))
    dtype = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
    several = len(x) == 0 and world_size() > 1  # of several ranks some may have no row
    return checks.squarable(where, "x", x.to(dtype), empty=several)


def checked_targets(where: str, likelihood: str, y: Tensor, f: Tensor) -> Tensor:
    """Labels ``(n,)`` in 0..c-1, or targets of the outputs' shape ``(n, c)``; the outputs themselves are looked at."""
    checked_outputs(where, f)
    return _real_targets(where, y, f) if likelihood == "regression" else _labels(where, y, f.shape[1])


def checked_outputs(where: str, f: Tensor) -> Tensor:
    """Finite outputs, or the sentence that says whose fault they are."""
    if not bool(torch.isfinite(f).all()):
        need, fix = "the network's outputs must be finite", "Look for NaN weights, or standardise x."
        raise ValueError(checks.sentence(where, need, "NaN or infinity", fix))
    return f


def not_fitted(where: str) -> Exception:
    """scikit-learn's error, in the house's sentence."""
    from sklearn.exceptions import NotFittedError

    error: Exception = NotFittedError(checks.sentence(where, "must be fitted first", "no fit", "Call fit(loader)."))
    return error


def _real_targets(where: str, y: Tensor, f: Tensor) -> Tensor:
    y = (y.flatten(1) if y.ndim > 1 else y[:, None]).to(f.dtype)
    if y.shape != f.shape:
        raise ValueError(checks.sentence(where, f"targets must be {tuple(f.shape)}", tuple(y.shape)))
    return checks.finite(where, "y", y)


def _labels(where: str, y: Tensor, c: int) -> Tensor:
    if c < 2:
        fix = "Give a binary network two outputs, or use likelihood='regression'."
        raise ValueError(checks.sentence(where, "a classifier must have 2 outputs or more", c, fix))
    if y.ndim == 2 and y.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(f"{where}: labels of shape (n, 1) were taken as (n,).", DataConversionWarning, stacklevel=5)
        y = y[:, 0]
    if y.is_floating_point() or y.ndim != 1 or (len(y) and (int(y.min()) < 0 or int(y.max()) >= c)):
        need = f"labels must be whole numbers in 0..{c - 1}, shape (n,)"
        came = y.dtype if y.is_floating_point() else f"{int(y.min())}..{int(y.max())}, shape {tuple(y.shape)}"
        raise ValueError(checks.sentence(where, need, came))
    return y.long()


def _reads_tokens(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.Embedding) for layer in model.modules())
