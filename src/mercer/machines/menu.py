"""The menu of kernels that a table's columns are tried with, and which columns matter to one of them."""

from __future__ import annotations

from torch import Tensor

from ..kernels import RBF, Kernel, Laplacian, Linear, Matern
from .dual import dual_fit
from .selection import median_distance

__all__ = ["kernels_on", "relevance"]

_PER_COLUMN = (0.5, 1.5, 4.0)  # times the median distance in the 1-norm
_EUCLIDEAN = (1.0, 4.0)  # times the median distance
_GAUSSIAN = (0.4, 1.0)
_LEAST_RELEVANCE = 1e-3
_POWER = 0.35  # of the mean squared derivatives: between the root that xRFM takes and the fourth root


def kernels_on(z: Tensor, *, linear: bool) -> list[Kernel]:  # (n, d)
    """Laplacian kernels, column by column and Euclidean, Gaussian ones and, where asked for, the linear one."""
    apart, sums = max(median_distance(z), 1e-150), median_distance(z, 1.0)  # a square that does not underflow to 0
    found: list[Kernel] = [Laplacian(1 / (factor * sums)) for factor in _PER_COLUMN]
    found += [Matern(0.5, factor * apart) for factor in _EUCLIDEAN]
    found += [RBF(1 / (2 * (factor * apart) ** 2)) for factor in _GAUSSIAN]
    if linear:
        found.append((1 / max(float(z.square().sum(1).mean()), 1e-12)) * Linear())
    return found


def relevance(kernel: Kernel, z: Tensor, y: Tensor, penalty: float) -> Tensor:  # (n, d), (n, c) -> (d,)
    r"""A power of :math:`g_j = \frac1n \sum_i \|\partial f / \partial z_j (z_i)\|^2`, scaled to mean square 1.

    f is the machine of a Gaussian kernel :math:`\exp(-\gamma \|x - y\|^2)`, whose derivative is
    :math:`-2 \gamma \sum_i \alpha_i k(z, z_i) (z_j - z_{ij})`.
    """
    assert isinstance(kernel, RBF)
    gram = kernel(z)
    gamma = kernel.gamma(z)
    squares = z.new_zeros(z.shape[1])
    for weights in dual_fit(gram, y, penalty).weights.mT:
        pull = gram * weights
        squares += (2 * gamma * (pull @ z - z * pull.sum(1, keepdim=True))).square().mean(0)
    share = (squares / squares.mean().clamp_min(1e-300)).clamp_min(_LEAST_RELEVANCE) ** _POWER
    return share / share.square().mean().sqrt()
