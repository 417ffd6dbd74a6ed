"""The Jacobian of a network's outputs over the weights that count: all of them, or those of the last layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..checks import sentence
from ..kernels import EmpiricalNTK, Tangents
from ..linalg import slices
from ..modules import Readable, capture, last_linear
from .layer_signals import ONE, LayerSignals
from .network import flat_logits, one_thread_at_a_time, own_network


class Jacobian(ABC):
    r"""Products with :math:`J(x) = \partial_\theta g(x, \theta)`, ``(n, c, p)``, which is never formed.

    Args:
        network: A copy of one's own (:func:`~mercer.bayes.network.own_network`); parameters that require grad count.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.theta = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}
        self.size = sum(p.numel() for p in self.theta.values())

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype, in which everything runs."""
        return next(iter(self.theta.values())).dtype

    def outputs(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        """The network's outputs."""
        return flat_logits(self.network(x))

    def outputs_of(self, x: Readable, batch_size: int) -> Tensor:  # (n, ...) -> (n, c)
        """Outputs of many rows, some at a time; a rank without rows gets the shape alone."""
        if not len(x):
            return self.outputs(torch.zeros(1, *x.shape[1:], dtype=x.dtype, device=x.device))[:0]
        return torch.cat([self.outputs(x[part]) for part in slices(len(x), batch_size)])

    @abstractmethod
    def along(self, x: Tensor, directions: Tensor) -> Tensor:  # (n, ...), (p, k) -> (n, c, k)
        """J(x) times directions."""

    @abstractmethod
    def transposed(self, x: Tensor, u: Tensor) -> Tensor:  # (n, ...), (n, c, k) -> (p, k)
        """J(x)^T times u, summed over the rows."""

    @abstractmethod
    def joint_kernel(self, x: Tensor, scales: Mapping[str, float] = ONE) -> Tensor:  # (n, ...) -> (n, n, c, c)
        """J(x) J(x')^T of all rows with each other."""

    def spread(self, scales: Mapping[str, float]) -> Tensor:  # -> (p,)
        """The square root of each weight's scale."""
        parts = [
            torch.full((p.numel(),), scales.get(name.rpartition(".")[0], 1.0) ** 0.5, dtype=p.dtype, device=p.device)
            for name, p in self.theta.items()
        ]
        return torch.cat(parts)

    @abstractmethod
    def parts(
        self, x: Tensor, q: Tensor, *, diagonal: bool, scales: Mapping[str, float], gradients: bool
    ) -> tuple[Tensor, Tensor, Tensor]:  # -> (n, c), (n, c, k), (n, c) or (n, c, c)
        """Outputs, J(x) times directions, and J(x) J(x)^T of each row, each layer's share times its scale."""


class NetworkJacobian(Jacobian):
    """The Jacobian of all weights: forward and backward passes."""

    @override
    def along(self, x: Tensor, directions: Tensor) -> Tensor:
        with one_thread_at_a_time():
            return self._tangents(x).along(x, directions)

    @override
    def transposed(self, x: Tensor, u: Tensor) -> Tensor:
        with one_thread_at_a_time():
            return self._tangents(x).transposed(x, u)

    @override
    def parts(
        self, x: Tensor, q: Tensor, *, diagonal: bool, scales: Mapping[str, float], gradients: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        own = LayerSignals(self.network).own_kernel(x, diagonal=diagonal, scales=scales, gradients=gradients)
        return self.outputs(x), self.along(x, q), own

    @override
    def joint_kernel(self, x: Tensor, scales: Mapping[str, float] = ONE) -> Tensor:
        layers: dict[str, list[str]] = {}
        for name in self.theta:
            layers.setdefault(name.rpartition(".")[0] if scales else "", []).append(name)
        total = x.new_zeros(())
        for layer, names in layers.items():
            kernel = EmpiricalNTK(own_network(self.network, names), outputs="full")
            with one_thread_at_a_time():
                total = total + scales.get(layer, 1.0) * kernel(x)
        return total

    def _tangents(self, x: Tensor) -> Tangents:
        return Tangents(self.network, x[:0], flat_logits)


class LastLayerJacobian(Jacobian):
    r"""Of the last linear layer, :math:`J(x) = I_c \otimes (\phi(x), 1)`: one forward pass and matrix products."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.name, layer = last_linear(network)
        self.bias = layer.bias is not None and layer.bias.requires_grad

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, d + 1)
        """Outputs, and what goes into the last layer, a 1 appended for its bias."""
        with capture(self.network, [self.name] if self.name else [], detach=False) as seen:
            f = self.outputs(x)
        phi, z = (seen[self.name].input, seen[self.name].output) if self.name else (x, f)
        if phi.ndim != 2 or z.shape != f.shape or not torch.allclose(z, f, equal_nan=True):
            need = "the outputs must be those of the last linear layer for parameters='last'"
            got = f"{self.name} with outputs of shape {tuple(z.shape)}"
            raise ValueError(sentence("LinearizedLaplace", need, got, "Use parameters='all'."))
        return f, torch.cat((phi, torch.ones_like(phi[:, :1])), 1) if self.bias else phi

    @override
    def along(self, x: Tensor, directions: Tensor) -> Tensor:
        return self.along_features(self.features(x)[1], directions)

    def along_features(self, phi: Tensor, directions: Tensor) -> Tensor:  # (n, d + 1), (p, k) -> (n, c, k)
        """J times directions of rows whose features are known."""
        return torch.einsum("nd,cdk->nck", phi, self._shaped(directions, phi.shape[1]))

    def covariance_blocks(self, directions: Tensor, weights: Tensor) -> Tensor:  # (p, k), (k,) -> (c, d + 1, d + 1)
        """Each output's own block of the weights' covariance ``directions diag(weights) directions^T``."""
        width = self.theta[f"{self.name}.weight".lstrip(".")].shape[1] + int(self.bias)
        shaped = self._shaped(directions.double() * weights.double().sqrt(), width)  # (c, d + 1, k)
        return (shaped @ shaped.mT).to(directions.dtype)

    def variances(self, x: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:  # (n, ...) -> (n, c), (n, c)
        """Outputs and their variances, from the blocks alone."""
        f, phi = self.features(x)
        return f, ((phi @ blocks) * phi).sum(2).mT

    def curvature(self, phi: Tensor, hessians: Tensor) -> Tensor:  # (n, d + 1), (n, c, c) -> (p, p)
        r""":math:`\sum_i \Lambda_i \otimes \phi_i \phi_i^\top`, in the order of the weights."""
        c, width = hessians.shape[1], phi.shape[1]
        total = phi.new_zeros(c, width, c, width)
        for i in range(c):
            for j in range(i + 1):
                total[i, :, j] = (phi * hessians[:, i, j, None]).mT @ phi
                total[j, :, i] = total[i, :, j]
        order = torch.arange(c * width, device=phi.device).reshape(c, width)
        if self.bias:
            order = torch.cat((order[:, :-1].flatten(), order[:, -1]))
        order = order.flatten()
        return total.reshape(c * width, c * width)[order][:, order]

    @override
    def transposed(self, x: Tensor, u: Tensor) -> Tensor:
        phi = self.features(x)[1]
        product = torch.einsum("nd,nck->cdk", phi, u)  # (c, d + 1, k)
        c, width, k = product.shape
        if not self.bias:
            return product.reshape(c * width, k)
        return torch.cat((product[:, :-1].reshape(c * (width - 1), k), product[:, -1]))

    def _shaped(self, directions: Tensor, width: int) -> Tensor:  # (p, k) -> (c, d + 1, k)
        k = directions.shape[1]
        if not self.bias:
            return directions.reshape(-1, width, k)
        c = len(directions) // width
        weight, bias = directions[: c * (width - 1)], directions[c * (width - 1) :]
        return torch.cat((weight.reshape(c, width - 1, k), bias[:, None]), 1)

    @override
    def joint_kernel(self, x: Tensor, scales: Mapping[str, float] = ONE) -> Tensor:
        f, phi = self.features(x)
        eye = torch.eye(f.shape[1], dtype=f.dtype, device=f.device)
        return scales.get(self.name, 1.0) * (phi @ phi.mT)[:, :, None, None] * eye

    @override
    def parts(
        self, x: Tensor, q: Tensor, *, diagonal: bool, scales: Mapping[str, float], gradients: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        f, phi = self.features(x)
        size = scales.get(self.name, 1.0) * phi.square().sum(1)[:, None].expand(f.shape)
        return f, self.along_features(phi, q), size if diagonal else torch.diag_embed(size)
