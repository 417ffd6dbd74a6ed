"""Linearised Laplace on points in the plane: confidence of MAP, of ours with and without the complement, of KFAC."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import figures, metrics
from mercer.bayes import KroneckerLaplace, LinearizedLaplace, TemperatureScaling
from mercer.kernels import EmpiricalNTK

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from . import lla_resnet
from .algorithm1 import LowRankLaplace, algorithm_1, small_mlp
from .measures import seeded

MAP, MERCER, BARE, EXACT, KFAC = "MAP", "Mercer, k = 20", "k = 20, no complement", "Exact", "KFAC"
TEMPERATURE = "Temperature scaling"  # the cheapest rival
BOTH = "Mercer, k = 20 and temperature"  # the class's default, which the slides do not have
ALGORITHM_1 = "Algorithm 1, k = 20"  # the slide's form in the eigenfunctions that the slide's algorithm finds
ROWS = (MAP, TEMPERATURE, ALGORITHM_1, MERCER, BOTH, BARE, EXACT, KFAC)
DIRECTIONS = {"smoke": 8, "small": 500, "paper": 4000}  # of the sampled NTK that Algorithm 1 decomposes
FUNCTION_STEPS = {"smoke": 3, "small": 2000, "paper": 2000}
SIZES = {"smoke": (40, 20), "small": (300, 1000), "paper": (1000, 3000)}  # training rows, steps
REACH, SIDE = 5.0, 41


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Eight ways to read one network, on the same points; then those of ResNet-20."""
    n, steps = SIZES[scale]
    settings = {"rows": n, "steps": steps, "k": 20}
    alone = {"directions": DIRECTIONS[scale], "function steps": FUNCTION_STEPS[scale]}
    plane = [
        Cell(
            entry.id,
            row=row,
            seeds=3 if scale == "paper" else 1,
            settings={**settings, "method": row, **(alone if row == ALGORITHM_1 else {})},
        )
        for row in ROWS
    ]
    return plane + lla_resnet.cells(entry, scale)


def run(cell: Cell) -> Outcome:
    """NLL and ECE on new points of the two moons, AUROC of the confidence against points far away, and its map."""
    if "network" in cell.settings:
        return lla_resnet.run(cell)
    n = cell.settings["rows"]
    x, y = _moons(2 * n + 200, cell.seed)
    train, val, test = (x[:n], y[:n]), (x[n : 2 * n], y[n : 2 * n]), (x[2 * n :], y[2 * n :])
    model = _train(train, cell.settings["steps"], cell.seed, cell.device)
    proba = _reader(cell, model, train, val)
    inside = proba(test[0])
    far = 8 * torch.nn.functional.normalize(torch.randn(200, 2, generator=seeded(cell.seed)), dim=1)
    side = torch.linspace(-REACH, REACH, SIDE)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), 2).reshape(-1, 2)
    confidence = proba(grid).amax(1).reshape(SIDE, SIDE)
    return Outcome(
        values={
            "NLL": metrics.nll(inside, test[1]),
            "ECE": metrics.ece(inside, test[1]),
            "AUROC far away": metrics.auroc(-inside.amax(1), -proba(far).amax(1)),
        },
        arrays={"confidence": confidence.tolist(), "points": torch.cat((train[0], train[1][:, None]), 1)[:80].tolist()},
    )


def _reader(
    cell: Cell, model: nn.Module, train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]
) -> Callable[[Tensor], Tensor]:
    method = cell.settings["method"]
    if method == TEMPERATURE:
        return TemperatureScaling(model).fit(train, val).predict_proba
    if method == MAP:
        return lambda rows: model(rows).detach().softmax(1)
    if method == KFAC:
        return KroneckerLaplace(model, prior_precision="validation").fit(train, val).predict_proba
    if method == ALGORITHM_1:
        s = cell.settings
        kernel = EmpiricalNTK(
            model, outputs="full", method="finite_difference", samples=s["directions"], generator=seeded(cell.seed)
        )
        make, steps = partial(small_mlp, 2, 2), s["function steps"]
        psi = algorithm_1(kernel, s["k"], make, steps=steps, seed=cell.seed, outputs=2).fit(train[0])
        return LowRankLaplace(model, psi).fit(train, val).predict_proba
    # Validation rows from where the training rows are cannot tell a temperature from a prior: chosen together, the
    # temperature explains them all, the precision goes to its bound, and far away nothing is left of the variance.
    ours = LinearizedLaplace(
        model,
        parameters="all",
        k=100_000 if method == EXACT else cell.settings["k"],
        complement=method != BARE,
        temperature=None if method == BOTH else 1.0,
        generator=seeded(cell.seed),
    )
    return ours.fit(train, val).predict_proba


def _train(train: tuple[Tensor, Tensor], steps: int, seed: int, device: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
    model.to(device)
    x, y = (part.to(device) for part in train)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-4)
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.cpu()


def _moons(n: int, seed: int) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import make_moons

    x, y = make_moons(n, noise=0.2, random_state=seed)
    return torch.as_tensor(x).float(), torch.as_tensor(y)


def draw(results: list[Result]) -> figures.Figure | None:
    """Confidence over the plane, from even (light) to certain (dark), with the training points."""
    rows = [row for row in ROWS if any(result.row == row for result in results)]
    if not rows:  # of ResNet-20 alone there is no plane
        return None
    figure, axes = figures.canvas(2, 4, width=11.5, height=6.0)
    image = None
    for ax in axes[len(rows) :]:
        ax.set_visible(False)
    for ax, row in zip(axes, rows, strict=False):
        result = next(r for r in results if r.row == row and r.seed == 0)
        image = ax.imshow(
            result.arrays["confidence"], cmap=figures.LIGHT.sequential, vmin=0.5, vmax=1, origin="lower",
            extent=(-REACH, REACH, -REACH, REACH),
        )  # fmt: skip
        for label, colour in ((0, figures.LIGHT.series[1]), (1, figures.LIGHT.series[3])):
            chosen = [p for p in result.arrays["points"] if p[2] == label]
            ax.scatter([p[0] for p in chosen], [p[1] for p in chosen], s=3, color=colour)
        ax.set_title(f"{row}\nNLL {result.values['NLL']:.3f}", fontsize=9)
        ax.grid(False)
    if image is not None:
        bar = figure.colorbar(image, ax=axes, shrink=0.7)
        bar.set_label("confidence", color=figures.LIGHT.soft)
        bar.ax.tick_params(colors=figures.LIGHT.soft, labelsize=8)
    return figure
