"""What is known for certain of H: a floor under its least eigenvalue, and what rounding did to its entries."""

from __future__ import annotations

import functools

from torch import Tensor

from ..kernels import Kernel, ReLUGram
from .gram_matrices import Gram


class Proof:
    """Bounds on a ``ReLUGram``, computed when they are first asked for and shared by all targets of one H.

    Args:
        kernel: The kernel.
        x: Its rows, in float64.
        gram: H as it is held.
    """

    def __init__(self, kernel: ReLUGram, x: Tensor, gram: Gram) -> None:
        self._kernel, self._x, self._gram = kernel, x, gram

    @functools.cached_property
    def _bounds(self) -> tuple[float, float]:
        floor, error = self._kernel.bounds(self._x)
        # No entry of the diagonal is above its true value, 1/2: together they are wrong by what the trace lacks.
        lacking = float(self._kernel.gram_diag(self._x).double().sum()) - self._gram.trace
        return floor, error + abs(lacking)

    @property
    def floor(self) -> float:
        """Lower bound on the least eigenvalue of the true H; 0 where none above 0 was found."""
        return self._bounds[0]

    @property
    def error(self) -> float:
        """Bound on the spectral norm of (H as computed in float64 - true H)."""
        return self._bounds[1]


def proof(kernel: Kernel, x: Tensor, gram: Gram) -> Proof | None:
    """Bounds where the kernel has some; None for kernels that have none."""
    return Proof(kernel, x, gram) if isinstance(kernel, ReLUGram) else None
