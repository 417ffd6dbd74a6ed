"""A symmetric matrix known by its products: what every iterative method of the library takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from .. import checks
from .blocks import slices

_TRACE_COLUMNS = 64  # columns of the identity in one product, where no cheaper trace is known


class SymmetricOperator:
    r"""A symmetric matrix :math:`A` of shape ``(n, n)`` that is never held: only :math:`A v` is computed.

    Args:
        product: ``(n, b) -> (n, b)``, the product with b columns; None for a class that defines :meth:`multiply`.
        n: Rows of A.
        dtype: Dtype of the products.
        device: Device of the products.
        trace: Sum of the diagonal: a number, or a function that computes it when asked. None takes n products.

    >>> a = SymmetricOperator(lambda v: 2 * v, 3)
    >>> (a @ torch.ones(3, dtype=torch.float64)).tolist(), a.trace
    ([2.0, 2.0, 2.0], 6.0)
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor] | None,
        n: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        trace: float | Callable[[], float] | None = None,
    ) -> None:
        self.n = checks.integer("SymmetricOperator", "n", n, 0)
        self.dtype, self.device = dtype, torch.device(device)
        self._product, self._trace = product, trace

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Self:
        """The operator of a matrix ``(n, n)``; the matrix is read, not copied."""
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(checks.sentence("SymmetricOperator", "the matrix must be square", tuple(matrix.shape)))
        return cls(
            lambda v: matrix @ v.to(matrix.dtype),
            len(matrix),
            dtype=matrix.dtype,
            device=matrix.device,
            trace=lambda: float(matrix.detach().diagonal().double().sum()),
        )

    def matmul(self, v: Tensor) -> Tensor:  # (n,) or (n, b) -> the same
        """The product A v."""
        if v.ndim not in (1, 2) or len(v) != self.n:
            need = f"v must have shape ({self.n},) or ({self.n}, b)"
            raise ValueError(checks.sentence(type(self).__name__, need, tuple(v.shape)))
        if v.ndim == 1:
            return self.multiply(v[:, None])[:, 0]
        return self.multiply(v)

    def multiply(self, v: Tensor) -> Tensor:  # (n, b) -> (n, b)
        """The product with checked columns."""
        assert self._product is not None
        return self._product(v)

    def __matmul__(self, v: Tensor) -> Tensor:  # (n,) or (n, b) -> the same
        return self.matmul(v)

    @functools.cached_property
    def trace(self) -> float:
        """Sum of the diagonal."""
        if callable(self._trace):
            return float(self._trace())
        if self._trace is not None:
            return float(self._trace)
        total = 0.0
        for part in slices(self.n, _TRACE_COLUMNS):
            # Some columns of the identity pick out their part of the diagonal.
            columns = torch.zeros(self.n, part.stop - part.start, dtype=self.dtype, device=self.device)
            columns[part].fill_diagonal_(1.0)
            total += float(self.matmul(columns)[part].diagonal().double().sum())
        return total

    def dense(self) -> Tensor:  # (n, n)
        """The matrix itself, by n products; for small n."""
        return self.matmul(torch.eye(self.n, dtype=self.dtype, device=self.device))


def as_operator(operator: SymmetricOperator | Tensor) -> SymmetricOperator:
    """The operator itself, or that of a matrix."""
    if isinstance(operator, Tensor):
        return SymmetricOperator.from_matrix(operator)
    return operator
