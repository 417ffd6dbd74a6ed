"""Every public kernel: a new one joins the whole contract by one line here."""

import torch
from torch import nn

from mercer.kernels import (
    NNGP,
    NTK,
    RBF,
    ArcCosine,
    Constant,
    ConvNNGP,
    ConvNTK,
    Cosine,
    FunctionKernel,
    Laplacian,
    Linear,
    Matern,
    Periodic,
    Polynomial,
    Precomputed,
    RadialSeries,
    RationalQuadratic,
    ReLUGram,
    infinite_width,
)

N, D = 7, 3


def squared_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (1 + x @ y.mT) ** 2


def random_gram() -> torch.Tensor:
    root = torch.randn(N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return root @ root.mT


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def wide_network() -> nn.Module:
    block = Residual(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
    return nn.Sequential(nn.Linear(D, 8), block, nn.Tanh(), nn.Linear(8, 1))


def wide_pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1)
    )


CASES = {
    "rbf": lambda: RBF(0.7),
    "rbf_ard": lambda: RBF(torch.tensor([0.3, 0.7, 1.1])),
    "rbf_learned": lambda: RBF(0.7, learnable=True),
    "laplacian": lambda: Laplacian(0.6),
    "laplacian_ard": lambda: Laplacian([0.3, 0.7, 1.1], learnable=True),
    "matern_half": lambda: Matern(0.5, 1.3),
    "matern_three_halves": lambda: Matern(1.5, 0.8),
    "matern_five_halves": lambda: Matern(2.5, 0.8, learnable=True),
    "matern_ard": lambda: Matern(1.5, torch.tensor([0.5, 0.9, 1.4])),
    "rational_quadratic": lambda: RationalQuadratic(0.8, 1.2, learnable=True),
    "rational_quadratic_ard": lambda: RationalQuadratic(2.0, [0.5, 0.9, 1.4]),
    "periodic": lambda: Periodic(3.0, 0.9),
    "periodic_ard": lambda: Periodic(3.0, [0.5, 0.9, 1.4], learnable=True),
    "constant": lambda: Constant(0.7, learnable=True),
    "linear": lambda: Linear(),
    "polynomial": lambda: Polynomial(3, 0.5, 1.0),
    "polynomial_learned": lambda: Polynomial(2, 0.5, 1.5, learnable=True),
    "cosine": lambda: Cosine(),
    "arc_cosine_0": lambda: ArcCosine(0),
    "arc_cosine_1": lambda: ArcCosine(1),
    "arc_cosine_2": lambda: ArcCosine(2),
    "precomputed": lambda: Precomputed(random_gram()),
    "function": lambda: FunctionKernel(squared_product),
    "relu_gram": lambda: ReLUGram(),
    "relu_gram_of_rbf": lambda: ReLUGram(RBF(0.7)),
    "nngp_relu": lambda: NNGP(2, bias_var=0.1),
    "nngp_erf": lambda: NNGP(3, "erf", 1.5, 0.2),
    "ntk_relu": lambda: NTK(2),
    "infinite_width": lambda: infinite_width(wide_network(), example=torch.ones(1, D)),
    "ntk_erf": lambda: NTK(1, "erf", 1.5, 0.2),
    "radial_series": lambda: RadialSeries(),
    "radial_series_gegenbauer": lambda: RadialSeries(6, basis="gegenbauer", positivity="softplus", dim=D),
    "radial_series_limit": lambda: RadialSeries(4, positivity="softmax", indicators="limit"),
    "sum": lambda: RBF() + Linear(),
    "product": lambda: RBF(0.5) * Polynomial(2),
    "shifted": lambda: RBF(0.4) + 1.0,
    "scaled": lambda: 2.0 * RBF(0.4),
    "power": lambda: Cosine() ** 3,
    "normalized": lambda: Polynomial(2).normalized(),
}

PICTURES = {
    "conv_nngp": lambda: ConvNNGP(2, bias_var=0.1),
    "conv_nngp_mean": lambda: ConvNNGP(1, "erf", 1.5, 0.1, readout="mean"),
    "conv_ntk": lambda: ConvNTK(2),
    "infinite_width_pictures": lambda: infinite_width(wide_pictures(), kind="nngp", example=torch.ones(1, 1, 2, 2)),
    "conv_ntk_mean": lambda: ConvNTK(1, "erf", 1.5, 0.1, kernel_size=1, readout="mean"),
}
