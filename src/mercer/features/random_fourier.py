"""Random features: Fourier (Rahimi and Recht 2007) and positive (Choromanski et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..kernels import FunctionKernel, Kernel
from ..rows.stored import Readable
from .base import FeatureMap


class RandomFourier(FeatureMap):
    r"""Random Fourier features of a stationary kernel with :math:`k(0) = s`.

    .. math:: \varphi(x) = \sqrt{2 s / m} \, (\cos \omega_1 x, \sin \omega_1 x, \dots), \quad
        \omega \sim \text{spectral density of } k.

    Pairs of cosine and sine rather than cosines with random phases: :math:`\|\varphi(x)\|^2 = s` exactly, and on
    nearby rows the variance is lower. An odd m ends in one cosine with a phase.

    Args:
        kernel: RBF, Laplacian, Matern, or their sums, products, powers and multiples.
        m: Number of features.
        orthogonal: Draw the directions of :math:`\omega` orthogonal in blocks of d (Yu et al. 2016): unbiased, with
            lower variance for the Gaussian kernel.
        paired: False for m cosines, each with a frequency and a phase of its own.
        generator: Source of randomness, or a seed.

    Use it where features must not depend on the data, or rows never end.

    >>> from mercer.kernels import RBF
    >>> x = torch.randn(100, 3)
    >>> RandomFourier(RBF(0.5), 20).fit(x)(x).shape
    torch.Size([100, 20])
    """

    FITTED = ("omega", "phase", "scale")
    omega: Tensor
    phase: Tensor
    scale: Tensor

    def __init__(
        self,
        kernel: Kernel,
        m: int,
        *,
        orthogonal: bool = False,
        paired: bool = True,
        generator: torch.Generator | int | None = None,
    ) -> None:
        super().__init__(kernel, generator)
        self.m = checks.integer("RandomFourier", "m", m, 1)
        self.orthogonal, self.paired = orthogonal, paired

    @override
    def learn(self, x: Readable) -> None:  # (n, d)
        # Frequencies from the spectral density, m / 2 of them; an odd feature has one more, and a phase.
        d = x.shape[1]
        single = self.m - 2 * self._pairs
        normal = standard_normal(self._pairs + single, d, self.orthogonal, self.generator).to(x.device)
        omega = self.exact.frequencies(normal, self.generator).mT  # (d, pairs + single)
        phase = torch.rand(max(1, single), generator=self.generator, dtype=torch.float64).to(x.device) * 2 * torch.pi
        self.omega, self.phase = omega.to(x.dtype), phase.to(x.dtype)

        # Each pair has the square sum 2 s / m with s = k(x, x), which is the same for all x.
        origin = torch.zeros(1, d, dtype=x.dtype, device=x.device)
        self.scale = (self.exact.gram_diag(origin)[0] / self.m).sqrt().to(x.dtype)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        omega, pairs = self.omega.to(x.dtype), self._pairs
        angles = x @ omega[:, :pairs]
        parts = [angles.cos(), angles.sin()]
        if self.m > 2 * pairs:
            parts.append((x @ omega[:, pairs:] + self.phase.to(x.dtype)).cos())
        return torch.cat(parts, dim=1) * (math.sqrt(2) * self.scale.to(x.dtype))

    @property
    def _pairs(self) -> int:
        if not self.paired:
            return 0
        return self.m // 2

    @override
    def _width(self) -> int:
        return self.omega.shape[0]


class PositiveRandomFeatures(FeatureMap):
    r"""Positive random features of :math:`k(x, y) = \exp \langle x, y \rangle`, the softmax kernel.

    .. math:: \varphi(x) = \frac{e^{-\|x\|^2 / 2}}{\sqrt m} \, (e^{\omega_1 x}, \dots, e^{\omega_m x}), \quad
        \omega \sim N(0, I).

    Every feature is above 0, so that attention can divide by sums of them. The variance grows with
    :math:`e^{\|x + y\|^2}`: scale rows of norm above 2 down first.

    Args:
        m: Number of features.
        orthogonal: Directions orthogonal in blocks of d.
        generator: Source of randomness, or a seed.

    Use it where every feature must be positive, as in linear attention.

    >>> import torch
    >>> x = torch.randn(10, 3)
    >>> bool((PositiveRandomFeatures(m=16).fit(x)(x) > 0).all())
    True
    """

    FITTED = ("omega",)
    omega: Tensor

    def __init__(self, m: int, *, orthogonal: bool = False, generator: torch.Generator | int | None = None) -> None:
        super().__init__(FunctionKernel(_exponential), generator)
        self.m = checks.integer("PositiveRandomFeatures", "m", m, 1)
        self.orthogonal = orthogonal

    @override
    def learn(self, x: Readable) -> None:  # (n, d)
        normal = standard_normal(self.m, x.shape[1], self.orthogonal, self.generator)
        self.omega = normal.mT.contiguous().to(x.device, x.dtype)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        exponents = x @ self.omega.to(x.dtype) - x.square().sum(1, keepdim=True) / 2
        return exponents.exp() / math.sqrt(self.m)

    @override
    def _width(self) -> int:
        return self.omega.shape[0]


def phased_cosines(x: Tensor, omega: Tensor, phases: Tensor) -> Tensor:  # (n, d), (d, m), (m,) -> (n, m)
    r""":math:`\sqrt{2 / m} \cos(x \omega + b)`: random Fourier features that each have a phase b of their own."""
    return (x @ omega + phases).cos() * math.sqrt(2 / len(phases))


def standard_normal(m: int, d: int, orthogonal: bool, generator: torch.Generator | None) -> Tensor:  # (m, d)
    """Standard normal rows in float64; when ``orthogonal``, so in blocks of d, each row still normal by itself."""
    normal = torch.randn(m, d, dtype=torch.float64, generator=generator)
    if not orthogonal:
        return normal
    # Random rotations, their rows as long as normal ones are.
    blocks = []
    for start in range(0, m, d):
        square = torch.randn(d, d, dtype=torch.float64, generator=generator)
        q, r = torch.linalg.qr(square)
        q = q * r.diagonal().sign()  # uniform over rotations (Mezzadri 2007)
        lengths = torch.linalg.vector_norm(normal[start : start + d], dim=1, keepdim=True)
        blocks.append(q[: len(lengths)] * lengths)
    return torch.cat(blocks)


def _exponential(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.mT).exp()
