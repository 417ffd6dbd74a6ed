"""Scalar products of a tile of rows and columns, shared by all kernels that follow from them."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

_RESOLUTION = 8 * 2.0**-52  # what is closer than this to 1 (to 0, beside the norms) is rounding


class Products:
    """One tile of scalar products in float64, with what several kernels derive from it.

    Args:
        x: Rows, ``(a, d)``.
        y: Columns, ``(b, d)``.
        squared: Squared norms of the rows and of the columns.
    """

    def __init__(self, x: Tensor, y: Tensor, squared: tuple[Tensor, Tensor]) -> None:
        self.dot = x @ y.mT  # (a, b)
        self.rows, self.columns = squared[0][:, None], squared[1][None]

    @functools.cached_property
    def cosines(self) -> Tensor:
        """Cosines, with values within rounding of +-1 set to +-1; 0 for a row of zeros."""
        left, right = (torch.where(s > 0, s, math.inf).rsqrt() for s in (self.rows, self.columns))
        return (self.dot * (left * (1 + _RESOLUTION))).mul_(right).clamp_(-1.0, 1.0)

    @functools.cached_property
    def distances(self) -> Tensor:
        """Squared distances, with values within rounding of 0 set to 0."""
        norms = self.rows + self.columns
        return torch.addcmul(norms, self.dot, self.dot.new_tensor(-2.0)).sub_(_RESOLUTION * norms).clamp_min_(0)
