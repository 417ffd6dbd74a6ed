"""How far a row is from all training rows, by the variance of the Gaussian process behind the kernel machine."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import kernels
from ..linalg import block_rows, blockwise
from ..machines import median_distance
from ..storage import Savable

__all__ = ["Familiarity"]

_LANDMARKS = 500
_REFERENCE = 1000  # training rows, none of them a landmark, that say what is usual
_RANK = 1e-7  # eigenvalues below this share of the largest are rounding
_NOISE = 1e-3  # the ridge: variances far below it are rounding, not distance
_WIDTH = 0.5  # of the median distance
_TAIL, _FARTHEST = 0.95, 0.999  # what is called far; the farthest that training rows may set it to


class Familiarity(Savable, nn.Module):
    r"""From 0, as familiar as the training rows, to 1, unlike all of them.

    The variance of the Gaussian process, prior 1, whose mean the kernel machine is, in its Nystrom form
    :math:`v(z) = 1 - k^T K_{mm}^{-1} k + \lambda k^T (\lambda K_{mm} + K_{mn} K_{nm})^{-1} k`, is compared with that of
    training rows that are left out: 0 up to their median; 0.5 where one in twenty of them is farther; 1 at the prior,
    where the training rows say nothing. Linear in between. :math:`\lambda` is 0.001.

    Args:
        landmarks: m training rows, ``(m, d)``, as the kernel machine sees them.
        root: R, ``(m, r)``, with :math:`v(z) = 1 - \|k(z)^T R\|^2`.
        bandwidth: :math:`\sigma` of the Gaussian kernel.
        middle: Median of v over left-out training rows.
        tail: Their 95 % quantile.
    """

    landmarks: Tensor
    root: Tensor

    def __init__(self, landmarks: Tensor, root: Tensor, bandwidth: float, middle: float, tail: float) -> None:
        super().__init__()
        self.register_buffer("landmarks", landmarks)
        self.register_buffer("root", root)
        self.bandwidth, self.middle, self.tail = bandwidth, middle, tail
        self._kernel = kernels.RBF(1 / (2 * bandwidth**2))

    @classmethod
    def of(cls, z: Tensor, generator: torch.Generator) -> Self:  # (n, d)
        """From training rows on scales where distances mean something."""
        order = torch.randperm(len(z), generator=generator)
        m = min(_LANDMARKS, max(1, len(order) // 2))
        landmarks, reference = z[order[:m]].double(), z[order[m : m + _REFERENCE]].double()
        rows = torch.cat((landmarks, reference))
        bandwidth = _WIDTH * median_distance(rows)
        kernel = kernels.RBF(1 / (2 * bandwidth**2))
        cross = kernel(rows, landmarks)
        root, leverage = _posterior(cross[:m], cross.mT @ cross, _NOISE)
        k = cross[m:] if len(reference) else cross
        h = (k @ leverage).square().sum(1).clamp_max(1 - 1e-6)
        left_out = 1 - (k @ root).square().sum(1) + _NOISE * h.square() / (1 - h)  # each without itself
        middle, tail = left_out.clamp(0, 1).quantile(torch.tensor([0.5, _TAIL], dtype=left_out.dtype)).tolist()
        return cls(landmarks, root, bandwidth, min(middle, _FARTHEST), min(tail, _FARTHEST))

    def variance(self, z: Tensor) -> Tensor:  # (n, d) -> (n,)
        """The posterior variance over the prior's, in [0, 1]."""
        rows = block_rows(3 * len(self.landmarks) * 8)
        return blockwise(
            lambda part: 1 - (self._kernel(part, self.landmarks) @ self.root).square().sum(1), z, block=rows
        )

    @override
    def forward(self, z: Tensor) -> Tensor:  # (n, d) -> (n,)
        v = self.variance(z.to(self.root)).clamp(0, 1)
        near = ((v - self.middle) / max(self.tail - self.middle, 1e-12)).clamp(0, 1)
        far = ((v - self.tail) / (1 - self.tail)).clamp(0, 1)
        return (near + far) / 2


def _posterior(gram: Tensor, scatter: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    r"""R and L with :math:`v = 1 - \|k^T R\|^2` and leverage :math:`\|k^T L\|^2`: (m, m), (m, m) -> (m, r), (m, r).

    In the basis :math:`\phi = \Lambda^{-1/2} U^T k` of the landmarks' Gram matrix the posterior is
    :math:`1 - \|\phi\|^2 + \lambda \phi^T (\lambda I + \Phi^T \Phi)^{-1} \phi`; with
    :math:`\Phi^T \Phi = V \mathrm{diag}(c) V^T` that is :math:`1 - \sum_j (V^T \phi)_j^2 c_j / (c_j + \lambda)`.
    """
    values, vectors = torch.linalg.eigh(gram)
    kept = values > _RANK * values[-1]
    basis = vectors[:, kept] / values[kept].sqrt()
    c, v = torch.linalg.eigh(basis.mT @ scatter @ basis)
    c, basis = c.clamp_min(0), basis @ v
    return basis * (c / (c + penalty)).sqrt(), basis / (c + penalty).sqrt()
