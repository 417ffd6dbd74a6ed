"""Two spirals go through a kernel network, layer by layer, and come apart; no gradient is taken.

Run: python examples/spiral_layers.py [OUT.svg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from mercer.figures.narrow import write_svg
from mercer.figures.theme import canvas
from mercer.layerwise import KernelNetworkClassifier
from mercer_papers import data

OUT = Path(__file__).parent.parent / "docs" / "img" / "gallery" / "spiral_layers.svg"


def flat(z: torch.Tensor) -> torch.Tensor:  # (n, d) -> (n, 2)
    """The two directions of largest spread."""
    z = z - z.mean(0)
    return z @ torch.linalg.svd(z, full_matrices=False).Vh[:2].mT


def main() -> None:
    spiral = data.spiral(classes=2, turns=1.0)
    x, y = spiral.x_train.double(), spiral.y_train
    model = KernelNetworkClassifier(solver="spectral", random_state=0).fit(x, y)
    seen, z = {"the rows": flat(x)}, x
    *layers, _ = model.network_.layers  # the last is the read-out
    for layer in layers:
        z = layer(z)
        if type(layer).__name__ == "SpectralLayer":
            seen[f"after layer {len(seen)}: HSIC {model.history_[len(seen) - 1]['hsic']:.2f}"] = flat(z)
    chosen = list(seen.items())[:3]
    figure, axes = canvas(1, len(chosen), width=8.6, height=3.2)
    for ax, (name, rows) in zip(axes, chosen, strict=True):
        for label in y.unique():
            ax.plot(*rows[y == label].mT, ".", markersize=3)
        ax.set(title=name, xticks=[], yticks=[])
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
