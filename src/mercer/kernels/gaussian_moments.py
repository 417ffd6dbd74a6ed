r"""Second moments of an activation and of its derivative under a Gaussian pair: one layer of NNGP and NTK.

For :math:`(u, v)` with standard deviations :math:`r_x, r_y` and correlation :math:`\rho`, all elementwise. Correlations
and deviations rather than covariances, because the squares of large inputs overflow. An activation :math:`\phi` gives

- ``deviation(r)``: :math:`r' = \sqrt{E\,\phi(u)^2}`, ``mean(r)``: :math:`E\,\phi(u)`,
- ``factors(r, r')``: numbers of single rows that ``pair`` reads, computed once for all pairs of a row,
- ``pair``: :math:`E[\phi(u) \phi(v)] / r'_x r'_y` and, for tangent kernels,
  :math:`r_x r_y E[\phi'(u) \phi'(v)] / r'_x r'_y`, which is the derivative of
  :math:`E[\phi(u) \phi(v)] / r'_x r'_y` in :math:`\rho` (Price's theorem).

Closed forms: ReLU and leaky ReLU (Cho and Saul, 2009), erf (Williams, 1997), GELU (Tsuchida et al., 2021; derived here
by Stein's identity), sine and cosine. The others are a Hermite series, see :class:`HermiteSeries`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from ..linalg.distances import angles, clamp_cosines, safe_sqrt
from ..linalg.torch_internals import may_be_differentiated, records_graph

_RESOLUTION = 8.0  # units in the last place within which a cosine cannot be told from 1
_TERMS = 48  # of a Hermite series
_END, _STEP = 12.0, 1 / 16  # nodes -12, -12 + 1/16, ..., 12 of its coefficients' integrals
_LEAST_TAIL = 1e-10  # a smaller share of a second moment left out by a Hermite series is rounding


Factors = tuple[Tensor, ...]  # of one set of rows, aligned with the pairs


@dataclass(frozen=True)
class Activation:
    """An activation's Gaussian moments; a variant writes the methods."""

    @property
    def odd(self) -> bool:
        """Whether its mean is 0."""
        return False

    def deviation(self, r: Tensor) -> Tensor:
        """Root of the second moment."""
        raise NotImplementedError

    def mean(self, r: Tensor) -> Tensor:
        """First moment."""
        raise NotImplementedError

    def factors(self, r: Tensor, after: Tensor) -> Factors:
        """The numbers of a row that ``pair`` reads: r is its deviation before the activation, ``after`` behind it."""
        return ()

    def pair(self, rho: Tensor, x: Factors, y: Factors, *, slope: bool) -> tuple[Tensor, Tensor | None]:
        """The correlation after the activation and, with ``slope``, the relative moment of the derivative.

        Args:
            rho: Correlations before.
            x: Factors of the rows, which broadcast with those of the columns.
            y: Factors of the columns.
            slope: Also the derivative's moment: a new tensor, which the caller may overwrite.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LeakyReLU(Activation):
    r""":math:`\phi(u) = u` for u > 0, else a u; ReLU at a = 0, the absolute value at a = -1."""

    a: float = 0.0

    @override
    def deviation(self, r: Tensor) -> Tensor:
        return r * math.sqrt((1 + self.a**2) / 2)

    @override
    def mean(self, r: Tensor) -> Tensor:
        return r * ((1 - self.a) / math.sqrt(2 * math.pi))

    @override
    def pair(self, rho: Tensor, x: Factors, y: Factors, *, slope: bool) -> tuple[Tensor, Tensor | None]:
        value, derivative = relu_pair(rho)
        if self.a == 0:
            return value, derivative
        # phi(u) = relu(u) - a relu(-u), and relu's moment at -rho is that at rho less rho: a sum of relu's and rho.
        by_relu, by_rho = (1 - self.a) ** 2 / (1 + self.a**2), 2 * self.a / (1 + self.a**2)
        return value * by_relu + rho * by_rho, derivative * by_relu + by_rho


@dataclass(frozen=True)
class Erf(Activation):
    """The error function."""

    odd = True

    @override
    def deviation(self, r: Tensor) -> Tensor:
        c, inverse = _saturate(math.sqrt(2) * r)
        return safe_sqrt((2 / math.pi) * torch.atan2(c * c, inverse * (2 - inverse * inverse).sqrt()))

    @override
    def mean(self, r: Tensor) -> Tensor:
        return torch.zeros_like(r)

    @override
    def factors(self, r: Tensor, after: Tensor) -> Factors:
        return *_saturate(math.sqrt(2) * r), inverse_of(after) * math.sqrt(2 / math.pi)

    @override
    def pair(self, rho: Tensor, x: Factors, y: Factors, *, slope: bool) -> tuple[Tensor, Tensor | None]:
        # E[erf(u) erf(v)] = (2 / pi) arcsin(rho c_x c_y); the sine of that angle's complement is computed apart.
        (cx, ix, gain_x), (cy, iy, gain_y) = x, y
        rho = clamp_cosines(rho)
        cc = cx * cy
        root = _compute_sine(rho, cc, ix, iy)
        gains = gain_x * gain_y
        value = torch.atan2(rho * cc, root) * gains
        if not slope:
            return value, None
        return value, cc * gains / root


@dataclass(frozen=True)
class GELU(Activation):
    r""":math:`\phi(u) = u \Phi(u)`.

    With :math:`t = c_x c_y`, :math:`c = r / \sqrt{1 + r^2}`, :math:`e = 1/(1 + r_x^2) + 1/(1 + r_y^2) - 1`,

    .. math:: \frac{E[\phi(u) \phi(v)]}{r_x r_y} = \frac{\rho}{4} + \frac{\rho \arcsin(\rho t)}{2 \pi}
        + \frac{t (1 + e \rho^2)}{2 \pi \sqrt{1 - \rho^2 t^2}}.
    """

    @override
    def deviation(self, r: Tensor) -> Tensor:
        c, inverse = _saturate(r)
        return r * safe_sqrt(self._moments(torch.ones_like(r), c * c, (inverse, inverse))[0])

    @override
    def mean(self, r: Tensor) -> Tensor:  # E[u Phi(u)] = r^2 E[normal density at u]
        return r * _saturate(r)[0] / math.sqrt(2 * math.pi)

    @override
    def factors(self, r: Tensor, after: Tensor) -> Factors:
        return *_saturate(r), ratio_of(r, after)

    @override
    def pair(self, rho: Tensor, x: Factors, y: Factors, *, slope: bool) -> tuple[Tensor, Tensor | None]:
        (cx, ix, gain_x), (cy, iy, gain_y) = x, y
        value, derivative = self._moments(clamp_cosines(rho), cx * cy, (ix, iy))
        gains = gain_x * gain_y
        if not slope:
            return value * gains, None
        return value * gains, derivative * gains

    def _moments(self, rho: Tensor, t: Tensor, inverses: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The second moment over both deviations, and its derivative in rho."""
        # E[Phi(u) Phi(v)], then the term with the joint density of two Gaussians.
        root = _compute_sine(rho, t, *inverses)
        tau = 1 / (2 * math.pi)
        half = 0.25 + tau * torch.atan2(rho * t, root)
        e = inverses[0].square() + inverses[1].square() - 1
        density = tau * t / root
        top = 1 + e * rho * rho
        return rho * half + density * top, half + density * rho * (1 + 2 * e + top * (t / root).square())


@dataclass(frozen=True)
class Wave(Activation):
    r"""Sine, or cosine: :math:`E[\cos u \cos v] = (e^{-Var(u - v) / 2} + e^{-Var(u + v) / 2}) / 2`, minus for sine."""

    cosine: bool = False

    @property
    @override
    def odd(self) -> bool:
        return not self.cosine

    @override
    def deviation(self, r: Tensor) -> Tensor:
        # E[cos^2 u] and E[sin^2 u] are (1 +- e^{-2 r^2}) / 2.
        exponent = -2 * r.square()
        if self.cosine:
            return safe_sqrt((1 + exponent.exp()) / 2)
        return safe_sqrt(-exponent.expm1() / 2)

    @override
    def mean(self, r: Tensor) -> Tensor:
        if self.cosine:
            return (-r.square() / 2).exp()
        return torch.zeros_like(r)

    @override
    def factors(self, r: Tensor, after: Tensor) -> Factors:
        return r, inverse_of(after)

    @override
    def pair(self, rho: Tensor, x: Factors, y: Factors, *, slope: bool) -> tuple[Tensor, Tensor | None]:
        rho = clamp_cosines(rho)
        (rx, inverse_x), (ry, inverse_y) = x, y
        inverse = inverse_x * inverse_y
        # e^{-Var(u - v) / 2}; the variance as a sum that keeps its digits where u = v.
        difference = (rx - ry).square() + 2 * rx * ry * (1 - rho)
        by_difference, twice = (-difference / 2).exp(), -2 * rx * ry * rho
        # e^{-Var(u + v) / 2}, with Var(u + v) = Var(u - v) + 4 Cov in one exponent: two factors might overflow.
        by_sum = (-(difference / 2 - twice).clamp_min(0)).exp()
        cosines = (by_difference + by_sum) / 2
        # Their difference by expm1 where the covariance is small.
        small = -by_difference * twice.clamp(-1, 1).expm1()
        sines = torch.where(twice.abs() < 1, small, by_difference - by_sum) / 2
        # The derivative of the one is the other, up to its sign, which the product of two loses.
        value, derivative = sines, cosines
        if self.cosine:
            value, derivative = cosines, sines
        if not slope:
            return value * inverse, None
        return value * inverse, derivative * (rx * ry) * inverse


@dataclass(frozen=True)
class HermiteSeries(Activation):
    r"""A smooth activation without a closed form, by :math:`E[\phi(u) \phi(v)] = \sum_k a_k(r_x) a_k(r_y) \rho^k`.

    :math:`a_k(r) = E[\phi(r z) h_k(z)]` for the normalized Hermite polynomials :math:`h_k` and a standard normal z, by
    the trapezoidal rule (step 1/16, -12 to 12). 48 terms, of an odd activation those of odd order. What they leave out
    of the second moment, :math:`t(r)^2 = E\,\phi(r z)^2 - \sum_k a_k(r)^2`, goes into one more term,
    :math:`t(r_x) t(r_y) \rho^K`: the kernel is exact at :math:`\rho = 1` and positive semi-definite, and its error is
    at most :math:`2 t(r_x) t(r_y) |\rho|^K`. Against integrals in two dimensions, relative to the second moments:
    below 1e-8 for r up to 2, 1e-6 for r up to 3; of the derivative's moment 1e-5 and 1e-4.

    Args:
        name: ``"tanh"``, ``"silu"``, ``"sigmoid"``, ``"softplus"``, ``"mish"`` or ``"gelu_tanh"``.
    """

    name: str = "tanh"

    @property
    @override
    def odd(self) -> bool:
        return self.name == "tanh"

    @override
    def deviation(self, r: Tensor) -> Tensor:
        return safe_sqrt(self._integrals(r, 0)[0])

    @override
    def mean(self, r: Tensor) -> Tensor:
        if self.odd:
            return torch.zeros_like(r)
        return self._integrals(r, 0, [0])[1][..., 0]

    @override
    def factors(self, r: Tensor, after: Tensor) -> Factors:
        """Coefficients ``(n, *P, terms)``, the root of what they leave out of the second moment, and of the slope's."""
        square, a = self._integrals(r, 0, self._orders)
        slope_square = self._integrals(r, 1)[0] * r * r
        inverse = inverse_of(after)
        tail = _find_tail(square, a.square().sum(-1)) * inverse
        slope_tail = _find_tail(slope_square, a.square() @ a.new_tensor(self._orders)) * inverse
        return a * inverse[..., None], tail, slope_tail

    @property
    def _orders(self) -> list[int]:
        if self.odd:
            return list(range(1, 2 * _TERMS, 2))
        return list(range(_TERMS))

    @override
    def pair(self, rho: Tensor, x: Factors, y: Factors, *, slope: bool) -> tuple[Tensor, Tensor | None]:
        rho, orders = clamp_cosines(rho), self._orders
        coefficients = [side[0].movedim(-1, 0).contiguous() for side in (x, y)]
        # Horner's scheme, in rho or rho^2, for the sum over k and for its derivative in rho.
        power = rho
        if self.odd:
            power = rho * rho
        value = derivative = torch.zeros_like(rho)
        for order, ax, ay in zip(orders[::-1], coefficients[0].flip(0), coefficients[1].flip(0), strict=True):
            term = ax * ay
            value = torch.addcmul(term, value, power)
            if slope and order:
                derivative = torch.addcmul(order * term, derivative, power)
        # What the terms leave out goes into one more, of the next order, and so into the derivative.
        last = rho ** (orders[-1] + int(self.odd))
        if self.odd:  # the sum over rho^2 lacks one factor
            value = value * rho
        value = value + x[1] * y[1] * last * rho
        if not slope:
            return value, None
        return value, derivative + x[2] * y[2] * last

    def _integrals(self, r: Tensor, derivative: int, orders: list[int] | None = None) -> tuple[Tensor, Tensor]:
        """The second moment ``(...)`` of the function (0) or its derivative (1), and coefficients ``(..., orders)``."""
        function = _SMOOTH[self.name][derivative]
        # Some nodes at a time, so that phi at all nodes of all rows is never held; all of them in a graph, which must
        # not depend on the number of rows.
        if records_graph():
            nodes, weights, hermite = _make_quadrature(r.dtype, str(r.device))
            part = len(nodes)
        else:
            nodes, weights, hermite = _keep_quadrature(r.dtype, str(r.device))
            part = max(1, 2**21 // max(1, r.numel()))
        square, series = torch.zeros_like(r), r.new_zeros((*r.shape, len(orders or ())))
        for z, weight, h in zip(nodes.split(part), weights.split(part), hermite.split(part), strict=True):
            values = function(r[..., None] * z)
            square = square + values.square() @ weight
            if orders:
                series = series + values @ h[:, orders]
        return square, series


def _slope_of_mish(u: Tensor) -> Tensor:
    inner = torch.tanh(F.softplus(u))
    return inner + u * (1 - inner * inner) * torch.sigmoid(u)


def _slope_of_gelu_tanh(u: Tensor) -> Tensor:
    root = math.sqrt(2 / math.pi)
    inner = torch.tanh(root * (u + 0.044715 * u**3))
    return (1 + inner) / 2 + u * (1 - inner * inner) * root * (1 + 3 * 0.044715 * u * u) / 2


_SMOOTH: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # and their derivatives
    "tanh": (torch.tanh, lambda u: 1 / torch.cosh(u.clamp(-40, 40)).square()),
    "silu": (F.silu, lambda u: torch.sigmoid(u) * (1 + u * torch.sigmoid(-u))),
    "sigmoid": (torch.sigmoid, lambda u: torch.sigmoid(u) * torch.sigmoid(-u)),
    "softplus": (F.softplus, torch.sigmoid),
    "mish": (F.mish, _slope_of_mish),
    "gelu_tanh": (lambda u: F.gelu(u, approximate="tanh"), _slope_of_gelu_tanh),
}


def _make_quadrature(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, weights, and weights times the normalized Hermite polynomials, ``(nodes, orders)``."""
    # The trapezoidal rule for the standard normal density; its error falls faster than any power of the step.
    z = torch.arange(-_END, _END + _STEP / 2, _STEP, dtype=torch.float64)
    weight = torch.exp(-z * z / 2) * (_STEP / math.sqrt(2 * math.pi))
    # h_{k+1} = (z h_k - sqrt(k) h_{k-1}) / sqrt(k + 1).
    hermite = [torch.ones_like(z), z]
    for k in range(1, 2 * _TERMS - 1):
        hermite.append((z * hermite[k] - math.sqrt(k) * hermite[k - 1]) / math.sqrt(k + 1))
    table = torch.stack(hermite, 1) * weight[:, None]
    return tuple(t.to(device=device, dtype=dtype) for t in (z, weight, table))  # type: ignore[return-value]


@functools.cache
def _keep_quadrature(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    with torch.inference_mode(False):  # kept for later calls, which may differentiate
        return _make_quadrature(dtype, device)


def _find_tail(square: Tensor, partial: Tensor) -> Tensor:
    """Root of what a series with that partial sum leaves out of a second moment; 0 where rounding hides it."""
    tail = square - partial
    return safe_sqrt(torch.where(tail > _LEAST_TAIL * square, tail, 0.0))


def relu_pair(rho: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`(\sin\theta + (\pi - \theta) \rho) / \pi` and :math:`1 - \theta / \pi` for :math:`\rho = \cos\theta`."""
    if may_be_differentiated(rho):
        t = clamp_cosines(rho)
        active = 1 - angles(t) / math.pi
        return t * active + safe_sqrt((1 - t) * (1 + t)) / math.pi, active
    # Without a gradient: the same in the fewest passes over memory, in place.
    edge = 1.0 - _RESOLUTION * torch.finfo(rho.dtype).eps
    t = torch.where(rho > edge, 1.0, rho).clamp_(min=-1.0)
    active = torch.acos(t).mul_(-1 / math.pi).add_(1.0)
    gap = 1 - t
    sine = (2 - gap).mul_(gap).sqrt_()
    return t.mul_(active).add_(sine, alpha=1 / math.pi), active


def _saturate(r: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`r / \sqrt{1 + r^2}` and :math:`1 / \sqrt{1 + r^2}`, without the square."""
    inverse = 1 / hypotenuse(r, 1.0)
    return r * inverse, inverse


def _compute_sine(rho: Tensor, cc: Tensor, ix: Tensor, iy: Tensor) -> Tensor:
    r""":math:`\sqrt{1 - \rho^2 c_x^2 c_y^2}` with :math:`1 - c^2 = i^2`; as it stands it loses all digits near 0."""
    ex, ey = ix * ix, iy * iy
    tiny = torch.finfo(rho.dtype).tiny
    return torch.addcmul(ex + ey - ex * ey, cc * cc, (1 - rho) * (1 + rho)).clamp_min(tiny).sqrt()


def inverse_of(r: Tensor) -> Tensor:
    """1 / r, and 0 at 0."""
    return torch.where(r > 0, 1 / torch.where(r > 0, r, 1.0), 0.0)


def ratio_of(a: Tensor, r: Tensor) -> Tensor:
    """The ratio a / r, and 0 at 0; unlike a times `inverse_of` r it does not overflow where r is denormal."""
    return torch.where(r > 0, a / torch.where(r > 0, r, 1.0), 0.0)


def hypotenuse(r: Tensor, b: float) -> Tensor:
    r""":math:`\sqrt{r^2 + b^2}` without overflow; a compiled graph says it in operations that every runtime has."""
    if records_graph():
        larger = r.abs().clamp_min(b)
        return larger * ((r / larger).square() + (b / larger).square()).sqrt()
    return torch.hypot(r, torch.full_like(r, b))
