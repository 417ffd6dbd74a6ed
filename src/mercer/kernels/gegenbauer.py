r"""Gegenbauer polynomials scaled to 1 at t = 1, of :math:`t = \langle u, v \rangle` between unit vectors.

Schoenberg (1942): a radial kernel is positive definite on the sphere of :math:`R^d` exactly when its series in these
polynomials has no negative coefficient. Positive definite in *every* dimension are only the series in powers of t.
"""

from __future__ import annotations

import torch
from torch import Tensor


def recurrence(order: int, dim: int) -> tuple[tuple[float, float], ...]:
    r"""Factors (a, b) of :math:`P_{m+1}(t) = a \, t P_m(t) - b P_{m-1}(t)` for m = 1 .. order - 1.

    With :math:`\lambda = (d - 2) / 2`: :math:`a = 2 (m + \lambda) / (m + 2 \lambda)`, :math:`b = m / (m + 2 \lambda)`.
    d = 2 gives Chebyshev's polynomials, d = 3 Legendre's.
    """
    twice = float(dim - 2)
    return tuple(((2 * m + twice) / (m + twice), m / (m + twice)) for m in range(1, order))


def monomials(order: int, dim: int) -> Tensor:
    """Row m holds the coefficients of :math:`P_m` in powers of t: ``(order + 1, order + 1)``, float64."""
    rows = torch.zeros(order + 1, order + 1, dtype=torch.float64)
    rows[0, 0] = 1.0
    if order >= 1:
        rows[1, 1] = 1.0
    for m, (a, b) in enumerate(recurrence(order, dim), start=1):
        rows[m + 1, 1:] = a * rows[m, :-1]
        rows[m + 1] -= b * rows[m - 1]
    return rows
