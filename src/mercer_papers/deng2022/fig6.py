"""Figure 6: a GP over the SGD trajectory on CIFAR-10, against MAP, averaged weights, SWAG and the ensemble."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import metrics
from mercer.bayes import Snapshots, TrajectoryGP
from mercer.bayes.likelihood import Softmax, link_named
from mercer.figures import plots
from mercer.figures.theme import Figure
from mercer.kernels import Trajectory as TrajectoryKernel

from ..backbones import LeNet5
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import load, normalised, published_resnet20
from ..results import Result
from ..rivals import SWAG
from .algorithm1 import LENET, algorithm_1, picture_network
from .algorithm1 import RESNET as RESNET_FUNCTIONS
from .measures import rng, softmax

MAP, SWA, SWAG_ROW, ENSEMBLE = "MAP", "SWA", "SWAG", "Ensemble of snapshots"
ALGORITHM_1 = "Algorithm 1, k = 10"  # the paper's
DISTILLED, ALL_PASSES = "Mercer, distilled, k = 10", "Trajectory GP, M passes"
ROWS = (MAP, SWA, SWAG_ROW, ENSEMBLE, ALGORITHM_1, DISTILLED, ALL_PASSES)
FUNCTION_STEPS = {"smoke": 3, "small": 1000, "paper": 39_000}  # the authors' 200 epochs in batches of 256
SIZES = {"smoke": (64, 32, 8, 4), "small": (5000, 1000, 8, 10), "paper": (50_000, 10_000, 200, 100)}
RESNET = "ResNet-20"  # its published weights are where the trajectory starts, and MAP
Rows = tuple[Tensor, Tensor]
RESNET_SIZES = {"small": (5000, 2000, 2, 10), "paper": (50_000, 10_000, 100, 100)}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Seven predictions from one run of each network; rows, epochs and snapshots are in the settings."""
    networks = {"": SIZES[scale]}
    if scale in RESNET_SIZES:
        networks[RESNET] = RESNET_SIZES[scale]
    # the networks of Algorithm 1's functions: the authors' at paper scale, smaller ones below it
    functions = {"functions": LENET, "function steps": FUNCTION_STEPS[scale]}
    if scale == "paper":
        functions["functions"] = RESNET_FUNCTIONS
    cells = []
    for network, size in networks.items():
        sizes = dict(zip(("rows", "test_rows", "epochs", "kept"), size, strict=True))
        for method in ROWS:
            settings: dict[str, Any] = {**sizes, "method": method}
            row = method
            if network:
                settings["network"] = network
                row = f"{network}, {method}"
            if method == ALGORITHM_1:
                settings |= functions
            cells.append(Cell(entry.id, row, "", settings, ["cifar10"], seeds=1 if scale == "smoke" else 3))
    return cells


def run(cell: Cell) -> Outcome:
    """Test accuracy, NLL and ECE."""
    s, method = cell.settings, cell.settings["method"]
    network = s.get("network", "")
    train, val, (test, truth) = _load(network, s["rows"], s["test_rows"], cell.seed)
    trained = _train(network, s["rows"], s["test_rows"], s["epochs"], s["kept"], cell.seed, cell.device)
    models = trained.snapshots.models
    if method == MAP:
        proba = softmax(trained.annealed, test)
    elif method == SWA:
        proba = softmax(trained.snapshots.averaged(), test)
    elif method == ENSEMBLE:
        proba = torch.stack([softmax(model, test) for model in models]).mean(0)
    elif method == SWAG_ROW:
        proba = SWAG(models, samples=20, generator=rng(0)).predict_proba(test)
    elif method == ALGORITHM_1:
        # the slide's integral with the mean of the M networks and the covariance of k functions of Algorithm 1
        kernel = TrajectoryKernel(models, outputs="full")
        make = partial(picture_network, s["functions"], 3, 10)
        psi = algorithm_1(kernel, 10, make, steps=s["function steps"], seed=cell.seed, outputs=10).fit(train[0])
        parts = []
        with torch.no_grad():
            link = link_named("samples", rng(0))
            for rows in test.split(500):
                features = psi(rows)  # (n, c, k)
                parts.append(Softmax().proba(kernel.mean(rows), features @ features.mT, link))
        proba = torch.cat(parts)
    else:
        # the integral of the slide by samples, with its precision of 1
        functions = "network" if method == DISTILLED else "models"
        gp = TrajectoryGP(models, eigenfunctions=functions, precision=1.0, link="samples", generator=rng(0))
        proba = gp.fit(train, val).predict_proba(test)
    return Outcome(
        value=metrics.accuracy(proba, truth),
        values={
            "test accuracy": metrics.accuracy(proba, truth),
            "NLL": metrics.nll(proba, truth),
            "ECE": metrics.ece(proba, truth),
        },
        note="" if network else "LeNet-5 in place of the paper's network",
    )


class Trajectory(NamedTuple):
    """The snapshots of the constant rate, and the same start annealed to rate 0: the MAP that one would use.

    Published weights were annealed by their authors: they are the start and MAP.
    """

    snapshots: Snapshots
    annealed: nn.Module


def _load(network: str, rows: int, test_rows: int, seed: int) -> tuple[Rows, Rows, Rows]:
    """Training, validation (a tenth of the training rows) and test pictures."""
    data = load("cifar10", rows=(rows, test_rows), seed=seed)
    x, test = (normalised(part) if network else part - 0.45 for part in (data.x_train, data.x_test))
    validation = max(16, rows // 10)
    y = data.y_train
    return (x[:-validation], y[:-validation]), (x[-validation:], y[-validation:]), (test, data.y_test)


@functools.lru_cache(maxsize=1)  # one run serves the seven cells of one process
def _train(network: str, rows: int, test_rows: int, epochs: int, kept: int, seed: int, device: str) -> Trajectory:
    """Come near a minimum, or start at the published one; then a constant rate makes the trajectory."""
    x, y = (part.to(device) for part in _load(network, rows, test_rows, seed)[0])
    steps, generator = epochs * max(1, len(x) // 64), rng(seed)
    model: nn.Module
    annealed: nn.Module
    if network:
        model = published_resnet20().to(device)
        annealed = copy.deepcopy(model).eval()
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LeNet5().to(device)
        # half of the run, then the same start annealed over the other half
        _descend(model, x, y, [0.05] * (steps // 2), generator)
        steps -= steps // 2
        annealed = copy.deepcopy(model)
        cosine = [0.025 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]
        _descend(annealed, x, y, cosine, rng(seed + 1))
    snapshots = Snapshots(model, every=max(1, steps // kept), most=max(2, kept))
    _descend(model, x, y, [0.02] * steps, generator, snapshots)
    for kept_model in (annealed, *snapshots.models):
        kept_model.cpu()
    return Trajectory(snapshots, annealed)


def _descend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rates: Sequence[float],
    generator: torch.Generator,
    after: Callable[[], object] = lambda: None,
) -> None:
    """SGD with momentum at these rates, one a step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = torch.randint(len(x), (64,), generator=generator)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError(f"loss became NaN at step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()


def draw(results: list[Result]) -> Figure:
    """NLL and ECE of each prediction."""
    heights = {
        measure: {result.row: result.values[measure] for result in results if result.seed == 0}
        for measure in ("NLL", "ECE")
    }
    return plots.bars(heights, x_label="lower is better")
