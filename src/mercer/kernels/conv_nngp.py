"""Infinitely wide convolutional networks: ConvNNGP and ConvNTK of pictures."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from .. import checks
from ..linalg import readable, records_graph
from .base import Kernel
from .gaussian_moments import check_activation, moments, variances

READOUTS = ("flatten", "mean")


class ConvNNGP(Kernel):
    r"""Covariance of the outputs of a convolutional network with infinitely many channels.

    With :math:`P` the mean over the :math:`k \times k` patch around a pixel p (zeros outside the picture),

    .. math:: \Sigma^0_{pp'} = \sigma_w^2 P[\langle x_p, y_{p'} \rangle / C] + \sigma_b^2, \qquad
        \Sigma^{l}_{pp'} = \sigma_w^2 P[E[\phi(u_p) \phi(v_{p'})]] + \sigma_b^2, \quad l < depth,

    and the readout takes the mean of :math:`E[\phi \phi]` over equal pixels (``"flatten"``: a dense layer on all
    pixels) or over all pairs of pixels (``"mean"``: global average pooling), times :math:`\sigma_w^2`, plus
    :math:`\sigma_b^2`. It is the CNN-GP of deng2022 without sampling; pooling costs pixels^2 in place of pixels.

    Args:
        depth: Convolutional hidden layers, of stride 1 and the picture's size, at least 1.
        activation: :math:`\phi`, ``"relu"`` or ``"erf"``.
        weight_var: :math:`\sigma_w^2`; every layer has weights of variance ``weight_var / fan_in``.
        bias_var: :math:`\sigma_b^2`.
        kernel_size: k, odd.
        readout: ``"flatten"`` or ``"mean"``.
    """

    TANGENT: ClassVar[bool] = False  # whether the tangent kernel is computed as well
    block_bytes = 8 * 2**20  # one covariance of a block of pairs of pictures, over all pixels

    def __init__(
        self,
        depth: int = 1,
        activation: str = "relu",
        weight_var: float = 2.0,
        bias_var: float = 0.0,
        *,
        kernel_size: int = 3,
        readout: str = "flatten",
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.depth = checks.integer(where, "depth", depth, 1)
        self.activation = check_activation(where, activation)
        self.weight_var = checks.positive(where, "weight_var", weight_var)
        self.bias_var = checks.non_negative(where, "bias_var", bias_var)
        self.kernel_size = checks.integer(where, "kernel_size", kernel_size, 1)
        if kernel_size % 2 == 0:
            raise ValueError(checks.sentence(where, "kernel_size must be odd", kernel_size))
        self.readout = checks.choice(where, "readout", readout, READOUTS)

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        where = type(self).__name__
        if not isinstance(x, Tensor):
            raise TypeError(
                checks.sentence(where, f"{name} must be a tensor", type(x).__name__, "Use torch.as_tensor.")
            )
        checks.dense(where, name, x)
        if x.ndim != 4:
            fix = f"Use {name}[:, None] for grey pictures, {name}.reshape(-1, c, h, w) for rows."
            raise ValueError(checks.sentence(where, f"{name} must have shape (n, c, h, w)", tuple(x.shape), fix))
        x = checks.floating(checks.matrix(where, name, x.flatten(1))).reshape(x.shape)
        if x.numel() == 0 and len(x):
            raise ValueError(checks.sentence(where, f"{name} must have at least one pixel", tuple(x.shape)))
        return checks.no_overflow(where, name, x) if readable(x) else x

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, c, h, w), (m, c, h, w) -> (n, m)
        return self._blocks(x, y)[0]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, c, h, w) -> (n,)
        return self._diagonal(x)[0]

    @override
    def extra_repr(self) -> str:
        numbers = f"weight_var={self.weight_var:g}, bias_var={self.bias_var:g}, kernel_size={self.kernel_size}"
        return f"{self.depth}, {self.activation!r}, {numbers}, readout={self.readout!r}"

    def _blocks(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Both kernels, some rows and columns at a time, so that the pixels' covariances stay small."""
        pixels = x.shape[2] * x.shape[3]
        pairs = max(1, self.block_bytes // (x.element_size() * pixels ** (2 if self.readout == "mean" else 1)))
        columns = max(1, min(len(y), pairs))
        rows = max(1, pairs // columns)
        if records_graph() or len(x) * len(y) <= pairs:
            return self._pair_block(x, y)
        strips = [
            [torch.cat(part, 1) for part in zip(*(self._pair_block(a, b) for b in y.split(columns)), strict=True)]
            for a in x.split(rows)
        ]
        return tuple(torch.cat(part) for part in zip(*strips, strict=True))

    def _pair_block(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        vx, vy = self._variances(x), self._variances(y)
        equal = "ncij,mcij->nmij" if self.readout == "flatten" else "ncij,mckl->nmijkl"
        s = self._affine(self._patch(torch.einsum(equal, x, y) / x.shape[1]))
        ntk = s
        for layer in range(self.depth):
            qx, qy = self._aligned(vx[layer], vy[layer])
            moment, slope = moments(self.activation, s, qx, qy, slope=self.TANGENT)
            mean = self._patch if layer < self.depth - 1 else self._pool
            s = self._affine(mean(moment))
            if slope is not None:
                ntk = s + mean(ntk * slope) * self.weight_var
        return (s, ntk) if self.TANGENT else (s, s)

    def _diagonal(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n,)
        if self.readout == "mean":  # the mean runs over pairs of pixels: no short way
            both = [self._pair_block(row[None], row[None]) for row in x]
            values = [torch.cat([pair[which].reshape(1) for pair in both]) for which in range(2)]
            return values[0], values[1]
        v = self._variances(x)
        ntk = v[0]
        for layer in range(self.depth):
            moment, slope = variances(self.activation, v[layer])
            mean = self._patch if layer < self.depth - 1 else self._pool
            s = self._affine(mean(moment))
            ntk = s + mean(ntk * slope) * self.weight_var
        return s, ntk

    def _variances(self, x: Tensor) -> list[Tensor]:  # depth of (n, h, w)
        """Every pixel's variance in every hidden layer."""
        v = [self._affine(_patch_mean(x.square().mean(1), self.kernel_size))]
        for _ in range(self.depth - 1):
            v.append(self._affine(_patch_mean(variances(self.activation, v[-1])[0], self.kernel_size)))
        return v

    def _aligned(self, qx: Tensor, qy: Tensor) -> tuple[Tensor, Tensor]:
        if self.readout == "flatten":
            return qx[:, None], qy[None]
        return qx[:, None, :, :, None, None], qy[None, :, None, None]

    def _patch(self, s: Tensor) -> Tensor:
        return _patch_mean(s, self.kernel_size) if s.ndim < 6 else _patch_mean_of_pairs(s, self.kernel_size)

    def _pool(self, s: Tensor) -> Tensor:
        return s.mean((-2, -1)) if self.readout == "flatten" else s.mean((-4, -3, -2, -1))

    def _affine(self, moment: Tensor) -> Tensor:
        return moment * self.weight_var + self.bias_var


class ConvNTK(ConvNNGP):
    r"""Neural tangent kernel of a convolutional network with infinitely many channels.

    .. math:: \Theta^0 = \Sigma^0, \qquad
        \Theta^{l} = \Sigma^{l} + \sigma_w^2 P[\Theta^{l-1} E[\phi'(u) \phi'(v)]]

    with the patch mean P of :class:`ConvNNGP`, at the readout the mean over pixels; weights and biases of all layers,
    NTK parametrisation. Arguments as for :class:`ConvNNGP`.
    """

    TANGENT = True

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, c, h, w), (m, c, h, w) -> (n, m)
        return self._blocks(x, y)[1]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, c, h, w) -> (n,)
        return self._diagonal(x)[1]


def _patch_mean(s: Tensor, k: int) -> Tensor:  # (..., h, w) -> (..., h, w)
    flat = s.reshape(-1, 1, *s.shape[-2:])
    return F.avg_pool2d(flat, k, stride=1, padding=k // 2).reshape(s.shape)


def _patch_mean_of_pairs(s: Tensor, k: int) -> Tensor:  # (n, m, h, w, h, w) -> the same
    """The patches around p and p' move together, so it is a sum over shared offsets."""
    r = k // 2
    h, w = s.shape[2:4]
    padded = F.pad(s, (r, r, r, r, r, r, r, r))
    total = torch.zeros_like(s)
    for i in range(k):
        for j in range(k):
            total = total + padded[:, :, i : i + h, j : j + w, i : i + h, j : j + w]
    return total / k**2
