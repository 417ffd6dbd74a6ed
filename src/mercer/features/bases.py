"""Functions that eigenfunctions are combined from: kernels at landmarks, a network's features or outputs, products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..kernels import Kernel
from ..signals.capture import capture
from ..signals.layers import last_linear
from ..signals.private_copy import private_copy
from .parallel_networks import ParallelNetworks, Trunk


class Basis(nn.Module):
    """m functions of a row, with c outputs each: ``forward`` maps ``(n, ...)`` to ``(n c, m)``."""

    outputs = 1
    __call__: Callable[..., Tensor]

    @property
    def width(self) -> int | None:
        """The number of columns of a row; None where rows have another shape."""
        return None


class LandmarkBasis(Basis):
    r"""Functions :math:`k(x, z_l)` of landmarks z, computed in the finer dtype of x and z.

    Args:
        kernel: k, held but not registered: it is the map's.
        landmarks: z ``(m, ...)``.
    """

    kernel: Kernel
    landmarks: Tensor

    def __init__(self, kernel: Kernel, landmarks: Tensor) -> None:
        super().__init__()
        self.__dict__["kernel"] = kernel
        self.register_buffer("landmarks", landmarks)

    @property
    @override
    def width(self) -> int | None:
        if self.landmarks.ndim != 2:
            return None
        return self.landmarks.shape[1]

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, m)
        z = self.landmarks
        if not x.is_floating_point():
            return self.kernel.gram(x, z)
        dtype = torch.promote_types(x.dtype, z.dtype)
        return self.kernel.gram(x.to(dtype), z.to(dtype))


class NetworkBasis(Basis):
    """A network on standardized rows.

    Args:
        network: Held, and registered: its weights are part of the map.
        centre: The mean row.
        spread: The standard deviation of all numbers, ``(c,)``, all alike: a shape travels in the ``state_dict``.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, network: nn.Module, centre: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("centre", centre)
        self.register_buffer("spread", spread)
        self.outputs = len(spread)

    @property
    @override
    def width(self) -> int | None:
        if self.centre.ndim != 1:
            return None
        return self.centre.shape[0]

    def standardize(self, x: Tensor) -> Tensor:
        """Center and scale rows, in the dtype of the weights; indices and tokens stay as they are."""
        if not x.is_floating_point():
            return x
        weight = next(self.network.parameters())
        # In float64: a spread of 1e-50 is 0 in float32.
        return ((x.double() - self.centre) / self.spread[0]).to(weight.dtype)


class OutputBasis(NetworkBasis):
    """The outputs of a network, ``(n, k)`` or ``(n, c, k)``, as ``(n c, k)``."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.network(self.standardize(x))
        return output.reshape(-1, output.shape[-1])


class HiddenBasis(NetworkBasis):
    """The inputs of a network's last linear layer; with c outputs, each feature for each output."""

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n c, m c)
        x = self.standardize(x)
        if isinstance(self.network, ParallelNetworks | Trunk):
            hidden = self.network.read_hidden(x)
        elif not last_linear(self.network)[0]:  # the network is one linear layer
            hidden = x.flatten(1)
        else:
            # A private copy that shares the weights: the user's network gets no hooks, and threads do not meet in it.
            name, private = last_linear(self.network)[0], private_copy(self.network)
            with capture(private, [name], detach=False) as signals:
                private(x)
            hidden = signals[name].input.flatten(1)
        if self.outputs == 1:
            return hidden
        eye = torch.eye(self.outputs, dtype=hidden.dtype, device=hidden.device)
        return torch.einsum("nm,cd->ncmd", hidden, eye).flatten(2).flatten(0, 1)


class ProductBasis(Basis):
    r"""Functions :math:`\psi_i(x) e_l` of a kernel that is a scalar kernel times one matrix of outputs.

    Args:
        scalar: Where the functions of the scalar kernel come from.
        rotation: ``(m, k)``: those times it are its eigenfunctions.
        picks: i ``(k,)``.
        mixing: Directions of outputs e ``(c, k)``, 0 for functions beyond the rank.
    """

    rotation: Tensor
    picks: Tensor
    mixing: Tensor

    def __init__(self, scalar: Basis, rotation: Tensor, picks: Tensor, mixing: Tensor) -> None:
        super().__init__()
        self.scalar = scalar
        self.register_buffer("rotation", rotation)
        self.register_buffer("picks", picks)
        self.register_buffer("mixing", mixing)
        self.outputs = len(mixing)

    @property
    @override
    def width(self) -> int | None:
        return self.scalar.width

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n c, k)
        values = self.scalar(x)
        functions = (values @ self.rotation.to(values.dtype))[:, self.picks]  # (n, k)
        return (functions[:, None] * self.mixing.to(functions.dtype)).flatten(0, 1)


def hidden_width(network: nn.Module) -> int | None:
    """How many hidden features a network has; None where it has no linear layer to read them at."""
    if isinstance(network, ParallelNetworks | Trunk):
        return network.hidden_features
    if not any(isinstance(layer, nn.Linear) for layer in network.modules()):
        return None
    return last_linear(network)[1].in_features
