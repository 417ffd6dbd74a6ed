"""The Lanczos process from given starts, and the quadrature rules it carries."""

from __future__ import annotations

import torch
from torch import Tensor

from .operators import SymmetricOperator, as_operator


class Lanczos:
    r"""Lanczos process :math:`H Q = Q T + \beta_k q_{k+1} e_k^T`, one for each column of the start.

    The columns run side by side and share every product with H. Each new vector is orthogonalized twice
    against its whole basis, so the tridiagonal T keeps the exact process's meaning. A column whose Krylov
    space is exhausted stops growing; ``lengths`` says where.

    Args:
        operator: H, or its matrix.
        start: ``(n,)`` or ``(n, b)``, a start vector a column; the process runs in its dtype.
    """

    def __init__(self, operator: SymmetricOperator | Tensor, start: Tensor) -> None:
        if start.ndim == 1:
            start = start[:, None]
        self._operator = as_operator(operator)
        self.norms = start.norm(dim=0)  # (b,)
        size = torch.where(self.norms > 0, self.norms, torch.ones_like(self.norms))
        n, b = start.shape
        self._basis = start.new_zeros(b, min(n, 16) + 1, n)
        self._basis[:, 0] = (start / size).mT
        self._alphas = start.new_zeros(b, 0)
        self._betas = start.new_zeros(b, 0)
        self.steps = 0
        self.lengths = torch.where(self.norms > 0, n, 0).to(torch.int64)  # (b,) steps each column can take

    @property
    def alphas(self) -> Tensor:
        """Diagonal of T, ``(b, steps)``."""
        return self._alphas

    @property
    def betas(self) -> Tensor:
        """Off-diagonal of T, ``(b, steps)``; the last couples to the vector not yet used."""
        return self._betas

    @property
    def basis(self) -> Tensor:
        """Q, ``(b, steps, n)``: orthonormal rows for each column of the start."""
        return self._basis[:, : self.steps]

    @property
    def is_exhausted(self) -> bool:
        """Whether every column has exhausted its Krylov space: the rules are then exact."""
        return bool((self.lengths <= self.steps).all())

    def extend(self, steps: int) -> Lanczos:
        """Take ``steps`` more products, fewer where every column is exhausted."""
        for _ in range(steps):
            if self.is_exhausted:
                break
            k, n = self.steps, self._basis.shape[2]
            if k + 1 >= self._basis.shape[1]:  # room for twice as many vectors
                longer = self._basis.new_zeros(len(self._basis), min(2 * k + 2, n + 1), n)
                longer[:, : k + 1] = self._basis[:, : k + 1]
                self._basis = longer

            # One product for all columns; its part along the basis is taken away twice, because once leaves rounding.
            q = self._basis[:, k]  # (b, n)
            w = (self._operator @ q.mT.contiguous()).mT.to(q.dtype)
            alpha = (q * w).sum(1)
            basis = self._basis[:, : k + 1]
            for _ in range(2):
                w = w - torch.bmm(torch.bmm(basis, w[:, :, None]).mT, basis)[:, 0]
            beta = w.norm(dim=1)

            # What is left of an exhausted space is rounding of the product, not a direction: such a column ends here.
            scale = torch.cat((self._alphas.abs(), self._betas, alpha.abs()[:, None]), 1).amax(1)
            ended = (beta <= 32 * torch.finfo(w.dtype).eps * n**0.5 * scale) | (self.lengths <= k + 1)
            self.lengths = torch.where(ended, self.lengths.clamp_max(k + 1), self.lengths)
            beta = torch.where(ended, torch.zeros_like(beta), beta)
            inverse = torch.where(ended, torch.zeros_like(beta), 1 / beta.where(~ended, torch.ones_like(beta)))
            self._basis[:, k + 1] = inverse[:, None] * w
            self._alphas = torch.cat((self._alphas, alpha[:, None]), 1)
            self._betas = torch.cat((self._betas, beta[:, None]), 1)
            self.steps = k + 1
        return self

    def tridiagonal(self, column: int, steps: int | None = None) -> tuple[Tensor, Tensor]:
        """Diagonal ``(k,)`` and off-diagonal ``(k,)`` of one column's T after at most ``steps`` steps."""
        k = min(self.steps, int(self.lengths[column]))
        if steps is not None:
            k = min(k, steps)
        return self._alphas[column, :k], self._betas[column, :k]


def gauss(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:  # (k,), (k,) -> (k,), (k,)
    r"""Gauss rule :math:`q^T f(H) q \approx \sum_i w_i f(\theta_i)`: nodes and weights, which sum to 1.

    Exact for polynomials of degree below 2 k. For f with positive even derivatives, such as 1 / x, the rule
    lies below the exact value.
    """
    # Nodes are the eigenvalues of T, weights the squared first entries of its vectors (Golub and Welsch).
    values, vectors = torch.linalg.eigh(_dense(alphas, betas))
    return values, vectors[0].square()


def radau(alphas: Tensor, betas: Tensor, node: float) -> tuple[Tensor, Tensor]:  # (k,), (k,) -> (k + 1,), (k + 1,)
    r"""The Gauss-Radau rule with one prescribed node at or below the spectrum of H.

    T is bordered by :math:`\alpha_{k+1} = a + \beta_k^2 [(T - a I)^{-1}]_{kk}`, which makes ``a`` an
    eigenvalue. For f = 1 / x and a positive node at or below the least eigenvalue the rule lies above the
    exact value.
    """
    shifted = _dense(alphas - node, betas)
    unit = shifted.new_zeros(len(alphas))
    unit[-1] = 1.0
    last = node + betas[-1].square() * torch.linalg.solve(shifted, unit)[-1]
    return gauss(torch.cat((alphas, last[None])), torch.cat((betas, betas.new_zeros(1))))


def _dense(alphas: Tensor, betas: Tensor) -> Tensor:
    return torch.diag(alphas) + torch.diag(betas[: len(alphas) - 1], 1) + torch.diag(betas[: len(alphas) - 1], -1)
