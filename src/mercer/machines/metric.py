r"""Metrics read off a fitted kernel machine: the average gradient outer product and feature weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import RBF
from ..linalg.blocks import block_rows, slices
from .dual import dual_weights
from .selection import median_distance

_ROUNDS = 3  # of metrics, each learned in the one before it


def average_gradient_outer_product(
    z: Tensor, anchors: Tensor, weights: Tensor, bandwidth: float, row_weight: Tensor | None = None
) -> Tensor:  # (d, d)
    r""":math:`\frac1n \sum_i \sum_k \nabla f_k(z_i) \nabla f_k(z_i)^T`.

    Of the kernel machine :math:`f = \sum_j \alpha_j k_\sigma(\cdot, z_j)`. Directions along which it does not move
    get no weight in the metric that this matrix makes. In closed form,
    :math:`\nabla f_k(z) = \sigma^{-2} \sum_j \alpha_{jk} k_\sigma(z, z_j) (z_j - z)`.

    Args:
        z: Where the gradients are taken, ``(n, d)``.
        anchors: ``(m, d)``.
        weights: :math:`\alpha`, ``(m, c)``.
        bandwidth: :math:`\sigma`.
        row_weight: Weights of the rows in the average, ``(n,)``; None for 1.
    """
    total = z.new_zeros(z.shape[1], z.shape[1])
    c, d = weights.shape[1], z.shape[1]
    kernel = RBF(1 / (2 * bandwidth**2))
    spread = torch.einsum("mc,md->mcd", weights, anchors).reshape(len(anchors), c * d)
    for rows in slices(len(z), block_rows((2 * len(anchors) + 2 * c * d) * z.element_size())):
        gram = kernel(z[rows], anchors)
        pulled = (gram @ spread).reshape(-1, c, d)
        gradient = pulled - (gram @ weights)[:, :, None] * z[rows][:, None]
        if row_weight is not None:
            gradient = row_weight[rows].sqrt()[:, None, None] * gradient
        gradient = gradient.reshape(-1, d)
        total += gradient.mT @ gradient
    size = len(z) if row_weight is None else float(row_weight.sum())
    return total / (size * bandwidth**4)


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


def learn_rotation(
    z: Tensor, y: Tensor, multiple: float, penalty: float, row_weight: Tensor | None = None
) -> Tensor | None:  # (n, d), (n, c) -> (d, d)
    r"""The product of three metric roots, each of the Gaussian machine in the metric before it; None where y is flat.

    One round turns the directions along which the target moves a little to the front; the machine that sees them so is
    better, and its gradients tell more.

    Args:
        z: Rows, each column on one scale.
        y: Targets.
        multiple: Bandwidth of the machines over the median distance.
        penalty: Their ridge.
        row_weight: Weights of the rows, ``(n,)``; None for 1.
    """
    rotation = torch.eye(z.shape[1], dtype=z.dtype)
    for _ in range(_ROUNDS):
        turned = z @ rotation
        bandwidth = multiple * median_distance(turned)
        weights = dual_weights(RBF(1 / (2 * bandwidth**2))(turned), y, penalty, row_weight)
        outer = average_gradient_outer_product(turned, turned, weights, bandwidth, row_weight)
        root = metric_root(outer, "full")
        if root is None:
            return None
        rotation = rotation @ root
    return rotation
