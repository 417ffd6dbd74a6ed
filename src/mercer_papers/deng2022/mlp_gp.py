"""Eigenfunctions of the kernel of wide networks (MLP-GP) in the plane: do the projections separate the classes?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mercer.features import NeuralEigenfunctions
from mercer.figures.theme import LIGHT, Figure, canvas
from mercer.kernels import NNGP, Kernel, MonteCarloNNGP

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .algorithm1 import algorithm_1, small_mlp
from .measures import SEEDS, best_rank, linear_accuracy, relative_error, rng

ROWS = {  # what is decomposed, and how
    "relu, analytic, landmarks": ("relu", False),
    "relu, sampled, Algorithm 1": ("relu", True),
    "relu, sampled, distilled": ("relu", True),
    "erf, analytic, landmarks": ("erf", False),
    "raw coordinates": ("", False),
}
SIZES = {"smoke": (60, 20, 20), "small": (512, 200, 600), "paper": (1000, 1000, 2000)}  # rows, networks, steps
ALGORITHM_1 = "Algorithm 1"
K = 3
DEPTH = 3


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Two kernels, analytic and sampled, on two sets of points."""
    sizes = dict(zip(("rows", "samples", "steps"), SIZES[scale], strict=True))
    cells = []
    for column in ("two moons", "circles"):
        for row, (activation, sampled) in ROWS.items():
            settings = {**sizes, "k": K, "set": column, "activation": activation, "sampled": sampled}
            if row.endswith(ALGORITHM_1):
                settings["method"] = ALGORITHM_1
            cells.append(Cell(entry.id, row, column, settings, seeds=SEEDS[scale]))
    return cells


def run(cell: Cell) -> Outcome:
    """Accuracy of logistic regression on the three leading functions; the kernel's error and the best of rank 3."""
    from sklearn.datasets import make_circles, make_moons

    # two classes in the plane
    half = cell.settings["rows"]
    if cell.settings["set"] == "circles":
        points, labels = make_circles(2 * half, noise=0.08, factor=0.5, random_state=cell.seed)
    else:
        points, labels = make_moons(2 * half, noise=0.1, random_state=cell.seed)
    x, y = torch.as_tensor(points).float().to(cell.device), torch.as_tensor(labels)
    train, test = (x[:half], y[:half]), (x[half:], y[half:])
    activation, sampled = cell.settings["activation"], cell.settings["sampled"]
    if not activation:
        return Outcome(
            value=linear_accuracy(lambda rows: rows, train, test), arrays=_split_by_class(x[half:], y[half:])
        )
    # the kernel, analytic or of random networks, and its leading functions
    kernel: Kernel = NNGP(DEPTH, activation, 2.0, 0.5)
    steps = None
    if sampled:
        kernel = MonteCarloNNGP(lambda: _network().to(x.device), cell.settings["samples"], generator=rng(cell.seed))
        steps = cell.settings["steps"]
    if "method" in cell.settings:  # the authors' batch is 128
        f = algorithm_1(kernel, K, lambda: small_mlp(2), steps=steps or 0, seed=cell.seed, batch_size=128)
    else:
        f = NeuralEigenfunctions(kernel, K, steps=steps, generator=rng(cell.seed))
    f.fit(train[0])
    gram = kernel(test[0]).detach()
    return Outcome(
        value=linear_accuracy(f.eigenfunctions, train, test),
        values={
            "kernel error on new rows": relative_error(f.kernel(test[0]).detach(), gram),
            "best of rank 3": best_rank(gram, K),
        },
        arrays=_split_by_class(f.eigenfunctions(test[0])[:, :2].detach(), y[half:]),
    )


def _network() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in [(2, 128), *[(128, 128)] * (DEPTH - 1), (128, 8)]:
        layer = nn.Linear(a, b)
        nn.init.normal_(layer.weight, std=(2.0 / a) ** 0.5)
        nn.init.normal_(layer.bias, std=0.5**0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _split_by_class(plane: Tensor, y: Tensor) -> dict[str, list[list[float]]]:
    plane, y = plane[:120].double().cpu(), y[:120]
    return {f"class {label}": plane[y == label].tolist() for label in (0, 1)}


def draw(results: list[Result]) -> Figure:
    """Test rows in the plane of the first two eigenfunctions (or as they are), by class."""
    columns = list(dict.fromkeys(result.column for result in results))
    rows = list(dict.fromkeys(result.row for result in results))
    figure, axes = canvas(len(rows), len(columns), width=3.8 * len(columns), height=2.6 * len(rows))
    flat = list(axes)
    for result in (r for r in results if r.seed == 0):
        ax = flat[rows.index(result.row) * len(columns) + columns.index(result.column)]
        for (name, points), colour in zip(sorted(result.arrays.items()), LIGHT.series, strict=False):
            ax.scatter([p[0] for p in points], [p[1] for p in points], s=6, color=colour, label=name)
        ax.set_title(f"{result.row}: {result.column}, {result.value:.1f} %", fontsize=9)
    return figure
