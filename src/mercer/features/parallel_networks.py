"""Networks that stand for k eigenfunctions: k small ones as one, or one trunk; and the norm that they train with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks

_TRUNK_WIDTH = 256  # hidden features of the network that distillation trains


class ParallelNetworks(nn.Module):
    r"""k fully connected networks of equal shape, run as batched matrix products.

    Network j is :math:`\hat\psi(x, w_j)` of deng2022. The activation is the sine and the cosine of each unit, twice
    the width; by trial it mattered most of all settings for smooth kernels.

    Args:
        in_features: d; inputs ``(n, *shape)`` are flattened.
        k: Number of networks.
        outputs: c of each network; above 1 the answer is ``(n, c, k)`` (strategy 1 for matrix-valued kernels).
        width: Units of each hidden layer.
        depth: Hidden layers.
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
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("k", k), ("outputs", outputs), ("width", width)):
            checks.integer("ParallelNetworks", name, value, 1)
        checks.integer("ParallelNetworks", "depth", depth, 1)
        self.k, self.outputs, fan = k, outputs, 2 * width
        self.hidden_features = k * fan
        # Layer sizes, the same for all k networks; weights as torch draws those of a linear layer.
        sizes = [(in_features, width), *[(fan, width)] * (depth - 1), (fan, outputs)]
        self.weights = nn.ParameterList([_draw_uniform(k, a, b, fan=a, generator=generator) for a, b in sizes])
        self.biases = nn.ParameterList([_draw_uniform(k, 1, b, fan=a, generator=generator) for a, b in sizes])

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        """Column j is network j."""
        h = torch.baddbmm(self.biases[-1], self._run_body(x), self.weights[-1])  # (k, n, c)
        if self.outputs == 1:
            return h[..., 0].mT
        return h.permute(1, 2, 0)

    def read_hidden(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k * width of the last layer)
        """The inputs of the readouts of all networks, side by side."""
        return self._run_body(x).transpose(0, 1).flatten(1)

    def _run_body(self, x: Tensor) -> Tensor:  # (n, ...) -> (k, n, width)
        h = x.flatten(1).expand(self.k, -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = torch.baddbmm(bias, h, weight)
            h = torch.cat((h.sin(), h.cos()), 2)
        return h


class Trunk(nn.Module):
    """One network with k outputs over shared hidden features, for distillation: dense, or convolutional for pictures.

    Args:
        shape: Shape of one row: ``(d,)``, or ``(channels, height, width)``.
        k: Outputs.
        outputs: c; above 1 the answer is ``(n, c, k)``.
        generator: Randomness of the weights.
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        shape: Sequence[int],
        k: int,
        *,
        outputs: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.k, self.outputs, self.hidden_features = k, outputs, _TRUNK_WIDTH
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from the global generator
            torch.manual_seed(int(torch.randint(2**31 - 1, (1,), generator=generator)))
            if len(shape) == 3:
                self.body = nn.Sequential(
                    nn.Conv2d(shape[0], 32, 3, stride=2, padding=1),
                    nn.GELU(),
                    nn.Conv2d(32, 32, 3, stride=2, padding=1),
                    nn.GELU(),
                    nn.AdaptiveAvgPool2d(5),
                    nn.Flatten(),
                    nn.Linear(32 * 25, _TRUNK_WIDTH),
                    nn.GELU(),
                )
            else:
                first, second = nn.Linear(math.prod(shape), _TRUNK_WIDTH), nn.Linear(_TRUNK_WIDTH, _TRUNK_WIDTH)
                self.body = nn.Sequential(nn.Flatten(), first, nn.GELU(), second, nn.GELU())
            # Linear on the hidden features, so that Rayleigh-Ritz can combine them in its own way.
            self.readout = nn.Linear(_TRUNK_WIDTH, k * outputs)

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k) or (n, c, k)
        """Column j stands for eigenfunction j."""
        out: Tensor = self.readout(self.read_hidden(x))
        if self.outputs > 1:
            out = out.reshape(len(x), self.outputs, self.k)
        return out

    def read_hidden(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, width)
        """The input of the readout."""
        h: Tensor = self.body(x)
        return h


class L2BatchNorm(nn.Module):
    r"""L2 batch normalization, without centering and without a learned scale.

    .. math:: h^{out}_b = h^{in}_b / \sigma, \quad \sigma = \sqrt{\tfrac{1}{B} \sum_b (h^{in}_b)^2}

    for each feature (deng2022, slide "DNNs as eigenfunctions"). In training :math:`\sigma` is the batch's and the
    gradient flows through it; in evaluation it is the root of the running mean square. A feature that is 0 in the
    whole batch stays 0.

    Args:
        num_features: Size of dimension 1; the mean runs over all other dimensions.
        momentum: Weight of a batch in the running mean square. The first ``1 / momentum`` batches are averaged
            evenly, so that no start value remains. None averages all batches evenly.

    Use it where features should have mean square 1, whatever their sign.

    >>> L2BatchNorm(3)(torch.randn(8, 3)).shape
    torch.Size([8, 3])
    """

    mean_square: Tensor
    num_batches_tracked: Tensor
    __call__: Callable[..., Tensor]

    def __init__(self, num_features: int, *, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.num_features = checks.integer("L2BatchNorm", "num_features", num_features, 1)
        if momentum is not None and not 0 < checks.positive("L2BatchNorm", "momentum", momentum) <= 1:
            raise ValueError(checks.sentence("L2BatchNorm", "momentum must be in (0, 1] or None", momentum))
        self.momentum = momentum
        self.register_buffer("mean_square", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    @override
    def forward(self, h: Tensor) -> Tensor:  # (n, num_features, ...) -> the same
        """Rows divided by sigma, the batch's in training, the running one in evaluation."""
        if h.ndim < 2 or h.shape[1] != self.num_features:
            need = f"the input must have shape (n, {self.num_features}, ...)"
            raise ValueError(checks.sentence("L2BatchNorm", need, tuple(h.shape)))
        if self.training:
            mean_square = h.square().mean([dim for dim in range(h.ndim) if dim != 1])
            with torch.no_grad():
                # The running mean square: an even mean of the first batches, then one that forgets.
                self.num_batches_tracked += 1
                weight = 1.0 / self.num_batches_tracked.to(self.mean_square.dtype)
                if self.momentum is not None:
                    weight = weight.clamp(min=self.momentum)
                self.mean_square += weight * (mean_square.to(self.mean_square.dtype) - self.mean_square)
        else:
            mean_square = self.mean_square.to(h.dtype)
        zero = mean_square <= 0
        inverse = torch.where(zero, torch.zeros_like(mean_square), torch.where(zero, 1.0, mean_square).rsqrt())
        return h * inverse.reshape(-1, *[1] * (h.ndim - 2))

    @override
    def extra_repr(self) -> str:
        return f"{self.num_features}, momentum={self.momentum}"


def _draw_uniform(k: int, a: int, b: int, *, fan: int, generator: torch.Generator | None) -> nn.Parameter:
    bound = 1 / math.sqrt(fan)
    return nn.Parameter((2 * torch.rand(k, a, b, generator=generator) - 1) * bound)
