"""The first eigenfunctions of a kernel on two moons: what spectral clustering sees.

Run: python examples/eigenfunctions.py [OUT.svg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import make_moons

from mercer.features import NeuralEigenfunctions
from mercer.figures.narrow import write_svg
from mercer.figures.theme import LIGHT, canvas
from mercer.kernels import RBF

OUT = Path(__file__).parent.parent / "docs" / "img" / "gallery" / "eigenfunctions.svg"


def main() -> None:
    points, _ = make_moons(400, noise=0.08, random_state=0)
    x = torch.tensor(points)
    f = NeuralEigenfunctions(RBF(4.0), 6, generator=torch.Generator().manual_seed(0)).fit(x)
    u, v = torch.meshgrid(torch.linspace(-1.5, 2.5, 40), torch.linspace(-1.0, 1.5, 26), indexing="xy")
    values = f.eigenfunctions(torch.stack((u.flatten(), v.flatten()), 1).double())
    figure, axes = canvas(2, 3, width=8.6, height=4.4)
    for j, ax in enumerate(axes):
        surface = values[:, j].reshape(u.shape)
        surface = surface * surface.flatten()[surface.abs().argmax()].sign()  # an eigenfunction has no sign of its own
        ax.contourf(u, v, surface, levels=7, cmap="RdBu_r", vmin=-2.5, vmax=2.5, alpha=0.75)
        ax.plot(*points[::5].T, ".", markersize=2, color=LIGHT.ink)
        ax.set(title=f"eigenvalue {float(f.eigenvalues[j]):.3f}", xticks=[], yticks=[])
        ax.grid(False)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
