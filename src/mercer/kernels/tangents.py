"""Derivatives of a network's outputs over its parameters: rows of the Jacobian, and its action on directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

from ..linalg import slices
from ..modules import as_logits, trainable
from .network import evaluating, in_dtype

_CHUNK_BYTES = 64 * 2**20  # tangents of outputs and weights carried side by side

Weights: TypeAlias = "dict[str, Tensor]"


class Tangents:
    r"""The Jacobian :math:`J(x) = \partial_\theta g(x, \theta)` of one network in the data's dtype.

    Args:
        model: The network g; its parameters that require grad are :math:`\theta`.
        x: Rows, for their dtype.
        chosen: Picks and shapes the outputs, to ``(n, c)``.
    """

    def __init__(self, model: nn.Module, x: Tensor, chosen: Callable[[Tensor], Tensor]) -> None:
        self.model, self.chosen = model, chosen
        self.dtype = x.dtype if x.is_floating_point() else next(iter(trainable(model).values())).dtype
        self.theta = in_dtype(trainable(model), self.dtype)
        everything = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.fixed = in_dtype({k: v for k, v in everything.items() if k not in self.theta}, self.dtype)
        self.size = sum(v.numel() for v in self.theta.values())

    def call(self, theta: Weights, x: Tensor) -> Tensor:  # -> (n, c)
        """The outputs at other weights."""
        with evaluating(self.model):
            return self.chosen(as_logits(functional_call(self.model, {**theta, **self.fixed}, (x,))))

    def outputs(self, x: Tensor) -> int:
        """C."""
        with torch.no_grad():
            return self.call(self.theta, x[:1]).shape[1]

    def jacobian(self, x: Tensor) -> list[Tensor]:  # (n, ...) -> (n, c, p_i) for each parameter i
        """All rows of the Jacobian."""
        rows = vmap(jacrev(lambda theta, row: self.call(theta, row[None])[0]), in_dims=(None, 0))(self.theta, x)
        return [rows[name].flatten(2) for name in self.theta]

    def gradient(self, x: Tensor, output: int) -> list[Tensor]:  # (n, ...) -> (n, p_i) for each parameter i
        """The rows of one output."""
        rows = vmap(torch.func.grad(lambda theta, row: self.call(theta, row[None])[0, output]), in_dims=(None, 0))(
            self.theta, x
        )
        return [rows[name].flatten(1) for name in self.theta]

    def along(self, x: Tensor, directions: Tensor) -> Tensor:  # (n, ...), (p, r) -> (n, c, r)
        """J(x) times directions, by forward-mode derivatives, some directions side by side."""

        def product(direction: Tensor) -> Tensor:
            tangent = self._shaped(direction)
            derivative: Tensor = jvp(lambda theta: self.call(theta, x), (self.theta,), (tangent,))[1]
            return derivative

        directions = directions.to(self.dtype)
        products: Tensor = vmap(product, in_dims=1, out_dims=2, chunk_size=self._chunk(x))(directions)
        return products

    def differences(self, x: Tensor, directions: Tensor, epsilon: float | None) -> Tensor:  # -> (n, c, r)
        r""":math:`(g(x, \theta + \epsilon v) - g(x, \theta)) / \epsilon` for each direction, one forward pass each."""
        base = self.call(self.theta, x)
        norm = float(sum(float(v.square().sum()) for v in self.theta.values())) ** 0.5
        parts = []
        for direction in directions.unbind(1):
            step = epsilon or torch.finfo(self.dtype).eps ** 0.5 * (1 + norm) / float(direction.norm())
            shaped = self._shaped(direction)
            moved = {name: value + step * shaped[name] for name, value in self.theta.items()}
            parts.append((self.call(moved, x) - base) / step)
        return torch.stack(parts, 2)

    def transposed(self, x: Tensor, u: Tensor) -> Tensor:  # (n, ...), (n, c, r) -> (p, r)
        """J(x)^T times u, by reverse-mode derivatives."""
        _, pull, *_ = vjp(lambda theta: self.call(theta, x), self.theta)

        def product(cotangent: Tensor) -> Tensor:
            (gradient,) = pull(cotangent)
            return torch.cat([gradient[name].reshape(-1) for name in self.theta])

        products: Tensor = vmap(product, in_dims=2, out_dims=1, chunk_size=self._chunk(x))(u)
        return products

    def range_of(self, x: Tensor, rank: int, iterations: int, seed: int, block: int | None) -> Tensor:  # -> (p, r)
        r"""Orthonormal directions near the dominant range of :math:`J^\top`: QR of :math:`J^\top \Omega`, power steps.

        Halko, Martinsson and Tropp (2011), Algorithm 4.4, with the products of J and its transpose in blocks of rows.
        """
        c = self.outputs(x)
        rank = min(rank, len(x) * c, self.size)
        generator = torch.Generator(device=x.device).manual_seed(seed)
        probes = torch.randn(len(x), c, rank, dtype=self.dtype, device=x.device, generator=generator)
        parts = list(slices(len(x), block or len(x)))
        q = _orthonormal(sum((self.transposed(x[p], probes[p]) for p in parts), torch.zeros(())))
        for _ in range(iterations):
            products = torch.cat([self.along(x[p], q) for p in parts])  # (n, c, r)
            left = torch.linalg.qr(products.flatten(0, 1))[0].reshape(products.shape)
            q = _orthonormal(sum((self.transposed(x[p], left[p]) for p in parts), torch.zeros(())))
        return q

    def random_signs(self, samples: int, seed: int, x: Tensor) -> Tensor:  # -> (p, S)
        """Directions with E[v v^T] = I."""
        generator = torch.Generator(device=x.device).manual_seed(seed)
        bits = torch.randint(2, (self.size, samples), generator=generator, device=x.device, dtype=torch.int8)
        return (2 * bits - 1).to(self.dtype)

    def _shaped(self, direction: Tensor) -> Weights:
        sizes = [value.numel() for value in self.theta.values()]
        pieces = direction.split(sizes)
        return {k: piece.reshape(v.shape) for (k, v), piece in zip(self.theta.items(), pieces, strict=True)}

    def _chunk(self, x: Tensor) -> int:
        return max(1, _CHUNK_BYTES // (self.dtype.itemsize * (self.size + 8 * max(1, x.numel()))))


def _orthonormal(directions: Tensor) -> Tensor:  # (p, r) -> (p, r)
    q: Tensor = torch.linalg.qr(directions)[0]
    return q
