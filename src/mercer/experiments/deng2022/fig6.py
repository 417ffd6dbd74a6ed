"""Figure 6: a GP over the SGD trajectory on CIFAR-10, against MAP, averaged weights, SWAG and the ensemble."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import figures, metrics
from ...bayes import SWAG, Snapshots, TrajectoryGP
from ...data import load
from ..backbones import LeNet5
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .measures import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY = "deng2022/fig6"
ROWS = ("MAP", "SWA", "SWAG", "Ensemble of snapshots", "Ours, trajectory GP", "Ours, tau by validation")
SIZES = {"smoke": (64, 32, 8, 4), "small": (5000, 1000, 8, 10), "paper": (50_000, 10_000, 200, 100)}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Six predictions from one run; training rows, test rows, epochs and snapshots in the settings."""
    train, test, epochs, kept = SIZES[scale]
    settings = {"train": train, "test": test, "epochs": epochs, "kept": kept}
    return [Cell(ENTRY, row=row, data=["cifar10"], seeds=1, settings=settings) for row in ROWS]


def run(cell: Cell) -> Outcome:
    """Test accuracy, NLL and ECE."""
    settings = cell.settings
    data = load("cifar10", rows=(settings["train"], settings["test"]), seed=cell.seed)
    held = max(16, settings["train"] // 10)
    x, y = data.x_train[:-held] - 0.45, data.y_train[:-held]
    val = (data.x_train[-held:] - 0.45, data.y_train[-held:])
    snapshots = _trained(x, y, settings["epochs"], settings["kept"], cell.seed)
    proba = _predicted(cell.row, snapshots, data.x_test - 0.45, val)
    return Outcome(
        value=metrics.accuracy(proba, data.y_test),
        values={
            "test accuracy": metrics.accuracy(proba, data.y_test),
            "NLL": metrics.nll(proba, data.y_test),
            "ECE": metrics.ece(proba, data.y_test),
        },
        note="LeNet-5 in place of the paper's network",
    )


def _predicted(row: str, snapshots: Snapshots, test: Tensor, val: tuple[Tensor, Tensor]) -> Tensor:
    with torch.no_grad():
        if row == "MAP":
            return _softmax(snapshots.models[-1], test)
        if row == "SWA":
            return _softmax(snapshots.averaged(), test)
    if row == "SWAG":
        return SWAG(snapshots.models, samples=20, generator=seeded(0)).predict_proba(test)
    gp = TrajectoryGP(snapshots.models, precision=1.0 if row == "Ours, trajectory GP" else "validation")
    if row == "Ensemble of snapshots":
        return gp.ensemble_proba(test)
    return gp.fit(None, val).predict_proba(test)


def _softmax(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part).softmax(1) for part in x.split(500)])


@functools.lru_cache(maxsize=1)
def _cached(key: tuple[int, int, int, int]) -> dict[str, Snapshots]:
    """One run serves the six cells of one process; it depends on the cell's settings and seed alone."""
    return {}


def _trained(x: Tensor, y: Tensor, epochs: int, kept: int, seed: int) -> Snapshots:
    store = _cached((len(x), epochs, kept, seed))
    if "run" not in store:
        store["run"] = _train(x, y, epochs, kept, seed)
    return store["run"]


def _train(x: Tensor, y: Tensor, epochs: int, kept: int, seed: int) -> Snapshots:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LeNet5()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    generator = seeded(seed)
    steps = epochs * max(1, len(x) // 64)
    warm = steps // 2  # the second half of the run, at a constant step size, is the trajectory
    snapshots = Snapshots(model, every=max(1, (steps - warm) // kept), most=max(2, kept))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 if step < warm else 0.02
        rows = torch.randint(len(x), (64,), generator=generator)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError(f"loss became NaN at step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= warm:
            snapshots()
    return snapshots


def draw(results: list[Result]) -> Figure:
    """NLL and ECE of each prediction."""
    heights = {
        measure: {result.row: result.values[measure] for result in results if result.seed == 0}
        for measure in ("NLL", "ECE")
    }
    return figures.bars(heights, x_label="lower is better")
