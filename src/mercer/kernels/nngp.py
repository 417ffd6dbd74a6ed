"""Infinitely wide fully connected networks: the kernel of their outputs (NNGP) and of their gradients (NTK)."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from .base import Kernel
from .gaussian_moments import check_activation, moments, relu_step, variances

_TILE = 256  # a tile and its temporaries stay in the cache


class WideKernels(NamedTuple):
    """Both kernels of one network, ``(n, m)`` each."""

    nngp: Tensor
    ntk: Tensor


class NNGP(Kernel):
    r"""Covariance of the outputs of an infinitely wide network of random weights.

    .. math:: \Sigma^0 = \sigma_w^2 \langle x, y \rangle / d + \sigma_b^2, \qquad
        \Sigma^{l} = \sigma_w^2 \, E[\phi(u) \phi(v)] + \sigma_b^2, \quad (u, v) \sim N(0, \Sigma^{l-1}),

    and :math:`k = \Sigma^{depth}` (deng2022, slide "The modern kernels": :math:`E_\theta\, g(x) g(y)`). Large Gram
    matrices are computed in tiles, of a matrix of rows with themselves only the upper triangle, its diagonal exactly.

    Args:
        depth: Hidden layers, at least 1.
        activation: :math:`\phi`, ``"relu"`` or ``"erf"``.
        weight_var: :math:`\sigma_w^2`; every layer, readout too, has weights of variance ``weight_var / fan_in``.
        bias_var: :math:`\sigma_b^2`, the variance of every bias.
    """

    def __init__(
        self, depth: int = 1, activation: str = "relu", weight_var: float = 2.0, bias_var: float = 0.0
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.depth = checks.integer(where, "depth", depth, 1)
        self.activation = check_activation(where, activation)
        self.weight_var = checks.positive(where, "weight_var", weight_var)
        self.bias_var = checks.non_negative(where, "bias_var", bias_var)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return self._kernels(x, y, tangent=False)[0]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        return self._variances(x)[-1]

    @override
    def extra_repr(self) -> str:
        return f"{self.depth}, {self.activation!r}, weight_var={self.weight_var:g}, bias_var={self.bias_var:g}"

    def _kernels(self, x: Tensor, y: Tensor, *, tangent: bool) -> tuple[Tensor, ...]:
        """The NNGP kernel and, where asked for, the NTK."""
        vx = self._variances(x)
        vy = vx if y is x else self._variances(y)
        taped = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        if torch.compiler.is_compiling() or taped or max(len(x), len(y)) <= _TILE:
            whole = self._tile(x, y, vx, vy, tangent)
            return _with_diagonals(whole, self._diagonals(vx, tangent)) if y is x else whole
        return self._tiles(x, y, vx, vy, tangent)

    def _tiles(self, x: Tensor, y: Tensor, vx: list[Tensor], vy: list[Tensor], tangent: bool) -> tuple[Tensor, ...]:
        symmetric = y is x
        diagonals = self._diagonals(vx, tangent)
        tile = self._tile
        if self.activation == "relu":
            tile = self._relu_tile
            x = self._unit_variance(x, vx[0])
            y = x if symmetric else self._unit_variance(y, vy[0])
        whole: tuple[Tensor, ...] = ()
        for i in range(0, len(x), _TILE):
            rows = slice(i, i + _TILE)
            left, vl = x[rows], [v[rows] for v in vx]
            for j in range(i if symmetric else 0, len(y), _TILE):
                columns = slice(j, j + _TILE)
                parts = tile(left, y[columns], vl, [v[columns] for v in vy], tangent)
                if symmetric and i == j:
                    parts = _with_diagonals(parts, tuple(d[rows] for d in diagonals))
                whole = whole or tuple(part.new_empty(len(x), len(y)) for part in parts)
                for gram, part in zip(whole, parts, strict=True):
                    gram[rows, columns] = part
                    if symmetric and i != j:
                        gram[columns, rows] = part.mT
        return whole

    def _tile(self, x: Tensor, y: Tensor, vx: list[Tensor], vy: list[Tensor], tangent: bool) -> tuple[Tensor, ...]:
        s = x @ y.mT * (self.weight_var / x.shape[1]) + self.bias_var
        ntk = s
        for qx, qy in zip(vx[:-1], vy[:-1], strict=True):
            moment, slope = moments(self.activation, s, qx[:, None], qy[None], slope=tangent)
            s = self._layer(moment)
            if slope is not None:
                ntk = s + ntk * slope * self.weight_var
        return (s, ntk) if tangent else (s,)

    def _relu_tile(self, x: Tensor, y: Tensor, vx: list[Tensor], vy: list[Tensor], tangent: bool) -> tuple[Tensor, ...]:
        """As `_tile`, on correlations of rows of unit variance, in place: half the passes over memory, no gradient."""
        rx, ry = [v.sqrt()[:, None] for v in vx], [v.sqrt()[None] for v in vy]
        t = x @ y.mT
        if self.bias_var:
            t += (self.bias_var / rx[0]) / ry[0]
        ntk = t.clone() if tangent else None
        for depth in range(self.depth):
            t, reach = relu_step(t)
            if self.bias_var:  # the correlation falls to alpha J + (1 - alpha); without a bias alpha is 1
                shrink = (self.weight_var / 2 * rx[depth] / rx[depth + 1]) * (ry[depth] / ry[depth + 1])
                t = t.mul_(shrink).add_((self.bias_var / rx[depth + 1]) / ry[depth + 1])
                reach *= shrink
            ntk = None if ntk is None else ntk.mul_(reach).add_(t)
        norms = rx[-1] * ry[-1]
        return (t.mul_(norms),) if ntk is None else (t.mul_(norms), ntk.mul_(norms))

    def _unit_variance(self, x: Tensor, v: Tensor) -> Tensor:  # (n, d), (n,) -> (n, d)
        """Rows whose products are the correlations of the first layer, less what the biases add."""
        inverse = math.sqrt(self.weight_var / x.shape[1]) / torch.where(v > 0, v, 1.0).sqrt()
        return x * inverse[:, None]

    def _variances(self, x: Tensor) -> list[Tensor]:  # depth + 1 of (n,)
        """The diagonal of every layer's kernel, inputs first."""
        diagonal = [x.square().sum(1) * (self.weight_var / x.shape[1]) + self.bias_var]
        for _ in range(self.depth):
            diagonal.append(self._layer(variances(self.activation, diagonal[-1])[0]))
        return diagonal

    def _diagonals(self, v: list[Tensor], tangent: bool) -> tuple[Tensor, ...]:
        if not tangent:
            return (v[-1],)
        ntk = v[0]
        for q, after in itertools.pairwise(v):
            ntk = after + ntk * variances(self.activation, q)[1] * self.weight_var
        return v[-1], ntk

    def _layer(self, moment: Tensor) -> Tensor:
        scaled = moment * self.weight_var
        return scaled + self.bias_var if self.bias_var else scaled


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
        return self._diagonals(self._variances(x), tangent=True)[1]

    def both(self, x: Tensor, y: Tensor | None = None) -> WideKernels:  # (n, d), (m, d) -> (n, m), (n, m)
        """NNGP and NTK from one pass over the layers."""
        return WideKernels(*self._kernels(*self._pair(x, y), tangent=True))


def _with_diagonals(grams: tuple[Tensor, ...], diagonals: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Square Gram matrices with their diagonals put in; the rounding of a product would be amplified by arccos."""
    own = torch.eye(len(grams[0]), dtype=torch.bool, device=grams[0].device)
    return tuple(torch.where(own, d[:, None], gram) for gram, d in zip(grams, diagonals, strict=True))
