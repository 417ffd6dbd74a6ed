r"""Measures of a layer, in the poster's columns: H, MSE, CE, C and T."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ..storage.savable import Savable
from .dependence import class_sums, gamma_table

_LEAST = 1e-12  # a probability below this counts as this, so that the cross-entropy of a wrong row stays finite


@dataclass(frozen=True)
class LayerRecord(Savable):
    r"""One layer in the poster's columns (masoomi2020, Experiment 4).

    Attributes:
        bandwidth: :math:`\sigma` of the layer's kernel.
        width: Columns of the layer's output in the input data space (IDS).
        hsic: H, normalised HSIC between the kernel on the outputs and the labels, in [0, 1].
        mse: Mean squared distance of the outputs in IDS to their class's mean: the MSE after the labels are
            translated to the class means (corollary 2.1).
        ce: Cross-entropy of the coordinates in RKHS with respect to the class means as a basis (corollary 2.2).
        c: Mean between-class over mean within-class kernel value; the poster does not define C, this is ours.
        t: Scatter ratio :math:`\mathrm{Tr}(S_w) / \mathrm{Tr}(S_b)` in RKHS (Eq. 6).
    """

    bandwidth: float
    width: int
    hsic: float
    mse: float
    ce: float
    c: float
    t: float

    def row(self) -> dict[str, float]:
        """The record as a dictionary, as ``history_`` shows it."""
        return asdict(self)


def measure_gram(gram: Tensor, z: Tensor, labels: Tensor, c: int, bandwidth: float) -> LayerRecord:
    """The record by the Gram matrix of the outputs' kernel: (n, n), (n, q), (n,)."""
    to_class = class_sums(gram.mT, labels, c).mT  # (n, c)
    means = gram.mean(1)
    centred = gram - means[:, None] - means + means.mean()
    return _record(to_class, gram.diagonal(), float(centred.norm()), z, labels, c, bandwidth)


def measure_features(features: Tensor, z: Tensor, labels: Tensor, c: int, bandwidth: float) -> LayerRecord:
    """The record where the kernel is ``features @ features.T``: (n, D), (n, q), (n,); nothing n x n."""
    to_class = features @ class_sums(features, labels, c).mT
    centred = features - features.mean(0)
    norm = float((centred.mT @ centred).norm())
    return _record(to_class, features.square().sum(1), norm, z, labels, c, bandwidth)


def _record(
    to_class: Tensor, diagonal: Tensor, norm: float, z: Tensor, labels: Tensor, c: int, bandwidth: float
) -> LayerRecord:
    counts = torch.bincount(labels, minlength=c).to(to_class)
    sums = class_sums(to_class, labels, c)  # (c, c) sums of K over pairs of classes

    # H: HSIC over the norms of the centred kernel and of Gamma.
    table = gamma_table(labels, c).to(to_class)
    scale = norm * float((table.square() * counts[:, None] * counts).sum().sqrt())
    dependence = 0.0
    if scale > 0:
        dependence = float((table * sums).sum()) / scale

    # C: mean kernel value between classes over that within.
    within = float(sums.diagonal().sum() / counts.square().sum())
    pairs = float(len(labels) ** 2 - counts.square().sum())
    contrast = 1.0
    if within > 0:
        contrast = float(sums.sum() - sums.diagonal().sum()) / max(pairs, 1.0) / within

    # T: scatter within over scatter between classes; finite where the classes coincide.
    explained = float((sums.diagonal() / counts.clamp_min(1)).sum())
    s_w = max(float(diagonal.sum()) - explained, 0.0)
    s_b = max(explained - float(sums.sum()) / len(labels), 0.0)
    tiny = torch.finfo(torch.float64).eps
    ratio = min(s_w / max(s_b, tiny), 1 / tiny)

    # MSE, once the labels are the classes' means.
    centres = class_sums(z, labels, c) / counts.clamp_min(1)[:, None].to(z)
    mse = float((z - centres[labels]).square().sum(1).mean())

    # CE of coordinates a_i = B^-1 b_i in the basis of the class means: B their Gram matrix, b_i their products.
    to_mean = to_class / counts.clamp_min(1)
    basis = class_sums(to_mean, labels, c) / counts.clamp_min(1)[:, None]  # (c, c)
    coordinates = (to_mean @ torch.linalg.pinv((basis + basis.mT) / 2, hermitian=True)).clamp_min(0)
    shares = coordinates / coordinates.sum(1, keepdim=True).clamp_min(_LEAST)
    ce = float(-shares.gather(1, labels[:, None]).clamp_min(_LEAST).log().mean())
    return LayerRecord(float(bandwidth), z.shape[1], dependence, mse, ce, contrast, ratio)
