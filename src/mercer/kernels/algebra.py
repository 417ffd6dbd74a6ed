"""Kernels made of kernels: sums, products, multiples, powers, normalisation; all stay positive semi-definite."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg import safe_sqrt
from .base import Kernel
from .positive import Positive


class _Pair(Kernel):
    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left = left
        self.right = right

    @property
    @override
    def is_stationary(self) -> bool:
        return self.left.is_stationary and self.right.is_stationary

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


class Constant(Kernel):
    """:math:`k(x, y) = c` for a number c > 0; what ``k + c`` adds.

    Args:
        value: c.
        learnable: Learn the logarithm of c.
    """

    def __init__(self, value: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        self.value = Positive("Constant", "value", value, learnable)

    @property
    @override
    def is_stationary(self) -> bool:
        return True

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        """Rows of any shape, so that a number can be added to every kernel."""
        if not isinstance(x, Tensor):
            raise TypeError(checks.sentence("Constant", f"{name} must be a tensor", type(x).__name__))
        if x.ndim == 0:
            raise ValueError(checks.sentence("Constant", f"{name} must have shape (n, ...)", tuple(x.shape)))
        self._same_device(name, x)
        return checks.floating(checks.real("Constant", name, x))

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        return self.gram_diag(x)[:, None].expand(-1, y.shape[0]).clone()

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        x = checks.floating(x)  # beside a precomputed Gram matrix the rows are indices
        return self.value(x).expand(x.shape[0]).clone()

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A constant has all its mass at frequency 0."""
        return torch.zeros_like(normal)


class _Wrapped(Kernel):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    @property
    @override
    def is_stationary(self) -> bool:
        return self.kernel.is_stationary

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
