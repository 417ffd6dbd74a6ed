"""Pairwise distances that are 0 for a point with itself and have finite gradients there."""

from __future__ import annotations

import torch
from torch import Tensor

# A sum of d products carries a rounding error of a few units in the last place of |x|^2 + |y|^2.
_RESOLUTION = 8.0


def squared_distances(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Squared distances :math:`\|x_i - y_j\|^2` by one matrix product.

    The rows are centred first, because :math:`\|x\|^2 + \|y\|^2 - 2 x \cdot y` loses all its digits when the mean
    is large. What is left below the rounding error of that sum cannot be told from 0 and is returned as 0, so a
    point has distance 0 to itself and to its copies; the gradient there is 0 as well.
    """
    centre = torch.cat((x.detach(), y.detach())).mean(0) if len(x) or len(y) else 0
    x, y = x - centre, y - centre
    norms = x.square().sum(-1)[:, None] + y.square().sum(-1)[None]  # (n, m)
    squared = torch.addmm(norms, x, y.mT, alpha=-2.0)
    floor = _RESOLUTION * torch.finfo(x.dtype).eps * norms.detach()
    return torch.where(squared > floor, squared, torch.zeros_like(squared))


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root with gradient 0, not infinite, at 0."""
    zero = squared <= 0
    return torch.where(zero, torch.zeros_like(squared), torch.where(zero, torch.ones_like(squared), squared).sqrt())
