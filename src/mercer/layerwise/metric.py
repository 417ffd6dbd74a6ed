r"""Metrics read off a fitted kernel machine: the average gradient outer product and feature weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ..linalg.blocks import block_rows, slices
from .dependence import gaussian


def average_gradient_outer_product(z: Tensor, anchors: Tensor, weights: Tensor, bandwidth: float) -> Tensor:
    r""":math:`\frac1n \sum_i \sum_k \nabla f_k(z_i) \nabla f_k(z_i)^T`.

    Of the kernel machine :math:`f = \sum_j \alpha_j k_\sigma(\cdot, z_j)`. Directions along which it does not move
    get no weight in the metric that this matrix makes. In closed form,
    :math:`\nabla f_k(z) = \sigma^{-2} \sum_j \alpha_{jk} k_\sigma(z, z_j) (z_j - z)`.

    Args:
        z: Where the gradients are taken, ``(n, d)``.
        anchors: ``(m, d)``.
        weights: :math:`\alpha`, ``(m, c)``.
        bandwidth: :math:`\sigma`.
    """
    total = z.new_zeros(z.shape[1], z.shape[1])
    c, d = weights.shape[1], z.shape[1]
    spread = torch.einsum("mc,md->mcd", weights, anchors).reshape(len(anchors), c * d)
    for rows in slices(len(z), block_rows((2 * len(anchors) + 2 * c * d) * z.element_size())):
        gram = gaussian(bandwidth)(z[rows], anchors)
        pulled = (gram @ spread).reshape(-1, c, d)
        gradient = (pulled - (gram @ weights)[:, :, None] * z[rows][:, None]).reshape(-1, d)
        total += gradient.mT @ gradient
    return total / (len(z) * bandwidth**4)


def metric_root(matrix: Tensor, kind: str) -> Tensor | None:  # (d, d) -> (d, d) or (d,)
    """Square root of the metric, scaled to mean square 1; None where the matrix says nothing.

    Args:
        matrix: Average gradient outer product.
        kind: ``"full"``, or ``"diagonal"`` for one weight a feature.
    """
    trace = float(matrix.diagonal().sum())
    if not trace > torch.finfo(matrix.dtype).tiny:
        return None
    scaled = matrix * (len(matrix) / trace)
    if kind == "diagonal":
        return scaled.diagonal().clamp_min(0).sqrt()
    values, vectors = torch.linalg.eigh(scaled)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    return root
