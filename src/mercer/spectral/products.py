"""Kernels that follow from scalar products and norms: several of them share one matrix product."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import RBF, Cosine, Kernel, Linear, Normalized, Polynomial, Power, Product, ReLUGram, Scaled, Sum

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
        """Cosines, with what cannot be told from +-1 put there; 0 for a row of zeros."""
        return cosine(self.dot, self.rows, self.columns)

    @functools.cached_property
    def distances(self) -> Tensor:
        """Squared distances, with what cannot be told from 0 put there."""
        norms = self.rows + self.columns
        return torch.addcmul(norms, self.dot, self.dot.new_tensor(-2.0)).sub_(_RESOLUTION * norms).clamp_min_(0)


Form = Callable[[Products], Tensor]


def cosine(inner: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``inner / sqrt(rows columns)``, snapped to +-1 within rounding, 0 where a norm is 0."""
    left, right = (torch.where(s > 0, s, math.inf).rsqrt() for s in (rows, columns))
    return (inner * (left * (1 + _RESOLUTION))).mul_(right).clamp_(-1.0, 1.0)


def form(kernel: Kernel) -> Form | None:
    """How ``kernel`` follows from :class:`Products`; None where it does not, or is not known to."""
    if isinstance(kernel, Linear):
        return lambda p: p.dot
    if isinstance(kernel, Cosine):
        return lambda p: p.cosines
    if isinstance(kernel, Polynomial):
        gamma, shift, degree = float(kernel.gamma), float(kernel.coef0 or 0.0), kernel.degree
        return lambda p: (gamma * p.dot + shift) ** degree
    if isinstance(kernel, RBF):
        width = kernel.gamma(torch.zeros((), dtype=torch.float64))
        rate = float(width) if width.ndim == 0 else None
        return None if rate is None else lambda p: torch.exp(-rate * p.distances)
    if isinstance(kernel, ReLUGram):
        return _relu_form(kernel)
    return _compound(kernel)


def _relu_form(kernel: ReLUGram) -> Form | None:
    if kernel.base is None:
        return lambda p: _relu(p.cosines)
    if not isinstance(kernel.base, RBF):  # RBF has a unit diagonal; other bases would need one of their own
        return None
    base = form(kernel.base)
    return None if base is None else lambda p: _relu(base(p))


def _relu(t: Tensor) -> Tensor:
    return torch.arccos(t).neg_().add_(torch.pi).mul_(t).div_(2 * torch.pi)


def _compound(kernel: Kernel) -> Form | None:
    if isinstance(kernel, (Sum, Product)):
        left, right = form(kernel.left), form(kernel.right)
        if left is None or right is None:
            return None
        if isinstance(kernel, Sum):
            return lambda p: left(p) + right(p)
        return lambda p: left(p) * right(p)
    if isinstance(kernel, (Scaled, Power)) and not isinstance(kernel, Normalized):
        inner = form(kernel.kernel)
        if inner is None:
            return None
        if isinstance(kernel, Power):
            exponent = kernel.exponent
            return lambda p: inner(p) ** exponent
        scale = float(kernel.scale)
        return lambda p: scale * inner(p)
    return None
