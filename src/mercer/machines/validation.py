"""From what users have to checked rows, targets and weights: tensors, arrays, frames, loaders, rows in a file."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from .. import checks
from ..kernels import Kernel
from ..kernels.user_kernels import read_rows
from ..rows.loading import Data, as_tensor, is_loader, load_labelled_rows
from ..rows.rows import Rows
from ..rows.stored import Readable


class TrainingRows(NamedTuple):
    """Checked rows of a fit.

    Attributes:
        x: Rows, ``(n, ...)``.
        y: Targets in float64, ``(n, c)``.
        weight: Weights in float64, ``(n,)``, 0 or more; None where none were given.
        flat: Whether the targets came as ``(n,)``.
    """

    x: Readable
    y: Tensor
    weight: Tensor | None
    flat: bool


def read_training(
    estimator: object, kernel: Kernel | None, x: Data, y: Data | None, sample_weight: Any, *, reset: bool
) -> TrainingRows:
    """Check what ``fit`` or ``partial_fit`` was given.

    Args:
        estimator: Who asks.
        kernel: Checks shape and device of the rows; None where it is still to be chosen.
        x: Rows; or a loader of pairs.
        y: Targets; None where the loader has them.
        sample_weight: Weights, or None.
        reset: Whether the columns are learned.
    """
    where = type(estimator).__name__
    if y is None and (is_loader(x) or isinstance(x, tuple)):
        x, y = load_labelled_rows(where, x)
    if y is None:
        fix = "Call fit(x, y), or give a loader of pairs."
        raise ValueError(f"{where}: fit requires y to be passed, but the target y is None. {fix}")
    data = read_rows(estimator, kernel, x, reset=reset)
    targets = as_tensor(where, "y", y).detach()
    if targets.ndim not in (1, 2) or targets.is_complex():
        raise ValueError(checks.sentence(where, "y must have shape (n,) or (n, c)", tuple(targets.shape)))
    checks.same_length(where, "x", data, "y", targets)
    if Rows(data).n == 0:
        raise ValueError(checks.sentence(where, "x must have at least one row", tuple(data.shape)))
    flat = targets.ndim == 1
    targets = (targets[:, None] if flat else targets).double()
    checks.squarable(where, "y", targets, empty=True)
    weight = None
    if sample_weight is not None:
        if isinstance(sample_weight, Tensor):
            sample_weight = sample_weight.detach().cpu().numpy()
        numbers = np.zeros(0)  # a rank without rows
        if len(data):
            rows = np.empty((len(data), 1))
            numbers = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        weight = torch.from_numpy(np.array(numbers)).to(targets.device)
        if not float(Rows(weight).total(weight.sum())) > 0:
            raise ValueError(checks.sentence(where, "sample_weight must hold a weight above 0", "only 0"))
    return TrainingRows(data, targets, weight, flat)
