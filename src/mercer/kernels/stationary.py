"""Kernels of the difference x - y: Gaussian, Laplacian, Matern, rational quadratic, periodic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy import special
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.blocks import apply_to_both
from ..linalg.distances import map_distances, median_distance, safe_sqrt
from ..linalg.torch_internals import may_be_differentiated
from ..rows.agreement import has_several_ranks, share_generator
from ..rows.loading import Data, load_rows
from ..rows.rows import Rows
from .base import Description, Kernel, Positive, Products

_MEDIAN_ROWS = 1000
_FAR = 2000.0  # e^-s is 0 from here on in every dtype, and s e^-s would be NaN at infinity


def _decay(fresh: Tensor, rate: Tensor | None = None) -> Tensor:
    """``exp(-rate * fresh)``, in place where nothing records it: three quarters of the time is memory traffic."""
    if rate is None:
        rate = fresh.new_ones(())
    if may_be_differentiated(fresh, rate):
        return (-rate * fresh).exp()
    return fresh.mul_(-rate).exp_()


class Stationary(Kernel):
    """A kernel with :math:`k(x, x) = 1` of a distance between rows; a variant writes ``gram``.

    A large Gram matrix that needs no derivative is computed tile by tile, and takes no memory beside itself.
    """

    is_stationary = True

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return x.new_ones(x.shape[0])


class RBF(Stationary):
    r"""Gaussian kernel :math:`k(x, y) = \exp(-\gamma \|x - y\|^2)`.

    Args:
        gamma: :math:`\gamma > 0`: a number, or a tensor ``(d,)`` with one for each feature,
            :math:`\exp(-\sum_k \gamma_k (x_k - y_k)^2)`.
        learnable: Make ``gamma`` a parameter, learned as its logarithm.

    Use it for smooth answers; one ``gamma`` a column where scales differ.

    >>> RBF(0.5)(torch.zeros(2, 3)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    NAME = "Gaussian"
    MEANING = "near rows have near answers, smoothly"

    def __init__(self, gamma: float | Tensor | Sequence[float] = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        self.gamma = Positive("RBF", "gamma", gamma, learnable, per_feature=True)

    @classmethod
    def from_data(cls, x: Data, *, learnable: bool = False, generator: torch.Generator | None = None) -> RBF:  # (n, d)
        r"""Bandwidth by the median: :math:`\gamma = 1 / m^2` with the median m of the distances above 0 between rows.

        Args:
            x: A tensor, an array or a loader, of which at most 1,000 rows are used. With several ranks, each passes
                its own rows.
            learnable: As in the constructor.
            generator: Draws the rows where there are more.

        Warns:
            NumericalWarning: All rows are equal (gamma is 1), or so close that gamma is held at its largest.
        """
        where = "RBF.from_data"
        x = checks.matrix(where, "x", load_rows(where, x))
        rows = Rows(checks.squarable(where, "x", x, empty=has_several_ranks()))
        if rows.n == 0:
            raise ValueError(checks.sentence(where, "x must have at least one row", tuple(x.shape)))
        # The median over at most 1,000 rows of all ranks.
        order = torch.arange(rows.n)
        if rows.n > _MEDIAN_ROWS:
            order = torch.randperm(rows.n, generator=share_generator(generator))[:_MEDIAN_ROWS]
        typical = median_distance(rows.take(order.to(x.device)))
        if typical == 0:
            if rows.n > 1:
                checks.warn(where, "all rows of x are equal; gamma = 1 stands in for the median.")
            return cls(1.0, learnable=learnable)
        # gamma = 1 / m^2, within the numbers of float32.
        limit = torch.finfo(torch.float32).max
        gamma = math.inf
        if typical**2 > 0:
            gamma = 1 / typical**2
        if gamma > limit:
            checks.warn(where, f"the rows of x are {typical:.1e} apart; gamma is held at its largest, {limit:.1e}.")
        return cls(min(gamma, limit), learnable=learnable)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        gamma = self.gamma(x)
        if gamma.ndim:
            x, y = self.gamma.scale(gamma.sqrt(), x, y)
            return map_distances("squared", x, y, _decay, [gamma])
        return map_distances("squared", x, y, lambda squared: _decay(squared, gamma), [gamma])

    @property
    @override
    def follows_from_products(self) -> bool:
        return not self.gamma.is_vector

    @override
    def gram_from_products(self, products: Products) -> Tensor:
        return torch.exp(-self.gamma(products.dot) * products.distances)

    @property
    def lengthscale(self) -> Tensor:  # () or (d,)
        r""":math:`\ell = 1 / \sqrt{2 \gamma}`: at distance :math:`\ell` the kernel is :math:`e^{-1/2}`."""
        return (2 * self.gamma(torch.zeros((), dtype=torch.float64))).rsqrt()

    @override
    def rescaled(self, factor: float) -> RBF:
        return RBF(self.gamma.times(factor**-2), learnable=self.gamma.learnable)

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r""":math:`\omega \sim N(0, 2 \gamma I)`."""
        return normal * (2 * self.gamma(normal)).sqrt()


class Laplacian(Stationary):
    r"""Laplacian kernel :math:`k(x, y) = \exp(-\gamma \|x - y\|_1)`.

    Args:
        gamma: :math:`\gamma > 0`: a number, or a tensor ``(d,)`` with one for each feature,
            :math:`\exp(-\sum_k \gamma_k |x_k - y_k|)`.
        learnable: Make ``gamma`` a parameter, learned as its logarithm.

    Use it for table columns with sharp edges.

    >>> Laplacian(1.0)(torch.zeros(2, 3)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    MEANING = "near rows have near answers, column by column, with sharp edges"

    def __init__(self, gamma: float | Tensor | Sequence[float] = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        self.gamma = Positive("Laplacian", "gamma", gamma, learnable, per_feature=True)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        gamma = self.gamma(x)
        if gamma.ndim:
            x, y = self.gamma.scale(gamma, x, y)
            return map_distances("manhattan", x, y, _decay, [gamma])
        return map_distances("manhattan", x, y, lambda distance: _decay(distance, gamma), [gamma])

    @property
    def lengthscale(self) -> Tensor:  # () or (d,)
        r""":math:`1 / \gamma`."""
        return 1 / self.gamma(torch.zeros((), dtype=torch.float64))

    @override
    def rescaled(self, factor: float) -> Laplacian:
        return Laplacian(self.gamma.times(1 / factor), learnable=self.gamma.learnable)

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Independent Cauchy draws of scale :math:`\gamma`, from the normal ones through their ranks."""
        ranks = torch.special.ndtr(normal).clamp(1e-7, 1 - 1e-7)
        return self.gamma(normal) * torch.tan(torch.pi * (ranks - 0.5))


class _Radial(Stationary):
    r"""A function of the Euclidean distance over a length-scale."""

    lengthscale: Positive

    def profile(self, squared: Tensor, scale: Tensor | float) -> Tensor:
        """The kernel at squared distances for one length-scale; what a variant must write."""
        raise NotImplementedError(f"{type(self).__name__} must define profile(squared, scale)")

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        scale = self.lengthscale(x)
        if scale.ndim:
            x, y = self.lengthscale.scale(1 / scale, x, y)
            return map_distances("squared", x, y, lambda squared: self.profile(squared, 1.0), list(self.parameters()))
        return map_distances("squared", x, y, lambda squared: self.profile(squared, scale), list(self.parameters()))


class Matern(_Radial):
    r"""Matern kernel of the Euclidean distance r, with :math:`s = \sqrt{2 \nu} \, r / \ell`.

    .. math:: e^{-s}, \quad (1 + s) e^{-s}, \quad (1 + s + s^2 / 3) e^{-s}
        \quad \text{for } \nu = 1/2, \, 3/2, \, 5/2.

    Args:
        nu: :math:`\nu`, one of 0.5, 1.5, 2.5.
        lengthscale: :math:`\ell > 0`: a number, or a tensor ``(d,)`` with one for each feature.
        learnable: Make ``lengthscale`` a parameter, learned as its logarithm.

    Use it for measurements that are smooth, but not endlessly so.

    >>> Matern(1.5)(torch.zeros(2, 3)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(
        self, nu: float = 1.5, lengthscale: float | Tensor | Sequence[float] = 1.0, *, learnable: bool = False
    ) -> None:
        super().__init__()
        if not isinstance(nu, (int, float)) or nu not in (0.5, 1.5, 2.5):
            raise ValueError(checks.sentence("Matern", "nu must be one of 0.5, 1.5, 2.5", nu))
        self.nu = float(nu)
        self.lengthscale = Positive("Matern", "lengthscale", lengthscale, learnable, per_feature=True)

    @override
    def describe(self) -> Description:
        edges = {0.5: "with sharp edges", 1.5: "with rounded edges", 2.5: "almost smoothly"}
        return super().describe()._replace(meaning=f"near rows have near answers, {edges[self.nu]}")

    @override
    def rescaled(self, factor: float) -> Matern:
        return Matern(self.nu, self.lengthscale.times(factor), learnable=self.lengthscale.learnable)

    @override
    def profile(self, squared: Tensor, scale: Tensor | float) -> Tensor:
        s = safe_sqrt(squared) / scale * math.sqrt(2 * self.nu)
        if self.nu == 0.5:
            return _decay(s)
        s = s.clamp_max(_FAR)
        decay = (-s).exp()
        if self.nu == 1.5:
            return (1 + s) * decay
        return (1 + s + s.square() / 3) * decay

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Multivariate t of :math:`2 \nu` degrees of freedom and scale :math:`1 / \ell`."""
        degrees = round(2 * self.nu)
        chi = torch.randn(len(normal), degrees, generator=generator, dtype=normal.dtype, device=normal.device)
        return normal / self.lengthscale(normal) / chi.square().mean(1, keepdim=True).sqrt()


class RationalQuadratic(_Radial):
    r"""Rational quadratic kernel :math:`k(x, y) = (1 + \|x - y\|^2 / (2 \alpha \ell^2))^{-\alpha}`.

    It is a mixture of Gaussian kernels of many length-scales; as :math:`\alpha \to \infty` it becomes one of them.

    Args:
        alpha: :math:`\alpha > 0`; small values give a heavy tail.
        lengthscale: :math:`\ell > 0`: a number, or a tensor ``(d,)`` with one for each feature.
        learnable: Make both parameters, learned as their logarithms.

    Use it where answers vary on several scales at once.

    >>> RationalQuadratic()(torch.zeros(1, 3)).tolist()
    [[1.0]]
    """

    NAME = "Rational quadratic"
    MEANING = "near rows have near answers, smoothly, at many distances"

    def __init__(
        self, alpha: float = 1.0, lengthscale: float | Tensor | Sequence[float] = 1.0, *, learnable: bool = False
    ) -> None:
        super().__init__()
        self.alpha = Positive("RationalQuadratic", "alpha", alpha, learnable)
        self.lengthscale = Positive("RationalQuadratic", "lengthscale", lengthscale, learnable, per_feature=True)

    @override
    def rescaled(self, factor: float) -> RationalQuadratic:
        scale = self.lengthscale.times(factor)
        return RationalQuadratic(float(self.alpha), scale, learnable=self.lengthscale.learnable)

    @override
    def profile(self, squared: Tensor, scale: Tensor | float) -> Tensor:
        alpha = self.alpha(squared)
        return (-alpha * torch.log1p(squared / scale / scale / (2 * alpha))).exp()

    @override
    def frequencies(self, normal: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r""":math:`\omega \sim N(0, \tau / \ell^2)` with :math:`\tau` from a gamma law of shape and rate alpha."""
        ranks = torch.rand(len(normal), 1, generator=generator, dtype=normal.dtype, device=normal.device)
        alpha = float(self.alpha)
        tau = torch.from_numpy(special.gammaincinv(alpha, ranks.cpu().numpy())).to(normal) / alpha
        return normal * tau.sqrt() / self.lengthscale(normal)


class Periodic(Stationary):
    r"""Periodic kernel :math:`k(x, y) = \exp(-2 \sum_k \sin^2(\pi (x_k - y_k) / p) / \ell_k^2)`.

    It repeats in every feature. It is the Gaussian kernel on a circle for each feature, and so positive
    semi-definite for any number of them (scikit-learn's ``ExpSineSquared``, equal for one feature, is not).

    Args:
        period: p > 0.
        lengthscale: :math:`\ell > 0`: a number, or a tensor ``(d,)`` with one for each feature.
        learnable: Make both parameters, learned as their logarithms.

    Use it for what repeats: hours, angles, seasons.

    >>> Periodic()(torch.zeros(1, 3)).tolist()
    [[1.0]]
    """

    MEANING = "answers repeat with a period in every column"

    def __init__(
        self, period: float = 1.0, lengthscale: float | Tensor | Sequence[float] = 1.0, *, learnable: bool = False
    ) -> None:
        super().__init__()
        self.period = Positive("Periodic", "period", period, learnable)
        self.lengthscale = Positive("Periodic", "lengthscale", lengthscale, learnable, per_feature=True)

    @override
    def rescaled(self, factor: float) -> Periodic:
        """The same with a period f times as long: the lengthscale is an angle."""
        scale, learnable = self.lengthscale.times(1.0), self.period.learnable
        return Periodic(float(self.period.times(factor)), scale, learnable=learnable)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        # Each feature as a point on a circle, over the lengthscale: exp(-|u - v|^2 / 2) there is the kernel.
        u, v = apply_to_both(self._circle, x, y)
        return map_distances("squared", u, v, lambda squared: _decay(squared, squared.new_full((), 0.5)))

    def _circle(self, x: Tensor) -> Tensor:  # (n, d) -> (n, 2 d)
        angle = x * (2 * torch.pi / self.period(x))
        scale = self.lengthscale(x)
        if scale.ndim:
            self.lengthscale.scale(scale, x, x)
        return torch.cat((angle.cos() / scale, angle.sin() / scale), 1)
