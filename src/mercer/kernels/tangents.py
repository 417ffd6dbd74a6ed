"""Derivatives of a network's outputs over its parameters: rows of the Jacobian, and its action on directions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

from ..checks import floating_dtype
from ..linalg.blocks import slices
from ..linalg.eigen import randomized_range
from ..linalg.operators import SymmetricOperator
from ..linalg.torch_internals import forward_mode
from ..signals.attention import plain_attention
from ..signals.layers import as_logits, output_rows, trainable
from ..signals.private_copy import private_copy
from .network import in_dtype

_forward_mode = threading.Lock()  # torch has one forward mode for all threads, and none inside another
_CHUNK_BYTES = 64 * 2**20  # tangents of outputs and weights carried side by side

Weights: TypeAlias = "dict[str, Tensor]"


class Tangents:
    r"""The Jacobian :math:`J(x) = \partial_\theta g(x, \theta)` of one network in the data's dtype.

    Args:
        model: The network g; its parameters that require grad are :math:`\theta`. A private copy of it is run, so that
            several threads can differentiate one network.
        x: Rows, for their dtype.
        chosen: Picks from outputs ``(n, c)``.
    """

    def __init__(self, model: nn.Module, x: Tensor, chosen: Callable[[Tensor], Tensor]) -> None:
        self.model, self.chosen = private_copy(model), chosen
        self.dtype = floating_dtype(x, next(iter(trainable(model).values())).dtype)
        self.theta = in_dtype(trainable(model), self.dtype)
        everything = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.fixed = in_dtype({k: v for k, v in everything.items() if k not in self.theta}, self.dtype)
        self.size = sum(v.numel() for v in self.theta.values())

    def call(self, theta: Weights, x: Tensor) -> Tensor:  # -> (n, c)
        """The outputs at other weights."""
        with plain_attention():
            output = as_logits(functional_call(self.model, {**theta, **self.fixed}, (x,)))
        return self.chosen(output_rows("Tangents", output, x.shape[0]))

    def outputs(self, x: Tensor) -> int:
        """The number of outputs c."""
        with torch.no_grad():
            return self.call(self.theta, x[:1]).shape[1]

    def jacobian(self, x: Tensor) -> list[Tensor]:  # (n, ...) -> (n, c, p_i) for each parameter i
        """All rows of the Jacobian."""
        rows = vmap(jacrev(lambda theta, row: self.call(theta, row[None])[0]), in_dims=(None, 0))(self.theta, x)
        return [rows[name].reshape(*rows[name].shape[:2], -1) for name in self.theta]

    def gradient(self, x: Tensor, output: int) -> list[Tensor]:  # (n, ...) -> (n, p_i) for each parameter i
        """The rows of one output."""
        rows = vmap(torch.func.grad(lambda theta, row: self.call(theta, row[None])[0, output]), in_dims=(None, 0))(
            self.theta, x
        )
        return [rows[name].reshape(len(x), -1) for name in self.theta]

    def along(self, x: Tensor, directions: Tensor) -> Tensor:  # (n, ...), (p, r) -> (n, c, r)
        """J(x) times directions, by forward-mode derivatives, some directions side by side."""

        def forward(direction: Tensor) -> Tensor:
            derivative: Tensor = jvp(
                lambda theta: self.call(theta, x), (self.theta,), (self._split_direction(direction),)
            )[1]
            return derivative

        # Where another thread or caller is in forward mode: the same product by two backward passes.
        directions, chunk = directions.to(self.dtype), self._chunk(x)
        alone = not forward_mode() and _forward_mode.acquire(blocking=False)
        product: Callable[[Tensor], Tensor] = forward
        if not alone:
            product = self._twice_backward(x)
        try:
            products: Tensor = vmap(product, in_dims=1, out_dims=2, chunk_size=chunk)(directions)
        finally:
            if alone:
                _forward_mode.release()
        return products

    def _twice_backward(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        r"""J(x) times a direction without forward mode: :math:`J^\top u` is linear in u, and its transpose is J."""
        output, pull, *_ = vjp(lambda theta: self.call(theta, x), self.theta)
        _, push, *_ = vjp(lambda u: pull(u)[0], torch.zeros_like(output))
        return lambda direction: push(self._split_direction(direction))[0]

    def differences(self, x: Tensor, directions: Tensor, epsilon: float | None) -> Tensor:  # -> (n, c, r)
        r""":math:`(g(x, \theta + \epsilon v) - g(x, \theta)) / \epsilon` for each direction, one forward pass each."""
        base = self.call(self.theta, x)
        norm = float(sum(float(v.square().sum()) for v in self.theta.values())) ** 0.5
        parts = []
        for direction in directions.unbind(1):
            step = epsilon or torch.finfo(self.dtype).eps ** 0.5 * (1 + norm) / float(direction.norm())
            shaped = self._split_direction(direction)
            moved = {name: value + step * shaped[name] for name, value in self.theta.items()}
            parts.append((self.call(moved, x) - base) / step)
        return torch.stack(parts, 2)

    def pull_back(self, x: Tensor, u: Tensor) -> Tensor:  # (n, ...), (n, c, r) -> (p, r)
        """J(x)^T times u, by reverse-mode derivatives."""
        _, pull, *_ = vjp(lambda theta: self.call(theta, x), self.theta)

        def product(cotangent: Tensor) -> Tensor:
            (gradient,) = pull(cotangent)
            return torch.cat([gradient[name].reshape(-1) for name in self.theta])

        products: Tensor = vmap(product, in_dims=2, out_dims=1, chunk_size=self._chunk(x))(u)
        return products

    def range_of(self, x: Tensor, rank: int, iterations: int, seed: int, block: int | None) -> Tensor:  # -> (p, r)
        r"""Orthonormal directions near the dominant range of :math:`J^\top`, by products in blocks of rows."""
        # J^T times random cotangents is the start; one power step multiplies by J^T J.
        c = self.outputs(x)
        rank = min(rank, len(x) * c, self.size)
        generator = torch.Generator(device=x.device).manual_seed(seed)
        probes = torch.randn(len(x), c, rank, dtype=self.dtype, device=x.device, generator=generator)
        parts = list(slices(len(x), block or len(x)))
        zero = torch.zeros(self.size, rank, dtype=self.dtype, device=x.device)

        def gram(q: Tensor) -> Tensor:  # J^T J q
            return sum((self.pull_back(x[p], self.along(x[p], q)) for p in parts), zero)

        start = sum((self.pull_back(x[p], probes[p]) for p in parts), zero)
        operator = SymmetricOperator(gram, self.size, dtype=self.dtype, device=x.device)
        return randomized_range(operator, start, iterations=iterations)

    def random_signs(self, samples: int, seed: int, x: Tensor) -> Tensor:  # -> (p, S)
        """Directions with E[v v^T] = I."""
        bits = np.random.default_rng(seed).integers(2, size=(self.size, samples), dtype=np.int8)  # vmap refuses torch's
        return torch.from_numpy(2 * bits - 1).to(x.device, self.dtype)

    def _split_direction(self, direction: Tensor) -> Weights:
        sizes = [value.numel() for value in self.theta.values()]
        pieces = direction.split(sizes)
        return {k: piece.reshape(v.shape) for (k, v), piece in zip(self.theta.items(), pieces, strict=True)}

    def _chunk(self, x: Tensor) -> int:
        return max(1, _CHUNK_BYTES // (self.dtype.itemsize * (self.size + 8 * max(1, x.numel()))))
