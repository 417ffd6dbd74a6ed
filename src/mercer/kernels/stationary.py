"""Kernels of the difference x - y: Gaussian, Laplacian, Matern. Each knows its spectral density."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..distributed import global_slice, shared_generator, take_rows, world_size
from ..linalg import plain, safe_sqrt, squared_distances
from ..modules import Data, rows
from .base import Kernel, Positive

_MEDIAN_ROWS = 1000
_FAR = 2000.0  # e^-s is 0 from here on in every dtype, and s e^-s would be NaN at infinity


def _decay(fresh: Tensor, rate: Tensor) -> Tensor:
    """``exp(-rate * fresh)``, in place where nothing records it: three quarters of the time is memory traffic."""
    return fresh.mul_(-rate).exp_() if plain(fresh, rate) else (-rate * fresh).exp()


class _UnitDiagonal(Kernel):
    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return x.new_ones(len(x))


class RBF(_UnitDiagonal):
    r"""Gaussian kernel :math:`k(x, y) = \exp(-\gamma \|x - y\|^2)`.

    Args:
        gamma: :math:`\gamma > 0`, a number, or a tensor ``(d,)`` of one for each feature. Learned as its logarithm
            when ``learnable``.
        learnable: Make ``gamma`` a parameter.
    """

    def __init__(self, gamma: float | Tensor = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        self.gamma = Positive("RBF", "gamma", gamma, learnable)

    @classmethod
    def from_data(cls, x: Data, *, learnable: bool = False, generator: torch.Generator | None = None) -> RBF:  # (n, d)
        r"""Bandwidth by the median: :math:`\gamma = 1 / \mathrm{median}_{i<j} \|x_i - x_j\|^2`.

        Of a tensor, an array or a loader, of all ranks' rows; over at most 1,000 drawn without replacement. Where the
        median is 0 (mostly duplicates) the mean of the distances above 0 takes its place; where all rows are equal,
        gamma is 1 and a warning says so.
        """
        x = checks.matrix("RBF.from_data", "x", rows("RBF.from_data", x))
        n = global_slice(len(checks.squarable("RBF.from_data", "x", x, empty=world_size() > 1)))[1]
        if n == 0:
            raise ValueError(checks.sentence("RBF.from_data", "x must have at least one row", tuple(x.shape)))
        order = torch.arange(n) if n <= _MEDIAN_ROWS else torch.randperm(n, generator=shared_generator(generator))
        x = take_rows(x, order[:_MEDIAN_ROWS].to(x.device)).double()
        largest = x.abs().max()
        x = x / largest if largest > 0 else x  # squares of denormal values would vanish
        squared = squared_distances(x, x)[torch.ones(len(x), len(x), device=x.device).triu(1).bool()]
        apart = squared[squared > 0]
        if not len(apart):
            if len(x) > 1:
                checks.warn("RBF.from_data", "all rows of x are equal; gamma = 1 stands in for the median.")
            return cls(1.0, learnable=learnable)
        typical = float(squared.median()) or float(apart.mean())
        gamma = 1.0 / typical / float(largest) ** 2 if float(largest) ** 2 > 0 else math.inf
        limit = torch.finfo(torch.float32).max
        if gamma > limit:
            checks.warn(
                "RBF.from_data",
                f"x is of scale {float(largest):.1e}; gamma is held at its largest, {limit:.1e}.",
            )
        return cls(min(gamma, limit), learnable=learnable)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        gamma = self.gamma(x)
        if gamma.ndim == 0:
            return _decay(squared_distances(x, y), gamma)
        if len(gamma) != x.shape[1]:
            need = f"x must have a feature for each of the {len(gamma)} values of gamma"
            raise ValueError(checks.sentence("RBF", need, tuple(x.shape)))
        return _decay(squared_distances(x * gamma.sqrt(), y * gamma.sqrt()), x.new_ones(()))

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r""":math:`\omega \sim N(0, 2 \gamma I)`."""
        return normal * (2 * self.gamma(normal)).sqrt()


class Laplacian(_UnitDiagonal):
    r"""Laplacian kernel :math:`k(x, y) = \exp(-\gamma \|x - y\|_1)`.

    Args:
        gamma: :math:`\gamma > 0`.
        learnable: Make ``gamma`` a parameter, learned as its logarithm.
    """

    def __init__(self, gamma: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        self.gamma = Positive("Laplacian", "gamma", gamma, learnable)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return (-self.gamma(x) * torch.cdist(x, y, p=1.0)).exp()

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Independent Cauchy draws of scale :math:`\gamma`, from the normal ones through their ranks."""
        ranks = torch.special.ndtr(normal).clamp(1e-7, 1 - 1e-7)
        return self.gamma(normal) * torch.tan(torch.pi * (ranks - 0.5))


class Matern(_UnitDiagonal):
    r"""Matern kernel of the Euclidean distance r, with :math:`s = \sqrt{2 \nu} \, r / \ell`.

    .. math:: e^{-s}, \quad (1 + s) e^{-s}, \quad (1 + s + s^2 / 3) e^{-s}
        \quad \text{for } \nu = 1/2, \, 3/2, \, 5/2.

    Args:
        nu: :math:`\nu`, one of 0.5, 1.5, 2.5.
        lengthscale: :math:`\ell > 0`.
        learnable: Make ``lengthscale`` a parameter, learned as its logarithm.
    """

    def __init__(self, nu: float = 1.5, lengthscale: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        if nu not in (0.5, 1.5, 2.5):
            raise ValueError(checks.sentence("Matern", "nu must be one of 0.5, 1.5, 2.5", nu))
        self.nu = float(nu)
        self.lengthscale = Positive("Matern", "lengthscale", lengthscale, learnable)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        distances = safe_sqrt(squared_distances(x, y))
        rate = math.sqrt(2 * self.nu) / self.lengthscale(x)
        if self.nu == 0.5:
            return _decay(distances, rate)
        scaled = (rate * distances).clamp_max(_FAR)
        decay = (-scaled).exp()
        if self.nu == 1.5:
            return (1 + scaled) * decay
        return (1 + scaled + scaled.square() / 3) * decay

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Multivariate t of :math:`2 \nu` degrees of freedom and scale :math:`1 / \ell`."""
        degrees = round(2 * self.nu)
        chi = torch.randn(len(normal), degrees, generator=generator, dtype=normal.dtype, device=normal.device)
        return normal / self.lengthscale(normal) / chi.square().mean(1, keepdim=True).sqrt()
