"""The damped inverse of a layer's second moment, by its leading directions or on the side of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import distributed
from ..linalg.cholesky import cholesky, shifted
from ..linalg.eigen import randomized_range
from ..linalg.operators import SymmetricOperator

_STRIP = 16  # directions are taken so many at a time, or nearly: products of such widths are a third cheaper
_SPARE = 8  # random columns beside the directions of last time: they find what has grown since


class Direction(NamedTuple):
    r"""A layer's direction :math:`u = (g - B V^\top) / \mu`, added to parameters without being formed first.

    Attributes:
        gradient: g of the weight, ``(c, d - 1)``.
        bias: u of the bias, ``(c,)``.
        back: B, ``(c, q)``.
        vectors: V of the weight's columns, ``(d - 1, q)``.
        outside: :math:`\mu`.
        product: u times the gradient: no less than the squared change of the outputs.
    """

    gradient: Tensor
    bias: Tensor | None
    back: Tensor
    vectors: Tensor
    outside: float
    product: Tensor

    def add_to(self, targets: Sequence[Tensor], alpha: float, keep: float = 1.0) -> None:
        """Multiply weight, or weight and bias, by ``keep`` and add alpha times the direction, in place.

        That is two passes over the weight, and no tensor of its size in between.
        """
        weight, by = targets[0], alpha / self.outside
        if weight.dtype == self.gradient.dtype and weight.is_contiguous():
            flat = weight.view(self.gradient.shape)
            flat.addmm_(self.back, self.vectors.mT, beta=keep, alpha=-by).add_(self.gradient, alpha=by)
        else:
            u = torch.addmm(self.gradient, self.back, self.vectors.mT, beta=by, alpha=-by)
            weight.mul_(keep).add_(u.reshape(weight.shape))
        if len(targets) > 1 and self.bias is not None:
            targets[1].mul_(keep).add_(self.bias, alpha=alpha)


class Inverse(NamedTuple):
    r"""The inverse :math:`P = (I - V C V^\top) / \mu` of :math:`A + \lambda I`, nearly.

    By leading directions: V are eigenvectors of A, :math:`\mu = \lambda + \rho` with :math:`\rho` the mean of all other
    eigenvalues, and C is diagonal, :math:`1 - \mu / (s + \lambda)` for the leading eigenvalues s. It is the exact
    inverse for the matrix :math:`\hat A` that has :math:`\rho` in place of those others, and
    :math:`\|P (A + \lambda I) - I\| \le` ``error`` :math:`= \|A - \hat A\|_F / \min(\mu, \min s + \lambda)`.

    By samples: :math:`V = G^\top`, :math:`C = (G G^\top + n \lambda I)^{-1}` and :math:`\mu = \lambda`, exactly.
    """

    vectors: Tensor  # V, (d, q)
    core: Tensor  # C, (q,) or (q, q)
    outside: float  # mu
    error: float

    def dense(self) -> Tensor:  # (d, d)
        """P as a matrix."""
        eye = torch.eye(len(self.vectors), dtype=self.vectors.dtype, device=self.vectors.device)
        core = self.core if self.core.ndim == 2 else torch.diag(self.core)
        return (eye - self.vectors @ core @ self.vectors.mT) / self.outside

    def precondition(self, weight: Tensor, bias: Tensor | None) -> Direction:  # (c, d - 1), (c,)
        """The gradient times P; weight and bias apart, for joining them costs as much as a product."""
        vectors, mu = self.vectors, self.outside
        w = weight.to(vectors.dtype)
        inner = vectors if bias is None else vectors[:-1]
        along = w @ inner  # (c, q)
        total = torch.dot(w.flatten(), w.flatten())
        column = None
        if bias is not None:
            b, last = bias.to(vectors.dtype), vectors[-1]
            total = total + torch.dot(b, b)
            along.addr_(b, last)
        back = along * self.core if self.core.ndim == 1 else along @ self.core
        if bias is not None:
            column = torch.addmv(b, back, last, beta=1 / mu, alpha=-1 / mu)
        product = (total - torch.dot(along.flatten(), back.flatten())) / mu
        return Direction(w, column, back, inner, mu, product)


def moment(rows: Tensor) -> Tensor:  # (n, d) -> (d, d)
    r"""Second moment :math:`G^\top G / n` over the rows of all ranks."""
    total = distributed.sum_over_ranks(rows.mT @ rows)
    n = distributed.sum_over_ranks(torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device))
    return total / float(n)


def ridge(mean: float, damping: float) -> float:
    r""":math:`\lambda`: damping times the mean eigenvalue; of a layer that has only seen zeros, damping itself."""
    return damping * mean if mean > 0 else damping


def invert_by_directions(a: Tensor, lam: float, tolerance: float, start: Tensor | None, seed: int) -> Inverse:
    r"""The inverse by the directions with eigenvalues above ``tolerance`` :math:`\mu`; by all if those are over d / 2.

    Args:
        a: A, ``(d, d)``.
        lam: :math:`\lambda`.
        tolerance: Least eigenvalue of a direction of its own.
        start: ``(d, q)`` directions of last time.
        seed: Random seed.
    """
    d = len(a)
    operator = SymmetricOperator.from_matrix(a)
    generator = torch.Generator().manual_seed(seed)
    total, square = float(a.diagonal().sum()), float(a.double().square().sum())
    block = a.new_zeros(d, 0) if start is None else start
    while True:
        # one subspace iteration from the directions of last time and some random ones
        spare = torch.randn(d, max(_SPARE, block.shape[1]) if start is None else _SPARE, generator=generator)
        block = torch.cat((block, spare.to(a)), 1)
        if 2 * block.shape[1] >= d:  # the whole spectrum is as cheap
            values, block = torch.linalg.eigh(a.double())
            values, block, q = values.flip(0).clamp(min=0).to(a), block.flip(1).to(a), d
            break
        basis = randomized_range(operator, operator @ block, iterations=1 if start is None else 0)
        values, rotation = torch.linalg.eigh(basis.mT @ (a @ basis))
        values, block = values.flip(0).clamp(min=0), basis @ rotation.flip(1)
        # directions above the limit are kept, in strips; where all are above, as many again are tried
        others = (total - values.cumsum(0)).clamp(min=0) / (d - 1 - torch.arange(len(values), device=a.device))
        small = (values <= tolerance * (lam + others)).nonzero()
        if len(small):
            q = int(small[0, 0])
            if q >= _STRIP // 2:
                q = min(max(1, round(q / _STRIP)) * _STRIP, len(values))
            break
        start = None
    values, vectors = values[:q], block[:, :q].contiguous()
    rho = max(0.0, total - float(values.sum())) / (d - q) if q < d else 0.0
    outside = lam + rho
    off = max(0.0, square - float(values.double().square().sum()) - (d - q) * rho * rho) ** 0.5 if q < d else 0.0
    least = min(outside, float(values[-1]) + lam if q else outside)
    return Inverse(vectors, 1 - outside / (values + lam), outside, off / least)


def invert_by_samples(rows: Tensor, damping: float, *, where: str) -> Inverse:  # (n, d)
    """The inverse for the moment of these rows, of all ranks, in float64, for the difference cancels."""
    g = distributed.gather_rows(rows.double())
    n, d = g.shape
    lam = ridge(float(g.square().sum()) / (n * min(n, d)), damping)
    core = torch.cholesky_inverse(cholesky(shifted(g @ g.mT, n * lam), where=where).factor)
    return Inverse(g.mT, core, lam, 0.0)
