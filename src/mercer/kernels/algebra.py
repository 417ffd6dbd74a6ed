"""Kernels made of kernels: sums, products, multiples, powers, normalisation; all stay positive semi-definite."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg import safe_sqrt
from .base import Kernel, Positive


class _Pair(Kernel):
    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left = left
        self.right = right

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        self.right.prepare(name, x)
        return self.left.prepare(name, x)


class Sum(_Pair):
    """:math:`k(x, y) = k_1(x, y) + k_2(x, y)`."""

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left.gram(x, y) + self.right.gram(x, y)

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        return self.left.gram_diag(x) + self.right.gram_diag(x)

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A mixture of both densities, weighted by :math:`k_i(0)`."""
        origin = normal.new_zeros(1, normal.shape[1])
        left, right = (kernel.gram_diag(origin) for kernel in (self.left, self.right))
        coin = torch.rand(len(normal), 1, generator=generator, dtype=normal.dtype, device=normal.device)
        return torch.where(
            coin * (left + right) < left,
            self.left.frequencies(normal, generator),
            self.right.frequencies(normal, generator),
        )


class Product(_Pair):
    r""":math:`k(x, y) = k_1(x, y) \, k_2(x, y)`."""

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left.gram(x, y) * self.right.gram(x, y)

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        return self.left.gram_diag(x) * self.right.gram_diag(x)

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A product of kernels has the convolution of the densities: the sum of independent draws."""
        second = torch.randn(normal.shape, generator=generator, dtype=normal.dtype, device=normal.device)
        return self.left.frequencies(normal, generator) + self.right.frequencies(second, generator)


class _Wrapped(Kernel):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        return self.kernel.prepare(name, x)


class Scaled(_Wrapped):
    r""":math:`c \, k(x, y)` for a number c > 0.

    Args:
        kernel: k.
        scale: c.
        learnable: Learn the logarithm of c.
    """

    def __init__(self, kernel: Kernel, scale: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__(kernel)
        self.scale = Positive("Scaled", "scale", scale, learnable)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        gram = self.kernel.gram(x, y)
        return self.scale(gram) * gram

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        diag = self.kernel.gram_diag(x)
        return self.scale(diag) * diag

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.kernel.frequencies(normal, generator)


class Power(_Wrapped):
    """:math:`k(x, y)^p` for a whole number p > 0.

    Args:
        kernel: k.
        exponent: p. Other exponents need not stay positive semi-definite.
    """

    def __init__(self, kernel: Kernel, exponent: int) -> None:
        super().__init__(kernel)
        self.exponent = checks.integer("Power", "exponent", exponent, 1)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        return self.kernel.gram(x, y) ** self.exponent

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        return self.kernel.gram_diag(x) ** self.exponent

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        total = self.kernel.frequencies(normal, generator)
        for _ in range(self.exponent - 1):
            more = torch.randn(normal.shape, generator=generator, dtype=normal.dtype, device=normal.device)
            total = total + self.kernel.frequencies(more, generator)
        return total


class Normalized(_Wrapped):
    r""":math:`k(x, y) / \sqrt{k(x, x) \, k(y, y)}`; 0 where a row has :math:`k(x, x) = 0`.

    Args:
        kernel: k.
    """

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        return self.kernel.gram(x, y) * self._inverse_norm(x)[:, None] * self._inverse_norm(y)[None]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        diag = self.kernel.gram_diag(x)
        return (diag > 0).to(diag.dtype)

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.kernel.frequencies(normal, generator)

    def _inverse_norm(self, x: Tensor) -> Tensor:
        norm = safe_sqrt(self.kernel.gram_diag(x))
        return torch.where(norm > 0, 1 / torch.where(norm > 0, norm, torch.ones_like(norm)), torch.zeros_like(norm))
