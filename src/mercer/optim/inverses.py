"""The damped inverse of a layer's second moment: dense, by its leading directions, or on the side of its samples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import distributed
from ..linalg import SymmetricOperator, cholesky, randomized_range, shifted
from .directions import Direction, Projected, Whole

_STRIP = 16  # directions are taken so many at a time, or nearly: products of such widths are a third cheaper
_SPARE = 8  # random columns beside the directions of last time: they find what has grown since


def moment(rows: Tensor) -> Tensor:  # (n, d) -> (d, d)
    r"""Second moment :math:`G^\top G / n` over the rows of all ranks."""
    total = distributed.sum_over_ranks(rows.mT @ rows)
    n = distributed.sum_over_ranks(torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device))
    return total / float(n)


def ridge(mean: Tensor, damping: float) -> Tensor:
    r""":math:`\lambda`: damping times the mean eigenvalue; of a layer that has only seen zeros, damping itself."""
    return torch.where(mean > 0, mean, torch.ones_like(mean)) * damping


def damped_inverse(a: Tensor, damping: float, *, where: str) -> Tensor:  # (d, d) -> (d, d)
    r""":math:`(A + \lambda I)^{-1}` with :math:`\lambda = \text{damping} \cdot \operatorname{tr} A / d`, in float64.

    Args:
        a: Symmetric positive semi-definite; a zero matrix counts as trace 1.
        damping: :math:`\lambda` in units of the mean eigenvalue.
        where: The caller's name, for messages.
    """
    a = a.double()
    damped = shifted(a, ridge(a.diagonal().mean(), damping))
    return torch.cholesky_inverse(cholesky(damped, where=where).factor)


class LowRank(NamedTuple):
    r"""The inverse :math:`P = (I - U \operatorname{diag}(D)\, U^\top) / \mu` of :math:`A + \lambda I`, nearly.

    U are leading eigenvectors of A, :math:`\mu = \lambda + \rho` with :math:`\rho` the mean of all other
    eigenvalues, and :math:`D = 1 - \mu / (s + \lambda)` for the leading eigenvalues s. It is the exact inverse for the
    matrix :math:`\hat A` that has :math:`\rho` in place of those others, and
    :math:`\|P (A + \lambda I) - I\| \le` ``error`` :math:`= \|A - \hat A\|_F / \min(\mu, \min s + \lambda)`.
    """

    vectors: Tensor  # (d, q)
    shrink: Tensor  # (q,)
    outside: float  # mu
    error: float

    def dense(self) -> Tensor:  # (d, d)
        """P as a matrix."""
        eye = torch.eye(len(self.vectors), dtype=self.vectors.dtype, device=self.vectors.device)
        return (eye - (self.vectors * self.shrink) @ self.vectors.mT) / self.outside

    def direction(self, weight: Tensor, bias: Tensor | None) -> Direction:  # (c, d - 1), (c,)
        """The gradient times P; weight and bias apart, for joining them costs as much as a product."""
        vectors, mu = self.vectors, self.outside
        w = weight.to(vectors.dtype)
        inner = vectors if bias is None else vectors[:-1]
        along = w @ inner  # (c, q)
        total = torch.dot(w.flatten(), w.flatten())
        if bias is None:
            back = along * self.shrink
            column = None
        else:
            b, last = bias.to(vectors.dtype), vectors[-1]
            total = total + torch.dot(b, b)
            back = along.addr_(b, last) * self.shrink
            column = Whole(torch.addmv(b, back, last, beta=1 / mu, alpha=-1 / mu))
        product = (total - torch.dot(along.flatten(), back.flatten())) / mu
        return Direction(Projected(w, back, inner, mu), column, product)


def low_rank_inverse(a: Tensor, lam: float, tolerance: float, start: Tensor | None, seed: int) -> LowRank | None:
    r"""The inverse by the directions with eigenvalues above ``tolerance`` :math:`\mu`, nearly; None if over d / 2.

    One subspace iteration from the directions of last time and some random ones; where all that were found are above
    the limit, as many again are tried.

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
        spare = torch.randn(d, max(_SPARE, block.shape[1]) if start is None else _SPARE, generator=generator)
        block = torch.cat((block, spare.to(a)), 1)
        if 2 * block.shape[1] >= d:
            return None
        basis = randomized_range(operator, operator @ block, iterations=1 if start is None else 0)
        values, rotation = torch.linalg.eigh(basis.mT @ (a @ basis))
        values, block = values.flip(0).clamp(min=0), basis @ rotation.flip(1)
        rest = (total - values.cumsum(0)).clamp(min=0) / (d - 1 - torch.arange(len(values), device=a.device))
        small = (values <= tolerance * (lam + rest)).nonzero()
        if len(small):
            break
        start = None
    q = int(small[0, 0])
    if q >= _STRIP // 2:
        q = min(max(1, round(q / _STRIP)) * _STRIP, len(values))
    return _inverse_of(values[:q], block[:, :q].contiguous(), lam, total, square)


def _inverse_of(values: Tensor, vectors: Tensor, lam: float, total: float, square: float) -> LowRank:
    d, q = vectors.shape
    rho = max(0.0, total - float(values.sum())) / (d - q)
    off = max(0.0, square - float(values.double().square().sum()) - (d - q) * rho * rho) ** 0.5
    outside = lam + rho
    least = min(outside, float(values[-1]) + lam if q else outside)
    return LowRank(vectors, 1 - outside / (values + lam), outside, off / least)


def dual(rows: Tensor, damping: float, *, where: str) -> tuple[Tensor, Tensor, Tensor]:
    """All ranks' rows ``(n, d)``, the core ``(n, n)`` and lambda of `dual_operator`, in float64."""
    g = distributed.gather_rows(rows.double())
    n, d = g.shape
    lam = ridge(g.square().sum() / (n * d), damping)
    return g, torch.cholesky_inverse(cholesky(shifted(g @ g.mT, n * lam), where=where).factor), lam


def dual_operator(rows: Tensor, core: Tensor, lam: Tensor) -> SymmetricOperator:
    r"""The damped inverse of the moment of n rows, by the push-through identity.

    :math:`(G^\top G / n + \lambda I)^{-1} = \frac{1}{\lambda} (I - G^\top (G G^\top + n \lambda I)^{-1} G)`; in
    float64, for the difference cancels.
    """

    def product(v: Tensor) -> Tensor:  # (d, c) -> (d, c)
        v = v.double()
        return (v - rows.mT @ (core @ (rows @ v))) / lam

    return SymmetricOperator(product, rows.shape[1], device=rows.device)
