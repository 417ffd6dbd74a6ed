"""Logistic regression on eigenfunctions of a CNN-GP kernel, against Nystrom features of classic kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...data import load
from ...features import NeuralEigenfunctions, Nystrom
from ...kernels import RBF, ConvNNGP, MonteCarloNNGP, Polynomial
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .measures import linear_accuracy, seeded

ENTRY = "deng2022/cnn-gp"
ROWS = ("Ours, CNN-GP", "Ours, CNN-GP analytic", "Nystrom, CNN-GP analytic", "Nystrom, polynomial", "Nystrom, RBF")
SIZES = {  # training rows, test rows, networks, steps
    "smoke": (40, 20, 3, 5),
    "small": (1500, 1000, 60, 300),
    "paper": (60_000, 10_000, 2000, 10_000),
}
K = 10
SIDE = 10  # the analytic kernel costs rows^2 pixels; pictures are shrunk for it


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One cell for each map; the same k for all."""
    train, test, samples, steps = SIZES[scale]
    settings = {"train": train, "test": test, "samples": samples, "steps": steps, "k": K}
    return [Cell(ENTRY, row=row, column="test accuracy", data=["mnist"], seeds=1, settings=settings) for row in ROWS]


def run(cell: Cell) -> Outcome:
    """Test accuracy on k = 10 features."""
    settings = cell.settings
    data = load("mnist", rows=(settings["train"], settings["test"]), seed=cell.seed)
    x, test = data.x_train, data.x_test
    flat = not cell.row.endswith("CNN-GP")
    if cell.row.endswith("analytic"):
        x, test = _shrunk(x), _shrunk(test)
    elif flat:
        x, test = x.flatten(1), test.flatten(1)
    f = _map(cell.row, x, settings, cell.seed).fit(x)
    accuracy = linear_accuracy(f, (x, data.y_train), (test, data.y_test))
    note = f"pictures of {SIDE} x {SIDE} for the analytic kernel" if "analytic" in cell.row else ""
    return Outcome(value=accuracy, note=note)


def _map(row: str, x: Tensor, settings: object, seed: int) -> NeuralEigenfunctions | Nystrom:
    assert isinstance(settings, dict)
    k, generator = settings["k"], seeded(seed)
    if row == "Ours, CNN-GP":
        kernel = MonteCarloNNGP(_network, settings["samples"], generator=seeded(seed + 1))
        return NeuralEigenfunctions(kernel, k, steps=settings["steps"], generator=generator)
    if row == "Ours, CNN-GP analytic":
        return NeuralEigenfunctions(ConvNNGP(2, bias_var=0.1), k, landmarks=min(len(x), 20 * k), generator=generator)
    if row == "Nystrom, CNN-GP analytic":
        return Nystrom(ConvNNGP(2, bias_var=0.1), k, generator=generator)
    if row == "Nystrom, polynomial":
        return Nystrom(Polynomial(4, 1.0 / x.shape[1], 1.0), k, generator=generator)
    return Nystrom(RBF.from_data(x, generator=seeded(seed)), k, generator=generator)


def _network() -> nn.Module:
    network = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 8),
    )
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.normal_(layer.bias, std=0.3)
    return network


def _shrunk(x: Tensor) -> Tensor:
    pictures: Tensor = torch.nn.functional.interpolate(x, size=(SIDE, SIDE), mode="area")
    return pictures
