"""The NTK matrix of a trained network on new rows: exact, by eigenfunctions, by as many random features."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.features import NeuralEigenfunctions
from mercer.figures.theme import LIGHT, Figure, canvas
from mercer.kernels import EmpiricalNTK

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import load, normalised, published_resnet20
from ..results import Result
from .algorithm1 import CONVNET, algorithm_1, picture_network
from .algorithm1 import RESNET as RESNET_FUNCTIONS
from .measures import best_rank, relative_error, rng

ALGORITHM_1 = "Algorithm 1, k = 10"
OURS, RANDOM, EXACT, LOW = "Mercer, k = 10", "Random features, S = 10", "Exact", "Low rank by VJP and JVP, S = 10"
K = 10
SIZES = {"smoke": (40, 20, 5, 10), "small": (300, 100, 150, 400), "paper": (5000, 500, 2000, 5000)}
RESNET = "CIFAR-10, ResNet-20"  # the slide's network, whose NTK is only sampled: rows, test rows, directions
RESNET_SIZES = {"small": (64, 40, 64), "paper": (5000, 500, 4000)}
DIRECTIONS = {"smoke": 8, "small": 500, "paper": 4000}  # of the sampled NTK that Algorithm 1 decomposes
STEPS = {"smoke": 3, "small": 200, "paper": 8000}  # the authors' 200 epochs of 10,000 rows in batches of 256


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Digits, which need no download, and CIFAR-10; two classes of each, by a small network and by ResNet-20."""
    train, test, fit, steps = SIZES[scale]
    alone = {"directions": DIRECTIONS[scale], "steps": STEPS[scale], "functions": CONVNET}
    cells = []
    for column, data in (("digits", []), ("CIFAR-10", ["cifar10"])):
        settings = {"rows": train, "test_rows": test, "network steps": fit, "steps": steps, "k": K, "set": column}
        seeds = 3
        if scale == "smoke" or (scale == "small" and not data):
            seeds = 1
        for row in (OURS, RANDOM, LOW, EXACT, ALGORITHM_1):
            asked = {**settings, "method": row}
            if row == ALGORITHM_1:
                asked |= alone
            cells.append(Cell(entry.id, row, column, asked, data, seeds))
    if scale in RESNET_SIZES:
        train, test, directions = RESNET_SIZES[scale]
        settings = {"set": RESNET, "rows": train, "test_rows": test, "directions": directions, "steps": steps, "k": K}
        if scale == "paper":
            alone["functions"] = RESNET_FUNCTIONS
        for row in (OURS, RANDOM, EXACT, ALGORITHM_1):
            asked = {**settings, "method": row}
            if row == ALGORITHM_1:
                asked |= alone
            cells.append(Cell(entry.id, row, RESNET, asked, ["cifar10"], 3))
    return cells


def run(cell: Cell) -> Outcome:
    """Relative error of the NTK matrix of test rows (for *Exact*, of its best approximation of rank 10)."""
    settings = cell.settings
    name = "digits" if settings["set"] == "digits" else "cifar10"
    # two classes; the test rows sorted by class, so that the matrices show blocks
    data = load(name, rows=(settings["rows"], settings["test_rows"]), classes=(0, 1), seed=cell.seed)
    x, test = data.x_train, data.x_test[data.y_test.argsort(stable=True)]
    if settings["set"] == RESNET:
        network: nn.Module = published_resnet20().eval()
        x, test = (normalised(part) for part in (x, test))
    else:
        network = _train(x, data.y_train, settings["network steps"], cell)
    exact = EmpiricalNTK(network, outputs=0)(test).detach()
    # the matrix of the test rows by the cell's method; sampled kernels are by finite differences or Monte Carlo, as the
    # slide has them
    method, generator, note = settings["method"], rng(cell.seed + 1), ""
    if method == EXACT:
        matrix, note = exact, "error of the best approximation of rank 10"
    elif method == ALGORITHM_1:
        kernel = EmpiricalNTK(
            network, outputs=0, method="finite_difference", samples=settings["directions"],
            generator=rng(cell.seed + 2),
        )  # fmt: skip
        make = partial(picture_network, settings["functions"], x.shape[1], 1)
        matrix = algorithm_1(kernel, K, make, steps=settings["steps"], seed=cell.seed).fit(x).kernel(test).detach()
    elif method == OURS:
        kernel = EmpiricalNTK(network, outputs=0)
        if "directions" in settings:
            samples = settings["directions"]
            kernel = EmpiricalNTK(network, outputs=0, method="jvp", samples=samples, generator=rng(cell.seed + 2))
        f = NeuralEigenfunctions(kernel, K, steps=settings["steps"], generator=generator)
        matrix = f.fit(x).kernel(test).detach()
    else:
        by = "finite_difference" if method == RANDOM else "low_rank"
        matrix = EmpiricalNTK(network, outputs=0, method=by, samples=K, generator=generator).fit(x)(test).detach()
    error = relative_error(matrix, exact)
    if method == EXACT:
        error = best_rank(exact, K)
    step = -(-len(matrix) // 60)  # at most 60 rows are drawn
    thin = (matrix / exact.diagonal().mean())[::step, ::step].double().tolist()
    return Outcome(value=error, arrays={"matrix": thin}, note=note)


def _train(x: Tensor, y: Tensor, steps: int, cell: Cell) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        network = nn.Sequential(
            nn.Conv2d(x.shape[1], 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 1),
        )  # fmt: skip
    network.to(cell.device)
    x, y = x.to(cell.device), y.to(cell.device).float()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    generator = rng(cell.seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,), generator=generator)
        loss = F.binary_cross_entropy_with_logits(network(x[rows])[:, 0], y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.cpu()


def draw(results: list[Result]) -> Figure:
    """The matrices side by side, rows sorted by class, one colour scale for each data set."""
    columns = list(dict.fromkeys(result.column for result in results))
    rows = [row for row in (EXACT, ALGORITHM_1, OURS, RANDOM, LOW) if any(result.row == row for result in results)]
    figure, axes = canvas(len(columns), len(rows), width=2.9 * len(rows), height=3.0 * len(columns))
    flat = list(axes)
    for i, column in enumerate(columns):
        results_of_set = {r.row: r for r in results if r.column == column and r.seed == 0}
        largest = None  # of the colour scale
        if EXACT in results_of_set:
            largest = max(max(map(max, results_of_set[EXACT].arrays["matrix"])), 1e-12)
        for j, row in enumerate(rows):
            ax = flat[i * len(rows) + j]
            if row not in results_of_set:
                continue
            ax.imshow(results_of_set[row].arrays["matrix"], cmap=LIGHT.sequential, vmin=0, vmax=largest)
            title = f"{column}: {row}"
            if row != EXACT:
                title += f"\nerror {results_of_set[row].value:.2f}"
            ax.set_title(title, fontsize=8)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.grid(False)
    return figure
