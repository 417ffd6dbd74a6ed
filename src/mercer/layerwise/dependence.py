r"""HSIC between a representation and the labels, its degrees and its matrix Q, by Gram matrix or by features.

:math:`\Gamma = H Y Y^T H` depends on two rows only through their classes, so it is a table :math:`(c, c)`. With
features :math:`\Phi` of the kernel every sum over pairs of rows becomes a sum over classes: O(n D) for HSIC and the
degrees, O(n d D + c d^2 D) for Q, and nothing of size n x n is formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import RBF
from ..linalg.blocks import block_rows, slices


def one_hot(labels: Tensor, c: int, dtype: torch.dtype = torch.float64) -> Tensor:  # (n,) -> (n, c)
    """Y: a column for each class."""
    return torch.nn.functional.one_hot(labels, c).to(dtype)


def gamma_table(labels: Tensor, c: int) -> Tensor:  # (n,) -> (c, c)
    r""":math:`\Gamma = H Y Y^T H` as a table over pairs of classes.

    :math:`\Gamma_{ij} = [y_i = y_j] - n_{y_i} / n - n_{y_j} / n + \sum_k n_k^2 / n^2` (masoomi2020, Eq. 1).
    """
    shares = torch.bincount(labels, minlength=c).double() / len(labels)
    return torch.eye(c, dtype=torch.float64, device=labels.device) - shares[:, None] - shares + shares.square().sum()


def gaussian(bandwidth: float) -> RBF:
    r""":math:`\exp(-\|x - y\|^2 / (2 \sigma^2))`, the poster's form of the Gaussian kernel."""
    return RBF(1 / (2 * bandwidth**2))


def class_sums(x: Tensor, labels: Tensor, c: int) -> Tensor:  # (n, m), (n,) -> (c, m)
    """Sum of the rows of every class, :math:`Y^T x`."""
    return x.new_zeros(c, x.shape[1]).index_add_(0, labels, x)


def hsic(gram: Tensor, labels: Tensor, c: int) -> Tensor:  # (n, n), (n,) -> ()
    r""":math:`\mathrm{Tr}(\Gamma K)`, the objective of a layer (masoomi2020, Eq. 1)."""
    blocks = class_sums(class_sums(gram, labels, c).mT, labels, c)  # (c, c) sums of K over pairs of classes
    return (gamma_table(labels, c).to(gram.dtype) * blocks).sum()


def feature_hsic(features: Tensor, labels: Tensor, c: int) -> Tensor:  # (n, D), (n,) -> ()
    r""":math:`\mathrm{Tr}(\Gamma \Phi \Phi^T)` in O(n D)."""
    sums = class_sums(features, labels, c)
    return (gamma_table(labels, c).to(features.dtype) * (sums @ sums.mT)).sum()


def degrees(gram: Tensor, labels: Tensor, c: int) -> Tensor:  # (n, n), (n,) -> (n,)
    r""":math:`\hat\Gamma 1` with :math:`\hat\Gamma = \Gamma \odot K`."""
    to_class = class_sums(gram.mT, labels, c).mT  # (n, c)
    return (gamma_table(labels, c).to(gram.dtype)[labels] * to_class).sum(1)


def feature_degrees(features: Tensor, labels: Tensor, c: int) -> Tensor:  # (n, D), (n,) -> (n,)
    r""":math:`(\Gamma \odot \Phi \Phi^T) 1` in O(n D + n c)."""
    mixed = gamma_table(labels, c).to(features.dtype) @ class_sums(features, labels, c)  # (c, D)
    return (features * mixed[labels]).sum(1)


def ism_matrix(gram: Tensor, r: Tensor, labels: Tensor, c: int) -> Tensor:  # (n, n), (n, d), (n,) -> (d, d)
    r""":math:`Q = R^T (\hat\Gamma - \mathrm{Diag}(\hat\Gamma 1)) R`, the Gaussian's (masoomi2020, Eq. 9).

    The gradient of HSIC is :math:`2 Q W / \sigma^2`. Rows of :math:`\hat\Gamma` are made in blocks, so that only
    ``gram`` itself is n x n.
    """
    table = gamma_table(labels, c).to(gram.dtype)
    product = torch.empty_like(r)
    for rows in slices(len(r), block_rows(len(r) * gram.element_size())):
        product[rows] = (table[labels[rows]][:, labels] * gram[rows]) @ r
    return _symmetric(r.mT @ (product - degrees(gram, labels, c)[:, None] * r))


def feature_ism_matrix(features: Tensor, r: Tensor, labels: Tensor, c: int) -> Tensor:
    r"""Q where :math:`K = \Phi \Phi^T`: (n, D), (n, d), (n,) -> (d, d), in O(n d D + c d^2 D).

    :math:`R^T (\Gamma \odot \Phi \Phi^T) R = \sum_f A_f^T \Gamma_c A_f`, where row k of :math:`A_f` is the sum over
    class k of :math:`\Phi_{if} r_i` and :math:`\Gamma_c` the table over classes.
    """
    values, vectors = torch.linalg.eigh(gamma_table(labels, c).to(features.dtype))
    d, total = r.shape[1], r.new_zeros(r.shape[1], r.shape[1])
    members = [(labels == k).nonzero()[:, 0] for k in range(c)]
    for columns in slices(features.shape[1], block_rows(2 * c * d * r.element_size())):
        sums = torch.stack([features[rows][:, columns].mT @ r[rows] for rows in members])  # (c, f, d)
        mixed = torch.einsum("kj,kfd->jfd", vectors, sums)
        total += torch.einsum("j,jfd,jfe->de", values, mixed, mixed)
    return _symmetric(total - r.mT @ (feature_degrees(features, labels, c)[:, None] * r))


def linear_ism_matrix(r: Tensor, labels: Tensor, c: int) -> Tensor:  # (n, d), (n,) -> (d, d)
    r""":math:`R^T \Gamma R`: the linear kernel's Q, constant in W, so that one eigendecomposition solves it."""
    sums = class_sums(r, labels, c)
    return _symmetric(sums.mT @ gamma_table(labels, c).to(r.dtype) @ sums)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2
