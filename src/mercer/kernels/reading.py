"""From what users bring to checked rows of a kernel: tensors, arrays, frames, loaders, rows in a file."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .. import checks
from ..rows.agreement import has_several_ranks
from ..rows.loading import Data, as_tensor, is_loader, load_rows
from ..rows.stored import Readable, StoredRows, open_rows
from .base import Kernel
from .user_kernels import Precomputed, check_indices


def read_rows(estimator: object, kernel: Kernel | None, x: Data, *, reset: bool) -> Readable:
    """Finite rows of the kernel's kind, with scikit-learn's checks of the columns' number and names.

    Arrays, lists and frames go through scikit-learn's ``validate_data``. Tensors, loaders and files are checked here;
    indices of a precomputed Gram matrix stay whole numbers.

    Args:
        estimator: Who asks; gets ``n_features_in_`` and, from a frame, ``feature_names_in_``.
        kernel: Checks shape and device of the rows; None where it is still to be chosen.
        x: Rows.
        reset: Whether the columns are learned, in ``fit``; else they must be those of ``fit``.
    """
    from sklearn.utils.validation import validate_data

    where = type(estimator).__name__
    if isinstance(x, StoredRows | np.memmap):
        stored = x if isinstance(x, StoredRows) else open_rows(x)
        if kernel is not None:
            kernel.prepare("x", stored[:0])
        validate_data(estimator, stored, reset=reset, skip_check_array=True)
        return stored
    indices = kernel is not None and any(isinstance(part, Precomputed) for part in kernel.modules())
    is_array = not isinstance(x, Tensor) and not is_loader(x)
    if is_array and not indices:
        least = 0 if has_several_ranks() else 1  # of several ranks some may have no rows
        x = validate_data(estimator, x, reset=reset, dtype="numeric", allow_nd=True, ensure_min_samples=least)
    whole = isinstance(x, Tensor) and not x.is_floating_point()
    if is_array:
        whole = np.asarray(x).dtype.kind in "iu"
    data = as_tensor(where, "x", x).detach() if whole and kernel is not None else load_rows(where, x)
    data = checks.matrix(where, "x", data) if kernel is None else kernel.prepare("x", data)
    if not is_array or indices:
        validate_data(estimator, data, reset=reset, skip_check_array=True)
    if data.is_floating_point():
        return checks.squarable(where, "x", data, empty=True)
    return check_indices(where, kernel, data) if kernel is not None else data
