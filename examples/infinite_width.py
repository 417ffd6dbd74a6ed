"""Regression by networks of infinite width: posterior means and bands of NNGP and NTK.

Run: python examples/infinite_width.py [OUT.svg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from mercer import figures
from mercer.kernels import NNGP, NTK, Kernel

OUT = Path(__file__).parent.parent / "docs" / "img" / "gallery" / "infinite_width.svg"
NOISE = 1e-3


def posterior(kernel: Kernel, x: torch.Tensor, y: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the Gaussian process after seeing (x, y)."""
    factor = torch.linalg.cholesky(kernel(x) + NOISE * torch.eye(len(x), dtype=x.dtype))
    cross = kernel(new, x)
    mean = cross @ torch.cholesky_solve(y[:, None], factor)[:, 0]
    explained = (cross.mT * torch.cholesky_solve(cross.mT, factor)).sum(0)
    return mean, (kernel.diag(new) - explained).clamp(min=0).sqrt()


def main() -> None:
    x = torch.tensor([-2.0, -1.6, -1.1, -0.4, 0.1, 1.2, 1.5, 1.9], dtype=torch.float64)[:, None]
    y = (2 * x[:, 0]).sin()
    new = torch.linspace(-3, 3, 120, dtype=torch.float64)[:, None]
    cases = {
        "NNGP, one hidden layer": NNGP(depth=1, bias_var=0.3),
        "NNGP, five hidden layers": NNGP(depth=5, bias_var=0.3),
        "NTK, one hidden layer": NTK(depth=1, bias_var=0.3),
        "NTK, five hidden layers": NTK(depth=5, bias_var=0.3),
    }
    figure, axes = figures.canvas(2, 2, width=8.4, height=5.2)
    for ax, (name, kernel) in zip(axes, cases.items(), strict=True):
        mean, deviation = posterior(kernel, x, y, new)
        ax.fill_between(new[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.2, linewidth=0)
        ax.plot(new[:, 0], mean)
        ax.plot(new[:, 0], (2 * new[:, 0]).sin(), "--", linewidth=1)
        ax.plot(x[:, 0], y, "o", markersize=4, color=figures.LIGHT.ink)
        ax.set(title=name, ylim=(-4, 4))
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    figures.write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
