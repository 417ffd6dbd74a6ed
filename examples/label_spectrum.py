"""Where the labels lie among the eigenvectors, and how fast gradient descent will find them.

Run: python examples/label_spectrum.py [OUT.svg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from mercer.figures.narrow import write_svg
from mercer.figures.theme import LIGHT, canvas
from mercer.kernels import RBF, ReLUGram
from mercer.spectral.comparison import spectra

OUT = Path(__file__).parent.parent / "docs" / "img" / "gallery" / "label_spectrum.svg"


def main() -> None:
    X, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(X[:600]), torch.tensor(labels[:600])
    found = spectra({"pixels": ReLUGram(), "Gaussian kernel": ReLUGram(RBF.from_data(x))}, x, y, k=60)
    found["pixels, shuffled labels"] = found["pixels"].shuffled(torch.Generator().manual_seed(0))
    figure, (left, right) = canvas(1, 2, width=8.6, height=3.4)
    for name, spectrum in found.items():
        left.plot(range(1, 61), spectrum.projections.cumsum(0), label=name)
        curve = spectrum.convergence(lr=0.5 * spectrum.largest_stable_lr, steps=200)
        right.plot(curve / curve[0], label=name)
    left.set(title="share of the labels in the first i eigenvectors", xlabel="i", ylim=(0, 1))
    right.set(title="predicted distance to the labels", xlabel="step of gradient descent", yscale="log")
    left.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
