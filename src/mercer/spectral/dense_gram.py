"""A Gram matrix that the user holds already."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..linalg import SymmetricOperator


class DenseGram(SymmetricOperator):
    """A matrix the user holds already; it is read, never copied.

    Args:
        matrix: H, ``(n, n)``, symmetric.
    """

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(self._multiply, len(matrix), device=matrix.device)
        self.matrix = matrix.detach()
        self.error = 0.0
        double = matrix.dtype is torch.float64
        self.noise, self.rounding = (2.0**-46, 2.0**-49) if double else (2.0**-23, 2.0**-24)
        self._trace = float(self.matrix.diagonal().double().sum())

    @functools.cached_property
    def squared_norm(self) -> float:
        """Squared Frobenius norm."""
        return float(torch.linalg.vector_norm(self.matrix)) ** 2

    def dense(self) -> Tensor:  # (n, n)
        """The matrix in float64; the user's own where it is so already."""
        return self.matrix.double()

    def _multiply(self, v: Tensor) -> Tensor:  # (n, b) -> (n, b), in the matrix's own precision
        v = v.to(self.matrix.dtype)
        if v.shape[1] == 1:
            return (self.matrix @ v[:, 0])[:, None].double()
        return (v.mT.contiguous() @ self.matrix).mT.double()  # H is symmetric, and few rows are faster than few columns
