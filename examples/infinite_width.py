"""Regression by networks of infinite width: posterior means and bands of plain networks and of torch modules.

Run: python examples/infinite_width.py [OUT.svg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from mercer.figures.narrow import write_svg
from mercer.figures.theme import LIGHT, canvas
from mercer.kernels import NNGP, NTK, infinite_width
from mercer.machines import KernelRidge

OUT = Path(__file__).parent.parent / "docs" / "img" / "gallery" / "infinite_width.svg"
NOISE = 1e-3


class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Sine(nn.Module):
    """The sine as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


def main() -> None:
    torch.manual_seed(0)
    x = torch.tensor([-2.0, -1.6, -1.1, -0.4, 0.1, 1.2, 1.5, 1.9], dtype=torch.float64)[:, None]
    y = (2 * x[:, 0]).sin()
    new = torch.linspace(-3, 3, 120, dtype=torch.float64)[:, None]
    block = Residual(nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64))
    models = {
        "tanh: NNGP": nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)),
        "residual, LayerNorm, GELU: NNGP": nn.Sequential(nn.Linear(1, 64), block, nn.GELU(), nn.Linear(64, 1)),
        "sine: NNGP": nn.Sequential(nn.Linear(1, 64), Sine(), nn.Linear(64, 1)),
    }
    kernels = {
        "ReLU, one hidden layer: NNGP": NNGP(depth=1, bias_var=0.3),
        "ReLU, five hidden layers: NNGP": NNGP(depth=5, bias_var=0.3),
        "ReLU, five hidden layers: NTK": NTK(depth=5, bias_var=0.3),
    } | {name: infinite_width(model, kind="nngp", weight_var=3.0, bias_var=0.5) for name, model in models.items()}
    figure, axes = canvas(3, 2, width=8.4, height=7.6)
    for ax, (name, kernel) in zip(axes, kernels.items(), strict=True):
        machine = KernelRidge(kernel, penalty=NOISE, solver="exact").fit(x, y)
        mean, deviation = machine.predict(new), (machine.variance(new) * kernel.diag(new)).sqrt()
        ax.fill_between(new[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.2, linewidth=0)
        ax.plot(new[:, 0], mean)
        ax.plot(new[:, 0], (2 * new[:, 0]).sin(), "--", linewidth=1)
        ax.plot(x[:, 0], y, "o", markersize=4, color=LIGHT.ink)
        ax.set(title=name, ylim=(-4, 4))
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
