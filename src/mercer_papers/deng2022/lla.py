"""Linearized Laplace: log-loss, calibration and far rows, of a network on two moons and of the published ResNet-20."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import metrics
from mercer.bayes import KroneckerLaplace, LinearizedLaplace, TemperatureScaling
from mercer.figures.theme import LIGHT, Figure, canvas
from mercer.kernels import EmpiricalNTK

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import load, normalised, published_resnet20
from ..results import Result
from .algorithm1 import LENET, RESNET, LowRankLaplace, algorithm_1, picture_network, small_mlp
from .measures import SEEDS, rng, softmax

MAP, MERCER, BARE, EXACT, KFAC = "MAP", "Mercer, k = 20", "k = 20, no complement", "Exact", "KFAC"
TEMPERATURE = "Temperature scaling"  # the cheapest rival
BOTH = "Mercer, k = 20 and temperature"  # the class's default, which the slides do not have
LAST = "Mercer, last layer"
ALGORITHM_1 = "Algorithm 1, k = 20"  # the slide's form in the eigenfunctions that the slide's algorithm finds
NETWORK = "ResNet-20"
ROWS = (MAP, TEMPERATURE, ALGORITHM_1, MERCER, BOTH, BARE, EXACT, KFAC)
NETWORK_ROWS = {
    "small": (MAP, TEMPERATURE, ALGORITHM_1, LAST, MERCER, BARE),
    "paper": (MAP, TEMPERATURE, ALGORITHM_1, LAST, MERCER, BARE, KFAC),
}
# Algorithm 1 decomposes a sampled NTK of so many directions, in so many steps; the plane, then ResNet-20, where the
# authors took 200 epochs of 50,000 rows in batches of 256.
DIRECTIONS = {"smoke": (8, 0), "small": (500, 100), "paper": (4000, 4000)}
FUNCTION_STEPS = {"smoke": (3, 0), "small": (1000, 500), "paper": (2000, 39_000)}
FUNCTIONS = {"small": LENET, "paper": RESNET}
SIZES = {"smoke": (40, 20), "small": (300, 1000), "paper": (1000, 3000)}  # training rows, steps
NETWORK_SIZES = {"small": (200, 1500, 300), "paper": (50_000, 9000, 9000)}  # training rows, scored rows, strangers
_CHOOSE = 1000  # test rows that choose prior and temperature: ResNet-20 has seen the training part
REACH, SIDE = 5.0, 41

Rows = tuple[Tensor, Tensor]


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Eight ways to read one network in the plane; of ResNet-20 the seed draws the rows that choose and that score."""
    n, steps = SIZES[scale]
    cells = []
    for row in ROWS:
        settings: dict[str, Any] = {"rows": n, "steps": steps, "k": 20, "method": row}
        if row == ALGORITHM_1:
            settings |= {"directions": DIRECTIONS[scale][0], "function steps": FUNCTION_STEPS[scale][0]}
        cells.append(Cell(entry.id, row=row, settings=settings, seeds=SEEDS[scale]))
    if scale not in NETWORK_SIZES:
        return cells
    n, scored, strangers = NETWORK_SIZES[scale]
    for row in NETWORK_ROWS[scale]:
        settings = {"rows": n, "test_rows": scored, "strangers": strangers, "network": NETWORK, "k": 20, "method": row}
        if row == ALGORITHM_1:
            settings |= {"directions": DIRECTIONS[scale][1], "functions": FUNCTIONS[scale],
                         "function steps": FUNCTION_STEPS[scale][1]}  # fmt: skip
        data = ["cifar10", "cifar100_subset"]
        cells.append(Cell(entry.id, row=f"{NETWORK}, {row}", settings=settings, data=data, seeds=3))
    return cells


def run(cell: Cell) -> Outcome:
    """NLL and ECE on new rows, and AUROC of the confidence against rows far away; in the plane also its map."""
    if "network" in cell.settings:
        return _read_resnet(cell)
    return _read_moons(cell)


def _read_moons(cell: Cell) -> Outcome:
    from sklearn.datasets import make_moons

    n = cell.settings["rows"]
    points, labels = make_moons(2 * n + 200, noise=0.2, random_state=cell.seed)
    x, y = torch.as_tensor(points).float(), torch.as_tensor(labels)
    train, val, test = (x[:n], y[:n]), (x[n : 2 * n], y[n : 2 * n]), (x[2 * n :], y[2 * n :])
    # the network that all methods read
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        model = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
    model.to(cell.device)
    rows, truth = (part.to(cell.device) for part in train)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-4)
    for _ in range(cell.settings["steps"]):
        loss = F.cross_entropy(model(rows), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    proba = _fit(cell, model.cpu(), train, val)
    # its confidence on new points, on a circle far away, and over the plane
    familiar = proba(test[0])
    circle = 8 * F.normalize(torch.randn(200, 2, generator=rng(cell.seed)), dim=1)
    side = torch.linspace(-REACH, REACH, SIDE)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), 2).reshape(-1, 2)
    confidence = proba(grid).amax(1).reshape(SIDE, SIDE)
    return Outcome(
        values={
            "NLL": metrics.nll(familiar, test[1]),
            "ECE": metrics.ece(familiar, test[1]),
            "AUROC far away": metrics.auroc(-familiar.amax(1), -proba(circle).amax(1)),
        },
        arrays={"confidence": confidence.tolist(), "points": torch.cat((train[0], train[1][:, None]), 1)[:80].tolist()},
    )


def _read_resnet(cell: Cell) -> Outcome:
    s = cell.settings
    pictures = load("cifar10", rows=(s["rows"], 10_000))
    order = torch.randperm(len(pictures.x_test), generator=rng(cell.seed))[: _CHOOSE + s["test_rows"]]
    choosing, scored = order[:_CHOOSE], order[_CHOOSE:]
    x, test = (normalised(part).to(cell.device) for part in (pictures.x_train, pictures.x_test))
    val = (test[choosing], pictures.y_test[choosing].to(cell.device))
    strangers = normalised(load("cifar100_subset", rows=(1, s["strangers"])).x_test).to(cell.device)
    # its confidence on rows that are new, and on strangers
    proba = _fit(cell, published_resnet20().eval().to(cell.device), (x, pictures.y_train.to(cell.device)), val)
    familiar, unfamiliar = proba(test[scored]).cpu(), proba(strangers).cpu()
    truth = pictures.y_test[scored]
    return Outcome(
        values={
            "NLL": metrics.nll(familiar, truth),
            "ECE": metrics.ece(familiar, truth),
            "AUROC CIFAR-100": metrics.auroc(-familiar.amax(1), -unfamiliar.amax(1)),
        }
    )


def _fit(cell: Cell, model: nn.Module, train: Rows, val: Rows) -> Callable[[Tensor], Tensor]:
    """The class probabilities of new rows by the cell's method."""
    s, method, generator = cell.settings, cell.settings["method"], rng(cell.seed)
    pictures = "network" in s
    if method == MAP:
        return partial(softmax, model)
    if method == TEMPERATURE:
        return TemperatureScaling(model).fit(train, val).predict_proba
    if method == KFAC:
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):  # neither linear nor a convolution: its weights count as known
                layer.requires_grad_(False)
        return KroneckerLaplace(model, prior_precision="validation").fit(train, val).predict_proba
    if method == ALGORITHM_1:
        kernel = EmpiricalNTK(
            model, outputs="full", method="finite_difference", samples=s["directions"], generator=generator
        )
        make, outputs = partial(small_mlp, 2, 2), 2
        if pictures:
            make, outputs = partial(picture_network, s["functions"], 3, 10), 10
        psi = algorithm_1(kernel, s["k"], make, steps=s["function steps"], seed=cell.seed, outputs=outputs)
        return LowRankLaplace(model, psi.fit(train[0])).fit(train, val).predict_proba
    if method == LAST:
        return LinearizedLaplace(model, parameters="last", generator=generator).fit(train, val).predict_proba
    # k directions of the NTK: the dense answer has all of them, ResNet-20's are learned by a small network.
    # Validation rows from where the training rows are cannot tell a temperature from a prior: chosen together, the
    # temperature explains them all, the precision goes to its bound, and far away nothing is left of the variance.
    posterior = LinearizedLaplace(
        model, parameters="all", k=100_000 if method == EXACT else s["k"], complement=method != BARE,
        temperature=None if method == BOTH else 1.0, iterations=int(not pictures),
        eigenfunctions="network" if pictures and method == MERCER else "derivatives", generator=generator,
    )  # fmt: skip
    return posterior.fit(train, val).predict_proba


def draw(results: list[Result]) -> Figure | None:
    """Confidence over the plane, from even (light) to certain (dark), with the training points."""
    rows = [row for row in ROWS if any(result.row == row for result in results)]
    if not rows:  # of ResNet-20 alone there is no plane
        return None
    figure, axes = canvas(2, 4, width=11.5, height=6.0)
    image = None
    for ax in axes[len(rows) :]:
        ax.set_visible(False)
    for ax, row in zip(axes, rows, strict=False):
        result = next(r for r in results if r.row == row and r.seed == 0)
        image = ax.imshow(
            result.arrays["confidence"], cmap=LIGHT.sequential, vmin=0.5, vmax=1, origin="lower",
            extent=(-REACH, REACH, -REACH, REACH),
        )  # fmt: skip
        for label, colour in ((0, LIGHT.series[1]), (1, LIGHT.series[3])):
            points = [p for p in result.arrays["points"] if p[2] == label]
            ax.scatter([p[0] for p in points], [p[1] for p in points], s=3, color=colour)
        ax.set_title(f"{row}\nNLL {result.values['NLL']:.3f}", fontsize=9)
        ax.grid(False)
    if image is not None:
        bar = figure.colorbar(image, ax=axes, shrink=0.7)
        bar.set_label("confidence", color=LIGHT.soft)
        bar.ax.tick_params(colors=LIGHT.soft, labelsize=8)
    return figure
