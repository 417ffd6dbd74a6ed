"""Pairwise distances and cosines that are exact for a point with itself and have finite gradients there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A sum of d products carries a rounding error of a few units in the last place of |x|^2 + |y|^2.
_RESOLUTION = 8.0
_FEW_FEATURES = 4


def squared_distances(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Squared distances :math:`\|x_i - y_j\|^2`.

    Up to four features: by differences, exact. More: by one matrix product, the rows centred first, because
    :math:`\|x\|^2 + \|y\|^2 - 2 x \cdot y` loses all its digits when the mean is large. What is left below the
    rounding error of that sum cannot be told from 0 and is returned as 0, so a point has distance 0 to itself and to
    its copies; the gradient there is 0 as well. A row that is not finite, or whose squares overflow, is at NaN or
    infinite distance, never at 0, and leaves the distances between the others as they are.
    """
    if x.shape[-1] <= _FEW_FEATURES:
        total = x.new_zeros(len(x), len(y))
        for feature in range(x.shape[-1]):
            total = total + (x[:, feature, None] - y[None, :, feature]).square()
        return total
    centre = (x.detach().sum(0) + y.detach().sum(0)) / max(1, len(x) + len(y))
    limit = math.sqrt(torch.finfo(x.dtype).max / (8 * x.shape[-1]))
    centre = torch.where(centre.abs() < limit, centre, 0.0)  # one bad row must not shift the good ones
    x, y = x - centre, y - centre
    norms = x.square().sum(-1)[:, None] + y.square().sum(-1)[None]  # (n, m)
    squared = torch.addmm(norms, x, y.mT, alpha=-2.0)
    floor = _RESOLUTION * torch.finfo(x.dtype).eps * norms.detach()
    return torch.where(squared < floor, 0.0, squared)  # NaN is not below the floor, nor infinity below infinity


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root with gradient 0, not infinite, at 0."""
    zero = squared <= 0
    return torch.where(zero, torch.zeros_like(squared), torch.where(zero, torch.ones_like(squared), squared).sqrt())


def unit_rows(x: Tensor) -> Tensor:  # (n, d) -> (n, d)
    """Rows on the unit sphere; a row of zeros stays zero."""
    scale = x.detach().abs().amax(-1, keepdim=True)  # squares of tiny or huge entries would under- or overflow
    x = x / torch.where(scale > 0, scale, torch.ones_like(scale))
    norm = safe_sqrt(x.square().sum(-1, keepdim=True))
    return x / torch.where(norm > 0, norm, torch.ones_like(norm))


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
