"""From what users have to checked rows and targets: tensors, arrays, loaders, rows in a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import checks
from ..distributed import global_slice
from ..kernels import Kernel, check_indices
from ..modules import Data, Readable, StoredRows, as_tensor, labelled_rows, open_rows, rows


def checked_training(where: str, kernel: Kernel | None, x: Data, y: Data | None) -> tuple[Readable, Tensor, bool]:
    """Rows ``(n, ...)``, float64 targets ``(n, c)``, and whether the targets came as ``(n,)``.

    Args:
        where: Who asks, for the error sentences.
        kernel: Checks shape and device of the rows; None where it is still to be chosen.
        x: Rows; or a loader of pairs.
        y: Targets; None where the loader has them.
    """
    if y is None:
        x, y = labelled_rows(where, x)
    data = checked_rows(where, kernel, x)
    targets = as_tensor(where, "y", y).detach()
    if targets.ndim not in (1, 2) or targets.is_complex():
        raise ValueError(checks.sentence(where, "y must have shape (n,) or (n, c)", tuple(targets.shape)))
    checks.same_length(where, "x", data, "y", targets)
    if global_slice(len(data))[1] == 0:
        raise ValueError(checks.sentence(where, "x must have at least one row", tuple(data.shape)))
    flat = targets.ndim == 1
    targets = (targets[:, None] if flat else targets).double()
    return data, checks.squarable(where, "y", targets, empty=True), flat


def checked_rows(where: str, kernel: Kernel | None, x: Any) -> Readable:
    """Finite rows of the kernel's kind; indices of a precomputed Gram matrix stay whole numbers."""
    if isinstance(x, StoredRows | np.memmap):
        stored = x if isinstance(x, StoredRows) else open_rows(x)
        if kernel is not None:
            kernel.prepare("x", stored[:0])
        return stored
    whole = isinstance(x, Tensor | np.ndarray) and not _floats(x)
    data = as_tensor(where, "x", x).detach() if whole and kernel is not None else rows(where, x)
    data = checks.matrix(where, "x", data) if kernel is None else kernel.prepare("x", data)
    if data.is_floating_point():
        return checks.squarable(where, "x", data, empty=True)
    return check_indices(where, kernel, data) if kernel is not None else data


def _floats(x: Tensor | np.ndarray[Any, Any]) -> bool:
    return torch.is_floating_point(x) if isinstance(x, Tensor) else x.dtype.kind not in "iu"
