"""Linearised Laplace with Kronecker factors (KFAC), the rival in the slides' comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import checks
from ..distributed import gather_rows
from ..linalg import slices
from ..modules import unwrap
from .intake import checked_rows, checked_targets, not_fitted, training_pairs
from .likelihood import curvature_root, probit
from .prior_variance import PriorVariance


class KroneckerLaplace:
    r"""Linearised Laplace of a classifier with a block for each linear layer, each block a Kronecker product.

    .. math:: \sum_i (a_i a_i^\top) \otimes (B_i^\top \Lambda_i B_i) \approx
        \Big(\tfrac1n \sum_i a_i a_i^\top\Big) \otimes \Big(\sum_i B_i^\top \Lambda_i B_i\Big) = A \otimes G

    for inputs a (a 1 appended for the bias) and :math:`B = \partial f / \partial z` (Martens and Grosse 2015; Ritter et
    al. 2018). The posterior's covariance of a layer is :math:`(A \otimes G + \delta I)^{-1}`, by the eigenvectors of
    the factors, so that the prior is added exactly.

    Args:
        model: A trained classifier whose trained parameters are those of linear layers.
        prior_precision: :math:`\delta`.
        batch_size: Rows at a time.
    """

    def __init__(self, model: nn.Module, *, prior_precision: float = 1.0, batch_size: int = 64) -> None:
        self.model = unwrap(model)
        self.prior_precision = checks.positive("KroneckerLaplace", "prior_precision", prior_precision)
        self.batch_size = checks.integer("KroneckerLaplace", "batch_size", batch_size, 1)
        self._signals = PriorVariance(self.model)

    def fit(self, loader: Iterable[Any]) -> Self:
        """Sum the factors over the rows; labels have no part in the Gauss-Newton matrix."""
        x, y = (gather_rows(part[:]) for part in training_pairs("KroneckerLaplace.fit", loader, self.model))
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        with torch.no_grad():
            for part in slices(len(x), self.batch_size):
                f = self._signals.outputs(x[part])
                checked_targets("KroneckerLaplace", "classification", y[part], f)
                for name, (layer, a, b) in self._signals.linear_signals(x[part]).items():
                    rows = _with_bias(layer, a).double()
                    roots = curvature_root(
                        "classification", f, torch.eye(f.shape[1], dtype=f.dtype).expand(len(f), -1, -1), 1.0
                    )
                    pulled = (roots.mT @ b).flatten(0, 1).double()  # (n c, out)
                    left, right = rows.mT @ rows / len(x), pulled.mT @ pulled
                    old = sums.get(name)
                    sums[name] = (left, right) if old is None else (old[0] + left, old[1] + right)
        self.factors_ = {name: (*torch.linalg.eigh(a), *torch.linalg.eigh(g)) for name, (a, g) in sums.items()}
        self.row_shape_ = tuple(x.shape[1:])
        return self

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c, c)
        """Mean and covariance of the outputs."""
        if not hasattr(self, "row_shape_"):
            raise not_fitted("KroneckerLaplace")
        x = checked_rows("KroneckerLaplace", x, self.model, self.row_shape_)
        means, covariances = [], []
        with torch.no_grad():
            for part in slices(len(x), self.batch_size):
                f = self._signals.outputs(x[part])
                total = torch.zeros(*f.shape, f.shape[1], dtype=torch.float64)
                for name, (layer, a, b) in self._signals.linear_signals(x[part]).items():
                    value_a, vector_a, value_g, vector_g = self.factors_[name]
                    rows = (_with_bias(layer, a).double() @ vector_a).square()  # (n, in)
                    spread = value_a.clamp_min(0)[:, None] * value_g.clamp_min(0)[None] + self.prior_precision
                    rotated = b.double() @ vector_g  # (n, c, out)
                    total += (rotated * (rows @ (1 / spread))[:, None]) @ rotated.mT
                means.append(f)
                covariances.append(total.to(f.dtype))
        return torch.cat(means), torch.cat(covariances)

    def predict_proba(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """Class probabilities by the probit link."""
        mean, covariance = self.logits(x)
        return probit(mean, covariance.diagonal(dim1=1, dim2=2))


def _with_bias(layer: nn.Linear, a: Tensor) -> Tensor:  # (n, in) -> (n, in + 1)
    return a if layer.bias is None else torch.cat((a, torch.ones_like(a[:, :1])), 1)
