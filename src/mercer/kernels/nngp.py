"""Infinitely wide fully connected networks: the kernel of their outputs (NNGP) and of their gradients (NTK)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg import differentiated, fill_tiles, norms_and_units, safe_sqrt
from .base import Kernel
from .gaussian_moments import check_activation, gain, hypotenuse, inverse_of, own_moments, pair_moments, ratio_of


class WideKernels(NamedTuple):
    """Both kernels of one network, ``(n, m)`` each."""

    nngp: Tensor
    ntk: Tensor


class _Rows(NamedTuple):
    """One side of a Gram matrix, layer by layer."""

    unit: Tensor  # (n, d): products are the correlations of the first layer, less the bias's share
    deviation: list[Tensor]  # depth + 1 of (n,)
    gain: list[Tensor]  # depth of (n,): factor of the moments in the next correlation
    bias: list[Tensor]  # depth + 1 of (n,): standard deviation of the bias over that of the row

    def part(self, rows: slice) -> _Rows:
        """Some of the rows."""
        return _Rows(self.unit[rows], *([t[rows] for t in each] for each in self[1:]))


class NNGP(Kernel):
    r"""Covariance of the outputs of an infinitely wide network of random weights.

    .. math:: \Sigma^0 = \sigma_w^2 \langle x, y \rangle / d + \sigma_b^2, \qquad
        \Sigma^{l} = \sigma_w^2 \, E[\phi(u) \phi(v)] + \sigma_b^2, \quad (u, v) \sim N(0, \Sigma^{l-1}),

    and :math:`k = \Sigma^{depth}` (deng2022, slide "The modern kernels": :math:`E_\theta\, g(x) g(y)`). Large Gram
    matrices are computed in tiles. With ``y=None`` only the upper triangle is computed, and the diagonal is exact.

    Args:
        depth: Hidden layers, at least 1.
        activation: :math:`\phi`, ``"relu"`` or ``"erf"``.
        weight_var: :math:`\sigma_w^2`; every layer, readout too, has weights of variance ``weight_var / fan_in``.
        bias_var: :math:`\sigma_b^2`, the variance of every bias.
    """

    tile = 256  # rows of a tile: it and its temporaries stay in the cache

    def __init__(
        self, depth: int = 1, activation: str = "relu", weight_var: float = 2.0, bias_var: float = 0.0
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.depth = checks.integer(where, "depth", depth, 1)
        self.activation = check_activation(where, activation)
        self.weight_var = checks.positive(where, "weight_var", weight_var)
        self.bias_var = checks.non_negative(where, "bias_var", bias_var)

    @property
    @override
    def is_homogeneous(self) -> bool:
        return self.activation == "relu" and self.bias_var == 0

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return self._kernels(x, y, tangent=False)[0]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return self._diagonals(self._rows(x), tangent=False)[0]

    @override
    def extra_repr(self) -> str:
        return f"{self.depth}, {self.activation!r}, weight_var={self.weight_var:g}, bias_var={self.bias_var:g}"

    def _kernels(self, x: Tensor, y: Tensor, *, tangent: bool) -> tuple[Tensor, ...]:
        """The NNGP kernel and, where asked for, the NTK."""
        left = self._rows(x)
        right = left if y is x else self._rows(y)
        if not differentiated(x, y) and x.device.type == "cpu" and max(len(x), len(y)) > self.tile:
            return self._tiles(left, right, tangent)
        whole = self._tile(left, right, tangent)
        return _with_diagonals(whole, self._diagonals(left, tangent)) if y is x else whole

    def _tiles(self, x: _Rows, y: _Rows, tangent: bool) -> tuple[Tensor, ...]:
        symmetric = y is x
        diagonals = self._diagonals(x, tangent)
        whole = tuple(x.unit.new_empty(len(x.unit), len(y.unit)) for _ in diagonals)

        def tile(rows: slice, columns: slice) -> tuple[Tensor, ...]:
            parts = self._tile(x.part(rows), y.part(columns), tangent)
            own = symmetric and rows == columns
            return _with_diagonals(parts, tuple(d[rows] for d in diagonals)) if own else parts

        fill_tiles(whole, tile, symmetric=symmetric, side=self.tile)
        return whole

    def _tile(self, x: _Rows, y: _Rows, tangent: bool) -> tuple[Tensor, ...]:
        r"""The recursion on correlations; the NTK as :math:`\Theta / r_x r_y`."""
        rho = x.unit @ y.unit.mT
        if self.bias_var:
            rho = torch.addcmul(rho, x.bias[0][:, None], y.bias[0][None])
        theta = rho
        for layer in range(self.depth):
            value, slope = pair_moments(self.activation, rho, x.deviation[layer][:, None], y.deviation[layer][None])
            if self.bias_var or self.activation != "relu":  # without a bias relu keeps its scale: all gains are 1
                gains = x.gain[layer][:, None] * y.gain[layer][None]
                value, slope = value * gains, slope * gains
            rho = torch.addcmul(value, x.bias[layer + 1][:, None], y.bias[layer + 1][None]) if self.bias_var else value
            if tangent:
                theta = torch.addcmul(rho, theta, slope)
        scales = (x.deviation[-1][:, None], y.deviation[-1][None])  # one after the other: their product may overflow
        return tuple(gram * scales[0] * scales[1] for gram in ((rho, theta) if tangent else (rho,)))

    def _rows(self, x: Tensor) -> _Rows:
        """What every row needs to know of itself, layer by layer."""
        norm, unit = norms_and_units(x)
        sigma, bias = math.sqrt(self.weight_var), math.sqrt(self.bias_var)
        scaled = norm * (sigma / math.sqrt(x.shape[1]))
        deviation, gains = [self._with_bias(scaled)], []
        for _ in range(self.depth):
            grown = gain(self.activation, deviation[-1])
            after = self._with_bias(sigma * grown * safe_sqrt(own_moments(self.activation, deviation[-1])[0]))
            gains.append(ratio_of(sigma * grown, after))
            deviation.append(after)
        share = (scaled * inverse_of(deviation[0]))[:, None] if self.bias_var else 1.0
        return _Rows(unit * share, deviation, gains, [bias * inverse_of(r) for r in deviation])

    def _with_bias(self, r: Tensor) -> Tensor:
        return hypotenuse(r, math.sqrt(self.bias_var)) if self.bias_var else r

    def _diagonals(self, x: _Rows, tangent: bool) -> tuple[Tensor, ...]:
        last, theta = x.deviation[-1], torch.ones_like(x.deviation[0])
        for r, grown in zip(x.deviation, x.gain, strict=False):
            theta = 1 + theta * own_moments(self.activation, r)[1] * grown.square()
        return (last.square(), theta * last * last) if tangent else (last.square(),)


class NTK(NNGP):
    r"""Neural tangent kernel of an infinitely wide network, in the NTK parametrisation.

    .. math:: \Theta^0 = \Sigma^0, \qquad
        \Theta^{l} = \Sigma^{l} + \Theta^{l-1} \, \sigma_w^2 \, E[\phi'(u) \phi'(v)],
        \quad (u, v) \sim N(0, \Sigma^{l-1}),

    the limit of :math:`\partial_\theta g(x) \, \partial_\theta g(y)^\top` over weights and biases of all layers
    (deng2022, slide "The modern kernels"). :math:`\Sigma` is the recursion of :class:`NNGP`.

    Args:
        depth: Hidden layers, at least 1.
        activation: :math:`\phi`, ``"relu"`` or ``"erf"``.
        weight_var: :math:`\sigma_w^2`.
        bias_var: :math:`\sigma_b^2`.
    """

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return self._kernels(x, y, tangent=True)[1]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return self._diagonals(self._rows(x), tangent=True)[1]

    def both(self, x: Tensor, y: Tensor | None = None) -> WideKernels:  # (n, d), (m, d) -> (n, m), (n, m)
        """NNGP and NTK from one pass over the layers."""
        return WideKernels(*self._kernels(*self._pair(x, y), tangent=True))


def _with_diagonals(grams: tuple[Tensor, ...], diagonals: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Square Gram matrices with their diagonals put in; the rounding of a product would be amplified by arccos."""
    own = torch.eye(len(grams[0]), dtype=torch.bool, device=grams[0].device)
    return tuple(torch.where(own, d[:, None], gram) for gram, d in zip(grams, diagonals, strict=True))
