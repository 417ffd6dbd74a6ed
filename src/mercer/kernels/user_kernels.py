"""Kernels the user brings: a Gram matrix, or a function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
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
            _check_gram(gram.detach())
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
            came = tuple(gram.shape) if isinstance(gram, Tensor) else type(gram).__name__
            need = f"f(x, y) must return a tensor of shape ({len(x)}, {len(y)})"
            raise ValueError(checks.sentence("FunctionKernel", need, came))
        return gram


def check_indices(where: str, kernel: Kernel, x: Tensor) -> Tensor:
    """Indices that every Gram matrix within ``kernel`` has; ``forward`` cannot look, and a negative one would wrap."""
    rows = min((len(part.matrix) for part in kernel.modules() if isinstance(part, Precomputed)), default=None)
    if rows is not None and len(x) and (int(x.min()) < 0 or int(x.max()) >= rows):
        need = f"x must hold indices in 0..{rows - 1}, the rows of the Gram matrix"
        raise ValueError(checks.sentence(where, need, f"{int(x.min())}..{int(x.max())}"))
    return x


def _check_gram(gram: Tensor) -> None:
    scale = float(gram.abs().max())
    gap = float((gram - gram.mT).abs().max())
    if gap > _SYMMETRY * scale:
        fix = "Use (gram + gram.T) / 2 if the difference is noise."
        raise ValueError(checks.sentence("Precomputed", "gram must be symmetric", f"a difference of {gap:.1e}", fix))
    if len(gram) <= 2000:
        least = float(torch.linalg.eigvalsh(gram.double())[0])
        if least < -_SYMMETRY * scale * len(gram):
            checks.warn("Precomputed", f"gram is indefinite, with least eigenvalue {least:.2e}.", stacklevel=4)
