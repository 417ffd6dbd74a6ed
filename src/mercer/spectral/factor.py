"""The Cholesky factor of H, shared by all targets that are read by one H."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .. import checks
from .gram_matrices import Gram

_DENSE_ROWS = 6000  # up to here a factor costs less than one run of Lanczos, by `mercer bench spectral`,
_FINE_ROWS = 10_000  # and up to here less than two runs to an accuracy below _FINE: the targets and their control
_FINE = 1e-7
_PRODUCT = 8.0  # flops of a product count so much beside those of a factor: they wait for memory


class Factor:
    r"""H = L L^T in float64, computed when it pays: for few rows, or when as much was spent on products already.

    Args:
        gram: H.
        tolerance: Relative accuracy that products would have to reach.
        rows: Up to so many rows the factor pays at once; None takes what was measured.
    """

    def __init__(self, gram: Gram, tolerance: float, rows: int | None = None) -> None:
        self._gram = gram
        self._rows = (_FINE_ROWS if tolerance < _FINE else _DENSE_ROWS) if rows is None else rows
        self._spent = 0.0

    def spend(self, products: int) -> None:
        """Count products with one column each that a factor would have saved."""
        self._spent += _PRODUCT * products * self._gram.n**2

    @property
    def pays(self) -> bool:
        """Whether the factor is there, or worth its n^3 / 3 flops and fits the free memory."""
        n, free = self._gram.n, checks.available_memory()
        worth = "lower" in self.__dict__ or n <= self._rows or self._spent >= n**3 / 3
        return worth and (free is None or 4 * 8 * n**2 <= free)

    @functools.cached_property
    def lower(self) -> Tensor | None:  # (n, n)
        """L; None where H is singular to rounding, which Lanczos handles."""
        lower, failed = torch.linalg.cholesky_ex(self._gram.dense())
        if bool(failed):
            return None
        pivots = lower.diagonal().square()
        return lower if float(pivots.min()) > 1e3 * self._gram.noise * float(pivots.max()) else None

    def half(self, columns: Tensor) -> Tensor | None:  # (n, c) -> (n, c)
        """L^-1 Y; None where there is no factor."""
        if not self.pays or self.lower is None:
            return None
        half: Tensor = torch.linalg.solve_triangular(self.lower, columns, upper=False)
        return half

    def slack(self, floor: float, error: float) -> float:
        r"""Bound on the relative error of :math:`\|L^{-1} y\|^2` where no eigenvalue of H is below the floor.

        The factor is that of H + E with :math:`\|E\| \le \gamma \, \mathrm{tr} H`, the substitution adds
        :math:`2 \gamma \|L\|_F / \sqrt{\text{floor}}`, with :math:`\gamma = (n + 1) u / (1 - (n + 1) u)` (Higham 2002,
        Theorems 8.5 and 10.3).

        Args:
            floor: The least that an eigenvalue can be.
            error: Bound on the spectral norm of (H as held - true H).
        """
        unit = (self._gram.n + 1) * 2.0**-53
        gamma = unit / (1 - unit)
        moved = (gamma * self._gram.trace + error) / floor
        return math.inf if moved >= 0.5 else 2 * moved + 4 * gamma * math.sqrt(self._gram.trace / floor)
