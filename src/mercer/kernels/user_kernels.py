"""Kernels given as a Gram matrix or a function, and the check of a user's rows for any kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..rows.agreement import has_several_ranks
from ..rows.loading import Data, as_tensor, is_loader, load_rows
from ..rows.stored import Readable, StoredRows, open_rows
from .base import Kernel

_SYMMETRY = 1e-5  # relative; a float32 product of a matrix with its transpose is symmetric to about 1e-7


class Precomputed(Kernel):
    """A Gram matrix given by the user; the rows are then whole-number indices into it.

    Args:
        gram: ``(n, n)``, symmetric (else a ``ValueError``) and positive semi-definite (else a warning with the
            least eigenvalue, looked for up to 2,000 rows).

    Use it for a Gram matrix that another program made; rows are named by number.

    >>> Precomputed(torch.eye(3))(torch.tensor([0, 2])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    matrix: Tensor

    def __init__(self, gram: Tensor) -> None:
        super().__init__()
        gram = checks.finite("Precomputed", "gram", checks.floating(checks.matrix("Precomputed", "gram", gram)))
        if gram.shape[0] != gram.shape[1] or gram.shape[0] == 0:
            raise ValueError(checks.sentence("Precomputed", "gram must have shape (n, n), n > 0", tuple(gram.shape)))
        if not gram.is_meta:
            # Symmetric, or an error; positive semi-definite, or a warning.
            scale, gap = float(gram.detach().abs().max()), float((gram - gram.mT).detach().abs().max())
            if gap > _SYMMETRY * scale:
                fix = "Use (gram + gram.T) / 2 if the difference is noise."
                got = f"a difference of {gap:.1e}"
                raise ValueError(checks.sentence("Precomputed", "gram must be symmetric", got, fix))
            if len(gram) <= 2000:
                lowest = float(torch.linalg.eigvalsh(gram.detach().double())[0])
                if lowest < -_SYMMETRY * scale * len(gram):
                    checks.warn("Precomputed", f"gram is indefinite, with least eigenvalue {lowest:.2e}.")
        self.register_buffer("matrix", gram.detach().clone())

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            fix = f"Pass torch.arange({len(self.matrix)}) for all rows."
            raise TypeError(checks.sentence("Precomputed", f"{name} must hold whole-number indices", x.dtype, fix))
        if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[1] != 1):
            raise ValueError(checks.sentence("Precomputed", f"{name} must have shape (n,) or (n, 1)", tuple(x.shape)))
        self._same_device(name, x)
        return x.reshape(-1)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n,), (m,) -> (n, m)
        return self.matrix[x[:, None], y[None]]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n,) -> (n,)
        return self.matrix[x, x]


class FunctionKernel(Kernel):
    """Any function of two sets of rows.

    Args:
        f: ``f(x, y) -> (n, m)`` for ``x`` ``(n, d)`` and ``y`` ``(m, d)``; should be symmetric and positive
            semi-definite, which :meth:`~mercer.kernels.Kernel` cannot know: ``fit`` of a map that uses it warns.

    Use it for a kernel of your own in one line.

    >>> FunctionKernel(lambda x, y: x @ y.T)(torch.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        if not callable(f):
            raise TypeError(checks.sentence("FunctionKernel", "f must be a function of (x, y)", type(f).__name__))
        self.f = f

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        gram = self.f(x, y)
        if not isinstance(gram, Tensor) or gram.shape != (len(x), len(y)):
            came: object = type(gram).__name__
            if isinstance(gram, Tensor):
                came = tuple(gram.shape)
            need = f"f(x, y) must return a tensor of shape ({len(x)}, {len(y)})"
            raise ValueError(checks.sentence("FunctionKernel", need, came))
        return gram


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
    # Rows in a file stay there: only their shape is checked.
    if isinstance(x, np.memmap):
        x = open_rows(x)
    if isinstance(x, StoredRows):
        if kernel is not None:
            kernel.prepare("x", x[:0])
        validate_data(estimator, x, reset=reset, skip_check_array=True)
        return x

    # Arrays and frames: scikit-learn's own checks. Indices of a Gram matrix would become floats there.
    indices = kernel is not None and any(isinstance(part, Precomputed) for part in kernel.modules())
    is_array = not isinstance(x, Tensor) and not is_loader(x)
    if is_array and not indices:
        fewest = int(not has_several_ranks())  # of several ranks some may have no rows
        x = validate_data(estimator, x, reset=reset, dtype="numeric", allow_nd=True, ensure_min_samples=fewest)

    # One tensor; whole numbers stay so where a kernel may read them as indices or tokens.
    if is_array:
        are_whole = np.asarray(x).dtype.kind in "iu"
    else:
        are_whole = isinstance(x, Tensor) and not x.is_floating_point()
    if kernel is None:
        data = checks.matrix(where, "x", load_rows(where, x))
    elif are_whole:
        data = kernel.prepare("x", as_tensor(where, "x", x).detach())
    else:
        data = kernel.prepare("x", load_rows(where, x))
    if not is_array or indices:
        validate_data(estimator, data, reset=reset, skip_check_array=True)
    if data.is_floating_point():
        return checks.squarable(where, "x", data, empty=True)
    if kernel is not None:
        check_indices(where, kernel, data)
    return data


def check_indices(where: str, kernel: Kernel, x: Tensor) -> Tensor:
    """Indices that every Gram matrix within ``kernel`` has; ``forward`` cannot look, and a negative one would wrap."""
    rows = min((len(part.matrix) for part in kernel.modules() if isinstance(part, Precomputed)), default=None)
    if rows is not None and len(x) and (int(x.min()) < 0 or int(x.max()) >= rows):
        need = f"x must hold indices in 0..{rows - 1}, the rows of the Gram matrix"
        raise ValueError(checks.sentence(where, need, f"{int(x.min())}..{int(x.max())}"))
    return x
