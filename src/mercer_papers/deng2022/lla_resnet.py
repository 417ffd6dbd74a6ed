"""Linearised Laplace on the published ResNet-20 of CIFAR-10: log-loss, calibration and strangers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from mercer import metrics
from mercer.bayes import KroneckerLaplace, LinearizedLaplace, TemperatureScaling
from mercer.kernels import EmpiricalNTK

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import load, normalised, published_resnet20
from .algorithm1 import LENET, RESNET, LowRankLaplace, algorithm_1, picture_network
from .measures import seeded

NETWORK = "ResNet-20"
MAP, TEMPERATURE, LAST, ALL, KFAC = (
    "MAP", "Temperature scaling", "Mercer, last layer", "Mercer, k = 20", "KFAC",
)  # fmt: skip
ALGORITHM_1, BARE = "Algorithm 1, k = 20", "k = 20, no complement"
ROWS = {
    "small": (MAP, TEMPERATURE, ALGORITHM_1, LAST, ALL, BARE),
    "paper": (MAP, TEMPERATURE, ALGORITHM_1, LAST, ALL, BARE, KFAC),
}
DIRECTIONS = {"small": 100, "paper": 4000}  # of the sampled NTK that Algorithm 1 decomposes
FUNCTIONS = {"small": LENET, "paper": RESNET}
FUNCTION_STEPS = {"small": 500, "paper": 39_000}  # the authors' 200 epochs of 50,000 rows in batches of 256
SIZES = {"small": (200, 1500, 300), "paper": (50_000, 9000, 9000)}  # training rows, scored rows, strangers
_CHOOSE = 1000  # rows of the test part that choose prior and temperature: the network has seen the training part


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Ways to read one network; the seed draws the test rows that choose and that score."""
    if scale not in SIZES:
        return []
    train, scored, strangers = SIZES[scale]
    settings = {"rows": train, "test_rows": scored, "strangers": strangers, "network": NETWORK, "k": 20}
    alone = {
        "directions": DIRECTIONS[scale],
        "functions": FUNCTIONS[scale],
        "function steps": FUNCTION_STEPS[scale],
    }
    return [
        Cell(
            entry.id,
            row=f"{NETWORK}, {row}",
            seeds=3,
            data=["cifar10", "cifar100_subset"],
            settings={**settings, "method": row, **(alone if row == ALGORITHM_1 else {})},
        )
        for row in ROWS[scale]
    ]


def run(cell: Cell) -> Outcome:
    """NLL and ECE of test rows, and AUROC of the confidence against pictures of CIFAR-100."""
    s = cell.settings
    pictures = load("cifar10", rows=(s["rows"], 10_000))
    order = torch.randperm(len(pictures.x_test), generator=seeded(cell.seed))[: _CHOOSE + s["test_rows"]]
    choosing, scored = order[:_CHOOSE], order[_CHOOSE:]
    x, test = (normalised(part).to(cell.device) for part in (pictures.x_train, pictures.x_test))
    train = (x, pictures.y_train.to(cell.device))
    val = (test[choosing], pictures.y_test[choosing].to(cell.device))
    strangers = normalised(load("cifar100_subset", rows=(1, s["strangers"])).x_test).to(cell.device)
    model = published_resnet20().eval().to(cell.device)
    proba = _reader(cell, model, train, val)
    inside, outside = proba(test[scored]).cpu(), proba(strangers).cpu()
    truth = pictures.y_test[scored]
    return Outcome(
        values={
            "NLL": metrics.nll(inside, truth),
            "ECE": metrics.ece(inside, truth),
            "AUROC CIFAR-100": metrics.auroc(-inside.amax(1), -outside.amax(1)),
        }
    )


def _reader(
    cell: Cell, model: nn.Module, train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]
) -> Callable[[Tensor], Tensor]:
    method, generator = cell.settings["method"], seeded(cell.seed)
    if method == MAP:
        return lambda x: _softmax(model, x)
    if method == TEMPERATURE:
        return TemperatureScaling(model).fit(train, val).predict_proba
    if method == KFAC:
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):  # neither linear nor a convolution: its weights count as known
                layer.requires_grad_(False)
        return KroneckerLaplace(model, prior_precision="validation").fit(train, val).predict_proba
    if method == LAST:
        return LinearizedLaplace(model, parameters="last", generator=generator).fit(train, val).predict_proba
    k = cell.settings["k"]
    if method == ALGORITHM_1:
        s = cell.settings
        kernel = EmpiricalNTK(
            model, outputs="full", method="finite_difference", samples=s["directions"], generator=generator
        )
        make, steps = partial(picture_network, s["functions"], 3, 10), s["function steps"]
        psi = algorithm_1(kernel, k, make, steps=steps, seed=cell.seed, outputs=10).fit(train[0])
        return LowRankLaplace(model, psi).fit(train, val).predict_proba
    if method == BARE:
        bare = LinearizedLaplace(
            model, parameters="all", k=k, complement=False, iterations=0, temperature=1.0, generator=generator
        )
        return bare.fit(train, val).predict_proba
    ours = LinearizedLaplace(
        model, parameters="all", k=k, eigenfunctions="network", iterations=0, temperature=1.0, generator=generator
    )
    return ours.fit(train, val).predict_proba


def _softmax(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part).softmax(1) for part in x.split(250)])
