"""Kernels of the scalar product: linear, polynomial, cosine, arc-cosine."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.distances import angles, clamp_cosines, cosines, norms_and_units, scalar_products
from .base import Kernel, Positive, Products


class Linear(Kernel):
    r""":math:`k(x, y) = \langle x, y \rangle`.

    Use it as the control: what it reaches needs no kernel.

    >>> Linear()(torch.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    MEANING = "a weighted sum of the columns"
    is_homogeneous = True
    follows_from_products = True

    @override
    def gram_from_products(self, products: Products) -> Tensor:
        return products.dot

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return scalar_products(x, y)

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return x.square().sum(1)


class Polynomial(Kernel):
    r""":math:`k(x, y) = (\gamma \langle x, y \rangle + c)^p`.

    Args:
        degree: p, a whole number of at least 1.
        gamma: :math:`\gamma > 0`.
        coef0: :math:`c \ge 0`.
        learnable: Learn the logarithms of ``gamma`` and, where it is above 0, of ``coef0``.

    Use it for products of a few columns.

    >>> Polynomial(2)(torch.ones(1, 1)).tolist()
    [[4.0]]
    """

    follows_from_products = True

    def __init__(self, degree: int = 3, gamma: float = 1.0, coef0: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        self.degree = checks.integer("Polynomial", "degree", degree, 1)
        self.gamma = Positive("Polynomial", "gamma", gamma, learnable)
        number = coef0
        if isinstance(coef0, Tensor) and coef0.numel() == 1:
            number = coef0.item()
        checks.non_negative("Polynomial", "coef0", number)
        self.coef0: Positive | None = None
        if number > 0:
            self.coef0 = Positive("Polynomial", "coef0", coef0, learnable)

    @property
    @override
    def is_homogeneous(self) -> bool:
        return self.coef0 is None

    @override
    def gram_from_products(self, products: Products) -> Tensor:
        return self._power(self.gamma(products.dot) * products.dot)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return self._power(scalar_products(x, y, self.gamma(x)))

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return self._power(self.gamma(x) * x.square().sum(1))

    def _power(self, base: Tensor) -> Tensor:
        if self.coef0 is not None:
            base = base + self.coef0(base)
        return base**self.degree


class Cosine(Kernel):
    r""":math:`k(x, y) = \langle x, y \rangle / (\|x\| \|y\|)`; a row of zeros has kernel 0 with all.

    Use it for embeddings whose length says nothing.

    >>> Cosine()(torch.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    is_homogeneous = True
    follows_from_products = True

    @override
    def gram_from_products(self, products: Products) -> Tensor:
        return products.cosines

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return cosines(x, y)

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return (x != 0).any(1).to(x.dtype)


class ArcCosine(Kernel):
    r"""Arc-cosine kernel of Cho and Saul (2009), for rows at angle :math:`\theta`.

    .. math:: k(x, y) = \tfrac{1}{\pi} \|x\|^p \|y\|^p J_p(\theta), \quad
        J_0 = \pi - \theta, \quad J_1 = \sin\theta + (\pi - \theta) \cos\theta, \quad
        J_2 = 3 \sin\theta \cos\theta + (\pi - \theta)(1 + 2 \cos^2\theta).

    It is twice the second moment of :math:`\max(0, \langle w, x \rangle)^p` under :math:`w \sim N(0, I)`.

    Args:
        order: p, one of 0, 1, 2.

    Use it for unit vectors, as a wide ReLU layer would see them.

    >>> ArcCosine(1)(torch.ones(3, 2)).shape
    torch.Size([3, 3])
    """

    is_homogeneous = True

    def __init__(self, order: int = 1) -> None:
        super().__init__()
        self.order = checks.integer("ArcCosine", "order", order, 0, 2)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        # J_p of the angles; angles() has a finite gradient where two rows point the same way.
        (row_norms, row_units), (column_norms, column_units) = norms_and_units(x), norms_and_units(y)
        t = clamp_cosines(row_units @ column_units.mT)
        theta = angles(t)
        if self.order == 0:
            profile = torch.pi - theta
        elif self.order == 1:
            profile = theta.sin() + (torch.pi - theta) * t
        else:
            profile = 3 * theta.sin() * t + (torch.pi - theta) * (1 + 2 * t.square())

        # Times |x|^p |y|^p, one length after the other: their product may overflow beside a profile of 0.
        gram = profile / torch.pi
        for _ in range(self.order):
            gram = gram * row_norms[:, None] * column_norms[None]
        return gram

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        if self.order == 0:
            return torch.where((x != 0).any(1), 1.0, 0.5).to(x.dtype)
        return x.square().sum(1) ** self.order * (2.0 * self.order - 1)  # J_1(0) = pi, J_2(0) = 3 pi
