"""k small networks as one batched network, the ensemble that stands for k eigenfunctions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks

ACTIVATIONS = ("sin_cos", "relu", "tanh")


class ParallelNetworks(nn.Module):
    r"""k fully connected networks of equal shape, run as batched matrix products.

    Network j is :math:`\hat\psi(x, w_j)` of deng2022. The activation ``"sin_cos"`` gives the sine and the cosine of
    each unit, twice the width; by trial it mattered most of all settings for smooth kernels.

    Args:
        in_features: d; inputs ``(n, *shape)`` are flattened.
        k: Number of networks.
        outputs: c of each network; above 1 the answer is ``(n, c, k)`` (strategy 1 for matrix-valued kernels).
        width: Units of each hidden layer.
        depth: Hidden layers.
        activation: ``"sin_cos"``, ``"relu"`` or ``"tanh"``.
        generator: Randomness of the weights.
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        in_features: int,
        k: int,
        *,
        outputs: int = 1,
        width: int = 32,
        depth: int = 2,
        activation: str = "sin_cos",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("k", k), ("outputs", outputs), ("width", width)):
            checks.integer("ParallelNetworks", name, value, 1)
        checks.integer("ParallelNetworks", "depth", depth, 1)
        self.activation = checks.choice("ParallelNetworks", "activation", activation, ACTIVATIONS)
        self.k, self.outputs = k, outputs
        fan = 2 * width if activation == "sin_cos" else width
        self.hidden_features = k * fan
        sizes = [(in_features, width), *[(fan, width)] * (depth - 1), (fan, outputs)]
        self.weights = nn.ParameterList([_uniform(k, a, b, fan=a, generator=generator) for a, b in sizes])
        self.biases = nn.ParameterList([_uniform(k, 1, b, fan=a, generator=generator) for a, b in sizes])

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        """Column j is network j."""
        h = torch.baddbmm(self.biases[-1], self._run_body(x), self.weights[-1])  # (k, n, c)
        return h[..., 0].mT if self.outputs == 1 else h.permute(1, 2, 0)

    def read_hidden(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k * width of the last layer)
        """What goes into the readouts of all networks, side by side."""
        return self._run_body(x).transpose(0, 1).flatten(1)

    def _run_body(self, x: Tensor) -> Tensor:  # (n, ...) -> (k, n, width)
        h = x.flatten(1).expand(self.k, -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = torch.baddbmm(bias, h, weight)
            if self.activation == "sin_cos":
                h = torch.cat((h.sin(), h.cos()), 2)
            elif self.activation == "relu":
                h = h.relu()
            else:
                h = h.tanh()
        return h


class Trunk(nn.Module):
    """One network with k outputs over shared hidden features, for distillation: dense, or convolutional for pictures.

    Args:
        shape: Shape of one row: ``(d,)``, or ``(channels, height, width)``.
        k: Outputs.
        outputs: c; above 1 the answer is ``(n, c, k)``.
        width: Hidden features.
        generator: Randomness of the weights.
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        shape: Sequence[int],
        k: int,
        *,
        outputs: int = 1,
        width: int = 256,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.k, self.outputs, self.hidden_features = k, outputs, width
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from the global generator
            torch.manual_seed(int(torch.randint(2**31 - 1, (1,), generator=generator)))
            self.body = _pictures(shape[0], width) if len(shape) == 3 else _dense(math.prod(shape), width)
            self.readout = nn.Linear(width, k * outputs)

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        """Column j stands for eigenfunction j."""
        out: Tensor = self.readout(self.read_hidden(x))
        return out if self.outputs == 1 else out.reshape(len(x), self.outputs, self.k)

    def read_hidden(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, width)
        """What goes into the readout."""
        h: Tensor = self.body(x)
        return h


def _dense(d: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(d, width), nn.GELU(), nn.Linear(width, width), nn.GELU())


def _pictures(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(5),
        nn.Flatten(),
        nn.Linear(32 * 25, width),
        nn.GELU(),
    )


def _uniform(k: int, a: int, b: int, *, fan: int, generator: torch.Generator | None) -> nn.Parameter:
    reach = 1 / math.sqrt(fan)
    return nn.Parameter((2 * torch.rand(k, a, b, generator=generator) - 1) * reach)
