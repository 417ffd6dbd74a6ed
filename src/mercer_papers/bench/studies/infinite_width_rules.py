"""Finite networks approach their infinite-width kernels: one small network for every rule, by width.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.infinite_width_rules [NAME ...]

For each network of `NETWORKS` and each of the widths 256 to 4,096: draws of the network's weights, its empirical NNGP
and NTK on three rows, and the root mean square of their relative distance to ``infinite_width(model)``. A line holds
the errors of all widths and the slope of their logarithm over the logarithm of the width, where 1 / sqrt(width) is
-0.5. Lines are printed as JSON and appended to src/mercer_papers/bench/results/infinite_width.jsonl.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mercer.kernels import infinite_width

WIDTHS = (256, 512, 1024, 2048, 4096)
WEIGHTS = 2**27  # drawn at each width, about: wide layers are drawn less often
ROWS = 3


class Call(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """x + factor body(x), a body that begins with norm or activation and ends in a layer with weights."""

    def __init__(self, *layers: nn.Module, factor: float = 0.7) -> None:
        super().__init__()
        self.body, self.factor = nn.Sequential(*layers), factor

    def forward(self, x: Tensor) -> Tensor:
        return x + self.factor * self.body(x)


class Branches(nn.Module):
    """relu(a(x) - b(x) / 2) of two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(5, width), nn.Linear(5, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last((self.a(x) - self.b(x) / 2).relu())
        return out


class Network(NamedTuple):
    """A network of any width, and the rows that it takes."""

    make: Callable[[int], nn.Module]
    rows: str


def dense(*middle: Callable[[int], nn.Module]) -> Network:
    """Linear, the layers in between, linear."""
    return Network(
        lambda w: nn.Sequential(nn.Linear(5, w), *[layer(w) for layer in middle], nn.Linear(w, 1)), "vectors"
    )


def activation(layer: Callable[[], nn.Module]) -> Network:
    """Linear, activation, linear."""
    return dense(lambda w: layer())


def pictures(first: dict[str, Any], middle: Callable[[int], list[nn.Module]], positions: int) -> Network:
    """A convolution, the layers in between, a linear layer on all that is left."""

    def make(w: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, w, **first), *middle(w), nn.Flatten(), nn.Linear(w * positions, 1))

    return Network(make, "pictures")


def sequences(middle: Callable[[int], list[nn.Module]], positions: int) -> Network:
    """A convolution of sequences, the layers in between, a linear layer on all that is left."""

    def make(w: int) -> nn.Module:
        return nn.Sequential(nn.Conv1d(3, w, 3, padding=1), *middle(w), nn.Flatten(), nn.Linear(w * positions, 1))

    return Network(make, "sequences")


def tokens(*layers: Callable[[int], nn.Module]) -> Network:
    """An embedding, and what reads it."""
    return Network(lambda w: nn.Sequential(*[layer(w) for layer in layers], nn.Linear(w, 1)), "tokens")


def read_shapes(w: int) -> list[nn.Module]:
    """Pixels as tokens by permute, reshape, swapaxes, view and squeeze, and a linear layer on each token."""
    return [
        nn.ReLU(),
        Call(lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, x.shape[1])),
        nn.Linear(w, w),
        nn.ReLU(),
        Call(lambda x: x.swapaxes(1, 2).mean(2, keepdim=True).squeeze(2)),
        Call(lambda x: x.view(x.shape[0], -1)),
    ]


SAME = {"kernel_size": 3, "padding": 1}
NETWORKS = {
    "relu": activation(nn.ReLU),
    "leaky relu": activation(lambda: nn.LeakyReLU(0.3)),
    "prelu": activation(nn.PReLU),
    "abs": activation(lambda: Call(torch.abs)),
    "erf": activation(lambda: Call(torch.erf)),
    "gelu": activation(nn.GELU),
    "gelu, tanh": activation(lambda: nn.GELU("tanh")),
    "sin": activation(lambda: Call(torch.sin)),
    "cos": activation(lambda: Call(torch.cos)),
    "tanh": activation(nn.Tanh),
    "sigmoid": activation(nn.Sigmoid),
    "silu": activation(nn.SiLU),
    "softplus": activation(lambda: nn.Softplus(2.0)),
    "mish": activation(nn.Mish),
    "two hidden layers": dense(lambda w: nn.ReLU(), lambda w: nn.Linear(w, w), lambda w: nn.GELU()),
    "residual sum": dense(lambda w: Residual(nn.ReLU(), nn.Linear(w, w)), lambda w: nn.ReLU()),
    "residual, layer norm": dense(lambda w: Residual(nn.LayerNorm(w), nn.GELU(), nn.Linear(w, w)), lambda w: nn.Tanh()),
    "weighted difference": Network(Branches, "vectors"),
    "layer norm": dense(lambda w: nn.ReLU(), nn.LayerNorm),
    "rms norm": dense(lambda w: nn.ReLU(), nn.RMSNorm),
    "batch norm and dropout, at evaluation": dense(nn.BatchNorm1d, lambda w: nn.ReLU(), lambda w: nn.Dropout(0.5)),
    "convolution": pictures(SAME, lambda w: [nn.ReLU()], 16),
    "strides and dilation": pictures(
        {"kernel_size": (2, 3), "stride": (1, 2), "padding": 2, "dilation": (2, 1)}, lambda w: [nn.GELU()], 18
    ),
    "two convolutions": pictures(SAME, lambda w: [nn.ReLU(), nn.Conv2d(w, w, (1, 2), stride=2), nn.ReLU()], 4),
    "depthwise convolution": pictures(
        SAME, lambda w: [nn.ReLU(), nn.Conv2d(w, w, 3, padding=1, groups=w), nn.Conv2d(w, w, 1), nn.ReLU()], 16
    ),
    "groups": pictures(SAME, lambda w: [nn.ReLU(), nn.Conv2d(w, w, 1, groups=2), nn.ReLU()], 16),
    "padding by reflection": pictures(
        SAME, lambda w: [nn.ReLU(), nn.Conv2d(w, w, 3, padding=1, padding_mode="reflect", groups=w)], 16
    ),
    "group norm": pictures(SAME, lambda w: [nn.GroupNorm(1, w), nn.ReLU()], 16),
    "average pooling": pictures(SAME, lambda w: [nn.ReLU(), nn.AvgPool2d(2, 2, 1, count_include_pad=False)], 9),
    "global average pooling": pictures(SAME, lambda w: [nn.ReLU(), nn.AdaptiveAvgPool2d(1)], 1),
    "sum over pixels": pictures(SAME, lambda w: [nn.ReLU(), Call(lambda x: x.sum((2, 3)) / 16)], 1),
    "mean over tokens, shapes": pictures(SAME, read_shapes, 1),
    "convolution of sequences": sequences(lambda w: [nn.ReLU(), nn.Conv1d(w, w, 2, stride=2), nn.ReLU()], 3),
    "pooled sequences": sequences(lambda w: [nn.ReLU(), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(1)], 1),
    "linear layer of tokens": sequences(
        lambda w: [nn.ReLU(), Call(lambda x: x.transpose(1, 2)), nn.Linear(w, w), nn.ReLU(), Call(lambda x: x.mean(1))],
        1,
    ),
    "embedding": tokens(lambda w: nn.Embedding(7, w), lambda w: nn.ReLU(), lambda w: Call(lambda x: x.mean(1))),
    "embedding bag": tokens(lambda w: nn.EmbeddingBag(7, w, mode="sum"), lambda w: nn.ReLU()),
}


def draw_rows(kind: str, n: int = ROWS) -> Tensor:
    """Rows of one of the four kinds."""
    generator = torch.Generator().manual_seed(1)
    if kind == "tokens":
        return torch.randint(7, (n, 4), generator=generator)
    shape = {"vectors": (5,), "pictures": (2, 4, 4), "sequences": (3, 6)}[kind]
    return torch.randn(n, *shape, generator=generator)


def draw_weights(model: nn.Module, layers: dict[str, tuple[float, float | None]]) -> dict[str, float]:
    """Draw the weights anew, Gaussian and of the variances that the limit has; these variances by parameter.

    In the NTK parametrization a weight is its deviation times a standard normal number, so that each squared derivative
    is multiplied by the weight's variance.
    """
    variances: dict[str, float] = {}
    for name, (weight_var, bias_var) in layers.items():
        layer: Any = model.get_submodule(name)
        fan_in = 1 if isinstance(layer, nn.Embedding | nn.EmbeddingBag) else layer.weight[0].numel()
        variances[f"{name}.weight"] = weight_var / fan_in
        nn.init.normal_(layer.weight, std=math.sqrt(weight_var / fan_in))
        if bias_var is not None:
            variances[f"{name}.bias"] = bias_var
            nn.init.normal_(layer.bias, std=math.sqrt(bias_var))
    return variances


def empirical_ntk(model: nn.Module, output: Tensor, variances: dict[str, float]) -> Tensor:  # (n, c) -> (n, n)
    """The tangent kernel of the first output, in the NTK parametrization."""
    parameters = {name: p for name, p in model.named_parameters() if name in variances}
    gradients = [torch.autograd.grad(row[0], list(parameters.values()), retain_graph=True) for row in output]
    ntk = output.new_zeros(len(output), len(output))
    for place, name in enumerate(parameters):
        rows = torch.stack([gradient[place].flatten() for gradient in gradients])
        ntk += variances[name] * rows @ rows.mT
    return ntk.detach()


def measure(name: str, width: int, draws: int) -> list[float]:
    """Root mean square relative errors of NNGP and NTK at one width; weights by torch's global generator."""
    network = NETWORKS[name]
    x = draw_rows(network.rows)
    model = network.make(width).eval()
    kernel = infinite_width(model, example=x[:1], weight_var=1.6, bias_var=0.1)
    limits = kernel.both(x.double() if x.is_floating_point() else x)
    last_name, last = list(model.named_modules())[-1]
    weight_var, bias_var = kernel.layers[last_name]
    squares = torch.zeros(2, dtype=torch.float64)
    for _ in range(draws):
        # fresh weights; what the last layer reads is caught on its way
        variances = draw_weights(model, kernel.layers)
        hidden: list[Tensor] = []
        hook = last.register_forward_pre_hook(lambda _, inputs, hidden=hidden: hidden.append(inputs[0].detach()))
        output = model(x)
        hook.remove()
        # the NNGP given the hidden layers: the covariance over draws of the last layer alone
        nngp = weight_var * hidden[0] @ hidden[0].mT / hidden[0].shape[1] + (bias_var or 0.0)
        ntk = empirical_ntk(model, output, variances)
        for place, (gram, exact) in enumerate(zip((nngp, ntk), limits, strict=True)):
            squares[place] += float(((gram - exact).norm() / exact.norm()) ** 2)
    return (squares / draws).sqrt().tolist()


def main() -> None:
    """Write one line for each network."""
    from mercer_papers.bench.studies.infinite_width import write

    torch.set_num_threads(1)
    for name in sys.argv[1:] or NETWORKS:
        start, errors, draws = time.process_time(), [], []
        for width in WIDTHS:
            torch.manual_seed(width)
            size = sum(p.numel() for p in NETWORKS[name].make(width).parameters())
            draws.append(min(32, max(2, WEIGHTS // size)))
            errors.append(measure(name, width, draws[-1]))
        slopes = np.polyfit(np.log(WIDTHS), np.log(np.array(errors)), 1)[0]  # of both columns
        write({"what": "rule", "name": name, "widths": list(WIDTHS), "draws": draws,
               "nngp_errors": [round(e[0], 5) for e in errors], "ntk_errors": [round(e[1], 5) for e in errors],
               "nngp_slope": round(float(slopes[0]), 2), "ntk_slope": round(float(slopes[1]), 2),
               "cpu_s": round(time.process_time() - start, 1)})  # fmt: skip


if __name__ == "__main__":
    main()
