"""The README's picture: four of Mercer's verbs on data that ships with scikit-learn. Run: python examples/picture.py"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits, make_moons
from torch import nn
from torch.nn import functional as F

from mercer.features import Nystrom
from mercer.figures.narrow import write_svg
from mercer.figures.theme import LIGHT, canvas, png
from mercer.kernels import RBF, ReLUGram
from mercer.nn import KernelClassifier
from mercer.optim import FunctionSpaceSGD
from mercer.spectral import analyze

OUT = Path(__file__).parent.parent / "docs" / "img" / "mercer.svg"


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def read(ax) -> None:
    """How soon are the labels found among the eigenvectors of H?"""
    x, y = digits()
    odd = y[:1000] % 2
    x = x[:1000].double()
    spectrum = analyze(ReLUGram(), F.normalize(x, dim=1), odd, k=100)
    kernel = analyze(ReLUGram(RBF.from_data(x)), x, odd, k=100)
    shuffled = spectrum.shuffled(torch.Generator().manual_seed(0))
    for name, s in {"Gaussian kernel": kernel, "raw digits": spectrum, "shuffled labels": shuffled}.items():
        ax.plot(range(1, 101), s.projections.cumsum(0), label=name)
    ax.set(title="Read: do the labels suit the representation?", xlabel="first i eigenvectors")
    ax.set(ylabel="share of odd / even", ylim=(0, 1))


def classify(ax) -> None:
    """One layer whose decision regions bend."""
    torch.manual_seed(0)
    points, labels = make_moons(400, noise=0.12, random_state=0)
    x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)

    def lift(z: torch.Tensor) -> torch.Tensor:
        return F.pad(z - x.mean(0), (0, 1), value=0.7)  # the plane, wrapped on a sphere

    head = KernelClassifier(3, 2, prototypes=4, bias=True).init_from(lift(x), y)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        F.cross_entropy(head(lift(x)), y).backward()
        optimizer.step()
    u, v = torch.meshgrid(torch.linspace(-1.6, 2.6, 160), torch.linspace(-1.1, 1.6, 120), indexing="xy")
    with torch.no_grad():
        p = head(lift(torch.stack((u.flatten(), v.flatten()), 1))).softmax(1)[:, 1].reshape(u.shape)
    ax.contour(u, v, p, levels=[0.5], colors=[LIGHT.series[2]], linewidths=2)
    for label in (0, 1):
        ax.scatter(*points[labels == label].T, s=7, color=LIGHT.series[label])
    ax.set(title="Classify: one layer, four prototypes a class", xticks=[], yticks=[])


def decompose(ax) -> None:
    """Eigenfunctions of a kernel on the data's own density."""
    x = torch.randn(800, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi = Nystrom(RBF(2.0), 12, selection="kmeans", generator=torch.Generator().manual_seed(0)).fit(x)
    grid = torch.linspace(-2.5, 2.5, 200, dtype=torch.float64)[:, None]
    psi = phi.eigenfunctions(grid)[:, :4]
    for j in range(4):
        ax.plot(grid[:, 0], psi[:, j] * psi[-1, j].sign(), label=f"$\\mu$ = {float(phi.eigenvalues[j]):.2f}")
    ax.set(title="Decompose: eigenfunctions of a kernel", xlabel="x")


def train(ax) -> None:
    """The same network, the same batches, three optimizers."""
    x, y = digits()

    def run(make) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
        optimizer = make(net)
        losses = []
        for epoch in range(4):
            for rows in torch.randperm(1400, generator=torch.Generator().manual_seed(epoch)).split(64):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
        smooth = torch.tensor(losses).unfold(0, 5, 1).mean(1)
        return smooth.tolist()

    runs = {
        "function-space SGD": lambda net: FunctionSpaceSGD(net.parameters(), 0.3, model=net),
        "Adam": lambda net: torch.optim.Adam(net.parameters(), 3e-3),
        "SGD, momentum": lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
    }
    for name, make in runs.items():
        losses = run(make)
        ax.plot([i / (1400 / 64) for i in range(len(losses))], losses, label=name)
    ax.set(title="Train: with a kernel's curvature (digits)", xlabel="epoch", ylabel="training loss", yscale="log")


def main() -> None:
    torch.set_num_threads(1)
    figure, axes = canvas(2, 2, width=9.6, height=6.6)
    for ax, panel in zip(axes, (read, classify, decompose, train), strict=True):
        panel(ax)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".png").write_bytes(png(figure)) if len(sys.argv) > 1 else None
    write_svg(figure, out)
    print(out)


if __name__ == "__main__":
    main()
