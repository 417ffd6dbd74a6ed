"""Pairwise distances and cosines that are exact for a point with itself and have finite gradients there."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .manhattan import manhattan_distances
from .torch_internals import differentiated, readable, records_graph

# A sum of d products carries a rounding error of a few units in the last place of |x|^2 + |y|^2.
_RESOLUTION = 8.0
_FEW_FEATURES = 4
_CENTRE_ROWS = 16


def squared_distances(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Squared distances :math:`\|x_i - y_j\|^2`.

    Up to four features: by differences, exact. More: by one matrix product, the rows centred first, because
    :math:`\|x\|^2 + \|y\|^2 - 2 x \cdot y` loses all its digits when the mean is large. What is left below the
    rounding error of that sum cannot be told from 0 and is returned as 0, so a point has distance 0 to itself and to
    its copies; the gradient there is 0 as well. A row with a NaN is at distance NaN, one whose squares overflow as far
    away as the dtype can say, and neither changes the distances between the others.
    """
    if x.shape[-1] <= _FEW_FEATURES:
        return _by_differences(x, y)
    if not differentiated(x, y):
        left, right = _with_norms_inside(x, y)
        return (left @ right.mT).clamp_min_(0)
    x, y, rows, columns = _with_norms(x, y)
    norms = rows[:, None] + columns[None]  # (n, m)
    squared = torch.addmm(norms, x, y.mT, alpha=-2.0)
    floor = _RESOLUTION * torch.finfo(x.dtype).eps * norms.detach()
    return torch.where(squared < floor, 0.0, squared)  # NaN is not below the floor


def squared_tiles(x: Tensor, y: Tensor) -> Callable[[slice, slice], Tensor]:
    """The same between some rows and some columns; what all tiles share is computed once."""
    if x.shape[-1] <= _FEW_FEATURES:
        return lambda rows, columns: _by_differences(x[rows], y[columns])
    left, right = _with_norms_inside(x, y)
    return lambda rows, columns: (left[rows] @ right[columns].mT).clamp_min_(0)


def _by_differences(x: Tensor, y: Tensor) -> Tensor:
    total = x.new_zeros(x.shape[0], y.shape[0])  # len() would fix the rows of an exported graph
    for feature in range(x.shape[-1]):
        total = total + (x[:, feature, None] - y[None, :, feature]).square()
    return total


def _with_norms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    centre = _centre(x.detach(), y.detach())
    x, y = x - centre, y - centre
    rows, columns = x.square().sum(-1), y.square().sum(-1)
    if _has_overflown(rows, columns):
        x, y = _held(x), _held(y)
        rows, columns = x.square().sum(-1), y.square().sum(-1)
    return x, y, rows, columns


def _with_norms_inside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # (n, d), (m, d) -> (n, d + 2), (m, d + 2)
    """Rows whose products are the squared distances: the norms ride along as two more features.

    They are lowered by the rounding error of the sum, so that what cannot be told from 0 falls below it.
    """
    x, y, rows, columns = _with_norms(x, y)
    keep = 1 - _RESOLUTION * torch.finfo(x.dtype).eps
    left = torch.cat((-2 * x, keep * rows[:, None], torch.ones_like(rows)[:, None]), 1)
    return left, torch.cat((y, torch.ones_like(columns)[:, None], keep * columns[:, None]), 1)


def median_distance(x: Tensor, *, p: int = 2, rows: int = 1000) -> float:  # (n, d)
    """Median of the distances above 0 between rows; 0 where all rows are equal. The usual start of a bandwidth.

    Args:
        x: Rows, finite.
        p: 2 for Euclidean distances, 1 for sums of absolute differences.
        rows: Evenly spaced rows that are looked at.
    """
    x = x.detach()[torch.linspace(0, len(x) - 1, min(len(x), rows), device=x.device).round().long()].double()
    largest = float(x.abs().max()) if x.numel() else 0.0
    if not largest > 0:
        return 0.0
    x = x / largest  # squares of tiny values would vanish
    distances = manhattan_distances(x, x) if p == 1 else squared_distances(x, x)
    apart = distances[distances > 0]
    if not len(apart):
        return 0.0
    return float(apart.median()) ** (1 if p == 1 else 0.5) * largest


def _centre(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (d,)
    """Medians over a few rows: a mean would follow one far row, and take the digits of all the others with it."""
    if records_graph():  # a graph must not know the number of rows, and ONNX has no median
        return y.mean(0).nan_to_num(0.0, 0.0, 0.0)
    sample = torch.cat([part[:: max(1, len(part) // _CENTRE_ROWS)][:_CENTRE_ROWS] for part in (x, y)])
    return sample.nanmedian(0).values.nan_to_num(0.0, 0.0, 0.0) if len(sample) else sample.new_zeros(x.shape[-1])


def _has_overflown(rows: Tensor, columns: Tensor) -> bool:
    """Whether a sum of squares is near it; looked at only where values can be read."""
    if not readable(rows, columns):
        return False
    limit = torch.finfo(rows.dtype).max / 8
    return bool((rows.detach() > limit).any() | (columns.detach() > limit).any())


def _held(x: Tensor) -> Tensor:
    """Rows whose squares overflow brought back along their direction, and a little less the larger they were."""
    limit = math.sqrt(torch.finfo(x.dtype).max / (8 * x.shape[-1]))
    excess = x.detach().abs().amax(-1, keepdim=True) / limit
    factor = (1 + excess.clamp_min(1.0).log2() / 4096) / excess  # at most 5/4 of the limit, even in float64
    return x * torch.where(excess > 1, factor, 1.0)


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root with gradient 0, not infinite, at 0."""
    if not differentiated(squared):
        return squared.clamp_min(0).sqrt_()
    zero = squared <= 0
    return torch.where(zero, torch.zeros_like(squared), torch.where(zero, torch.ones_like(squared), squared).sqrt())


def norms_and_units(x: Tensor) -> tuple[Tensor, Tensor]:  # (n, d) -> (n,), (n, d)
    """Lengths of the rows, and the rows on the unit sphere; a row of zeros stays zero."""
    scale = x.detach().abs().amax(-1, keepdim=True)  # squares of tiny or huge entries would under- or overflow
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    x = x / scale
    norm = safe_sqrt(x.square().sum(-1, keepdim=True))
    return (norm * scale)[..., 0], x / torch.where(norm > 0, norm, torch.ones_like(norm))


def unit_rows(x: Tensor) -> Tensor:  # (n, d) -> (n, d)
    """Rows on the unit sphere; a row of zeros stays zero."""
    return norms_and_units(x)[1]


def scalar_products(x: Tensor, y: Tensor, factor: Tensor | None = None) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Scalar products :math:`\langle x_i, y_j \rangle`, times ``factor``; infinite only where that value overflows.

    A plain product of rows whose squares overflow adds inf and -inf, which is NaN. Such rows are shortened first and
    their products lengthened afterwards. The others are not touched, nor is any row slowed down where none is so long.
    """
    limit = math.sqrt(torch.finfo(x.dtype).max / (8 * x.shape[-1]))
    scales = None
    if not readable(x, y) or not (_all_below(limit, x) and _all_below(limit, y)):
        # One factor of at least 1 for each row; it is a constant to a derivative, because it cancels.
        longest = [rows.detach().abs().amax(-1, keepdim=True) / limit for rows in (x, y)]
        scales = [torch.where((excess > 1) & (excess < math.inf), excess, 1.0) for excess in longest]
        x, y = x / scales[0], y / scales[1]
    products = x @ y.mT
    if factor is not None:  # before the lengths: a small factor may keep the value finite
        products = factor * products
    return products if scales is None else products * scales[0] * scales[1].mT


def _all_below(limit: float, x: Tensor) -> bool:
    if not x.numel():
        return True
    least, most = torch.aminmax(x.detach())
    return bool((least > -limit) & (most < limit))  # False for a NaN


def cosines(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Cosines :math:`\langle x_i, y_j \rangle / (\|x_i\| \|y_j\|)` in [-1, 1], 0 for a row of zeros.

    Within the rounding error of 1 (of -1) they are 1 (-1), so a row has cosine 1 with its copies.
    """
    return clamp_cosines(unit_rows(x) @ unit_rows(y).mT)


def clamp_cosines(t: Tensor) -> Tensor:
    """Products of unit vectors, with what cannot be told from +-1 put there; the gradient passes as if unclamped."""
    edge = 1.0 - _RESOLUTION * torch.finfo(t.dtype).eps
    snapped = torch.where(t.detach().abs() > edge, t.detach().sign(), t.detach())
    return t + (snapped - t.detach())


def angles(t: Tensor) -> Tensor:
    """``arccos`` of cosines, with gradient 0, not infinite, at +-1."""
    edge = t.abs() >= 1
    inner = torch.where(edge, torch.zeros_like(t), t).arccos()
    return torch.where(edge, torch.where(t > 0, torch.zeros_like(t), torch.full_like(t, torch.pi)), inner)
