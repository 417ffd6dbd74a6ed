"""Kernels made of kernels: sums, products, multiples, powers, normalization; all stay positive semi-definite."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.blocks import apply_to_both
from ..linalg.distances import safe_sqrt
from ..linalg.torch_internals import readable
from .base import Kernel, Positive, Products


class _Pair(Kernel):
    """Two kernels, joined entry by entry; a variant writes :meth:`join`."""

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left = left
        self.right = right

    def join(self, left: Tensor, right: Tensor) -> Tensor:
        """The entries of this kernel out of those of the two."""
        raise NotImplementedError(f"{type(self).__name__} must define join(left, right)")

    @property
    @override
    def is_stationary(self) -> bool:
        return self.left.is_stationary and self.right.is_stationary

    @property
    @override
    def follows_from_products(self) -> bool:
        return self.left.follows_from_products and self.right.follows_from_products

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        self.right.prepare(name, x)
        return self.left.prepare(name, x)

    @override
    def rescaled(self, factor: float) -> Kernel | None:
        first, second = self.left.rescaled(factor), self.right.rescaled(factor)
        if first is None or second is None:
            return None
        return type(self)(first, second)

    @override
    def gram_from_products(self, products: Products) -> Tensor:
        return self.join(self.left.gram_from_products(products), self.right.gram_from_products(products))

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        gram = self.join(self.left.gram(x, y), self.right.gram(x, y))
        return _recompute_undefined(self, gram, x, y, gram)

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        return self.join(self.left.gram_diag(x), self.right.gram_diag(x))


class Sum(_Pair):
    """:math:`k(x, y) = k_1(x, y) + k_2(x, y)`."""

    @override
    def join(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A mixture of both densities, weighted by :math:`k_i(0)`."""
        origin = normal.new_zeros(1, normal.shape[1])
        share, other_share = (kernel.gram_diag(origin) for kernel in (self.left, self.right))
        coin = torch.rand(len(normal), 1, generator=generator, dtype=normal.dtype, device=normal.device)
        return torch.where(
            coin * (share + other_share) < share,
            self.left.frequencies(normal, generator),
            self.right.frequencies(normal, generator),
        )


class Product(_Pair):
    r""":math:`k(x, y) = k_1(x, y) \, k_2(x, y)`."""

    @property
    @override
    def is_homogeneous(self) -> bool:
        return self.left.is_homogeneous and self.right.is_homogeneous

    @override
    def join(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right

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

    Use it as an offset in a sum of kernels.

    >>> from mercer.kernels import Linear
    >>> (Linear() + Constant(2.0))(torch.zeros(1, 2)).tolist()
    [[2.0]]
    """

    is_stationary = True

    def __init__(self, value: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        self.value = Positive("Constant", "value", value, learnable)

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
    def rescaled(self, factor: float) -> Constant:
        """The same: a constant does not change with the lengths of rows."""
        return self

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
    """One kernel, whose rows and properties it keeps."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    @property
    @override
    def is_stationary(self) -> bool:
        return self.kernel.is_stationary

    @property
    @override
    def is_homogeneous(self) -> bool:
        return self.kernel.is_homogeneous

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        return self.kernel.prepare(name, x)

    @override
    def rescaled(self, factor: float) -> Kernel | None:
        kernel = self.kernel.rescaled(factor)
        if kernel is None:
            return None
        return type(self).from_arguments({**self.get_params(deep=False), "kernel": kernel})

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.kernel.frequencies(normal, generator)


class _Mapped(_Wrapped):
    """A function of one kernel's entries; a variant writes :meth:`map`."""

    def map(self, values: Tensor) -> Tensor:
        """The entries of this kernel out of those of the other."""
        raise NotImplementedError(f"{type(self).__name__} must define map(values)")

    @property
    @override
    def follows_from_products(self) -> bool:
        return self.kernel.follows_from_products

    @override
    def gram_from_products(self, products: Products) -> Tensor:
        return self.map(self.kernel.gram_from_products(products))

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        return self.map(self.kernel.gram(x, y))

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        return self.map(self.kernel.gram_diag(x))


class Scaled(_Mapped):
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
    def map(self, values: Tensor) -> Tensor:
        return self.scale(values) * values


class Power(_Mapped):
    """:math:`k(x, y)^p` for a whole number p > 0.

    Args:
        kernel: k.
        exponent: p. Other exponents need not stay positive semi-definite.
    """

    def __init__(self, kernel: Kernel, exponent: int) -> None:
        super().__init__(kernel)
        self.exponent = checks.integer("Power", "exponent", exponent, 1)

    @override
    def map(self, values: Tensor) -> Tensor:
        return values**self.exponent

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The sum of p independent draws, as for a product of p kernels."""
        total = self.kernel.frequencies(normal, generator)
        for _ in range(self.exponent - 1):
            draw = torch.randn(normal.shape, generator=generator, dtype=normal.dtype, device=normal.device)
            total = total + self.kernel.frequencies(draw, generator)
        return total


class Normalized(_Wrapped):
    r""":math:`k(x, y) / \sqrt{k(x, x) \, k(y, y)}`; 0 where a row has :math:`k(x, x) = 0`.

    Args:
        kernel: k.
    """

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        scaled_x, scaled_y = apply_to_both(self._without_lengths, x, y)
        rows, columns = self._inverse_norms(scaled_x), self._inverse_norms(scaled_y)
        gram = self.kernel.gram(scaled_x, scaled_y) * rows[:, None] * columns[None]
        return _recompute_undefined(self, gram, x, y, torch.cat((rows, columns)))

    @override
    def gram_diag(self, x: Tensor) -> Tensor:
        diag = self.kernel.gram_diag(self._without_lengths(x))
        return (diag > 0).to(diag.dtype)

    def _without_lengths(self, x: Tensor) -> Tensor:
        """Rows whose largest entry is 1, where lengths cancel: neither k(x, x) nor k(x, y) then over- or underflows."""
        if not self.kernel.is_homogeneous:
            return x
        longest = x.detach().abs().amax(1, keepdim=True)
        return x / torch.where(longest > 0, longest, 1.0)

    def _inverse_norms(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        """:math:`k(x, x)^{-1/2}`, 0 at 0, and NaN where k(x, x) overflows: the ratio is then unknown, not 0."""
        norm = safe_sqrt(self.kernel.gram_diag(x))
        inverse = 1 / torch.where(norm > 0, norm, 1.0)
        inverse = torch.where(norm.isinf(), torch.nan, inverse)
        return torch.where(norm == 0, 0.0, inverse)


def _recompute_undefined(kernel: Kernel, gram: Tensor, x: Tensor, y: Tensor, witness: Tensor) -> Tensor:
    """The Gram matrix, in float64 where parts of it overflow in float32; an error where they do in float64, too.

    inf - inf, 0 * inf and inf / inf are NaN, although the kernel of finite rows has a value. ``witness`` is not finite
    wherever that may have happened. Values are looked at only where they can be read.
    """
    # The sum of the witness is finite in nearly every call: one cheap pass.
    if not x.is_floating_point() or not readable(gram) or bool(witness.detach().sum().isfinite()):
        return gram
    # NaN or infinity that the rows themselves bring in is the right answer.
    if not bool(gram.isnan().any()) or not bool(x.isfinite().all() & y.isfinite().all()):
        return gram
    if x.dtype == torch.float64:
        need = "k(x, y) must not overflow in a part of the kernel"
        largest = f"entries up to {float(torch.maximum(x.detach().abs().max(), y.detach().abs().max())):.1e}"
        raise ValueError(checks.sentence(type(kernel).__name__, need, largest, "Standardise x first."))
    rows, columns = apply_to_both(Tensor.double, x, y)
    return kernel.gram(rows, columns).to(gram.dtype)
