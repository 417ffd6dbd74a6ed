"""Logistic regression on eigenfunctions of a CNN-GP kernel, against Nystrom features of classic kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from mercer.features import NeuralEigenfunctions
from mercer.kernels import RBF, ConvNNGP, Kernel, MonteCarloNNGP, Polynomial

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import load
from .algorithm1 import LR, algorithm_1, conv_net
from .measures import AllRowsNystrom, linear_accuracy, rng

ROWS = {  # the map and the kernel; NeuralEF is Algorithm 1, Nystrom decomposes all rows
    "NeuralEF, CNN-GP": ("NeuralEF", "CNN-GP"),
    "Mercer, CNN-GP, exact deflation": ("exact deflation", "CNN-GP"),
    "Mercer, CNN-GP distilled": ("distilled", "CNN-GP"),
    "Nystrom, CNN-GP": ("Nystrom", "CNN-GP"),
    "Mercer, CNN-GP analytic, landmarks": ("landmarks", "analytic"),
    "Nystrom, CNN-GP analytic": ("Nystrom", "analytic"),
    "Nystrom, polynomial": ("Nystrom", "polynomial"),
    "Nystrom, RBF": ("Nystrom", "RBF"),
}
SIZES = {  # training rows, test rows, networks, steps
    "smoke": (40, 20, 3, 5),
    "small": (1500, 1000, 60, 1000),
    "paper": (60_000, 10_000, 2000, 20_000),
}
AUTHORS = "authors"  # at paper scale: ConvNets, kernels, rates and Nystrom rows as in the authors' script
NYSTROM_ROWS = 6000
K = 10
_DEFLATIONS = {"NeuralEF": "first_order", "exact deflation": "cholesky"}
RATES = (3e-3, 1e-3)  # of Algorithm 1; at 1e-2, which suits the toys, it ends at 30 %
SIDE = 10  # the analytic kernel costs rows^2 pixels; pictures are shrunk for it


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One cell for each map; the same k for all."""
    train, test, samples, steps = SIZES[scale]
    settings: dict[str, Any] = {"rows": train, "test_rows": test, "samples": samples, "steps": steps, "k": K}
    if scale == "paper":
        settings |= {"setup": AUTHORS, "nystrom_rows": NYSTROM_ROWS}
    seeds = {"smoke": 1, "small": 3, "paper": 5}[scale]
    return [
        Cell(entry.id, row, "test accuracy", {**settings, "map": made, "kernel": kernel}, ["mnist"], seeds)
        for row, (made, kernel) in ROWS.items()
    ]


def run(cell: Cell) -> Outcome:
    """Test accuracy on k = 10 features."""
    s = cell.settings
    # the rows, as the kernel reads them
    data = load("mnist", rows=(s["rows"], s["test_rows"]), seed=cell.seed)
    x, test = data.x_train, data.x_test
    authors = s.get("setup") == AUTHORS
    if authors:
        x, test = 2 * x - 1, 2 * test - 1
    if s["kernel"] == "analytic":
        x, test = (F.interpolate(pictures, size=(SIDE, SIDE), mode="area") for pictures in (x, test))
    elif s["kernel"] != "CNN-GP":
        x, test = x.flatten(1), test.flatten(1)
    x, test = x.to(cell.device), test.to(cell.device)
    # the kernel: ours, or at paper scale the authors'
    note = ""
    kernel: Kernel
    if s["kernel"] == "CNN-GP":
        draw_one = partial(_draw_network, authors)
        kernel = MonteCarloNNGP(lambda: draw_one().to(x.device), s["samples"], generator=rng(cell.seed + 1))
    elif s["kernel"] == "analytic":
        kernel, note = ConvNNGP(2, bias_var=0.1), f"pictures of {SIDE} x {SIDE} for the analytic kernel"
    elif s["kernel"] == "polynomial":
        kernel = Polynomial(4, 1.0 / x.shape[1], 1.0)
        if authors:
            kernel = Polynomial(10, 0.001, 1.0)
    elif authors:  # a squared length scale of 100
        kernel = RBF(1 / (2 * 100))
    else:
        kernel = RBF.from_data(x, generator=rng(cell.seed))
    # the map
    f: Callable[[Tensor], Tensor]
    if s["map"] in _DEFLATIONS and authors:
        f, note = _fit_conv_nets(s, kernel, x, cell.seed), f"one ConvNet a function, lr {LR:g}"
    elif s["map"] in _DEFLATIONS:
        f, rate = _best_rate(s, kernel, x, data.y_train, cell.seed)
        note = f"lr {rate:g}, the best of {len(RATES)} on a fifth of the training rows"
    else:
        generator = rng(cell.seed)
        if s["map"] == "Nystrom":
            rows = x
            if "nystrom_rows" in s:
                rows = x[torch.randperm(len(x), generator=generator)[: s["nystrom_rows"]].to(x.device)]
            f = AllRowsNystrom(kernel, s["k"]).fit(rows)
        elif s["map"] == "landmarks":
            f = NeuralEigenfunctions(kernel, s["k"], landmarks=min(len(x), 20 * s["k"]), generator=generator).fit(x)
        else:
            f = NeuralEigenfunctions(kernel, s["k"], steps=s["steps"], generator=generator).fit(x)
    return Outcome(value=linear_accuracy(f, (x, data.y_train), (test, data.y_test)), note=note)


class StoredFeatures(Kernel):
    """The kernel matrix of Algorithm 1, line 3: computed once, and carried by the rows behind their ``d`` pixels.

    Args:
        d: Numbers of a picture.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d + S), (m, d + S) -> (n, m)
        return x[:, self.d :] @ y[:, self.d :].mT

    @override
    def diag(self, x: Tensor) -> Tensor:  # (n, d + S) -> (n,)
        return x[:, self.d :].square().sum(1)


class _PixelsOf(nn.Module):
    """A network that reads the pixels of a row and not the kernel features behind them."""

    def __init__(self, network: nn.Module, shape: torch.Size) -> None:
        super().__init__()
        self.network, self.shape = network, shape

    @override
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x[:, : self.shape.numel()].reshape(-1, *self.shape))
        return out


def _fit_conv_nets(s: Any, kernel: Kernel, x: Tensor, seed: int) -> Callable[[Tensor], Tensor]:
    """Algorithm 1 with one ConvNet a function; the features of all networks of the kernel are computed once."""
    assert isinstance(kernel, MonteCarloNNGP)
    shape = x.shape[1:]
    # the features of the kernel's networks
    with torch.no_grad():
        stored = torch.cat([kernel.features(part)[:, 0] for part in x.split(10_000)])  # (n, S)
    f = algorithm_1(
        StoredFeatures(shape.numel()),
        s["k"],
        lambda: _PixelsOf(conv_net(shape[0]), shape).to(x.device),
        steps=s["steps"],
        seed=seed,
        deflation=_DEFLATIONS[s["map"]],
    ).fit(torch.cat((x.flatten(1), stored), 1))
    blank = stored.new_zeros(1, stored.shape[1])  # new rows need no kernel: the networks read pixels alone

    def features(rows: Tensor) -> Tensor:
        parts = [torch.cat((part.flatten(1), blank.expand(len(part), -1)), 1) for part in rows.split(1000)]
        return torch.cat([f(part) for part in parts])

    return features


def _best_rate(s: Any, kernel: Kernel, x: Tensor, y: Tensor, seed: int) -> tuple[NeuralEigenfunctions, float]:
    """Algorithm 1 at each rate; the labels of a fifth of the training rows choose. The map sees no labels."""
    validation = max(1, len(x) // 5)
    fits: dict[float, tuple[float, NeuralEigenfunctions]] = {}
    for rate in RATES:
        f = NeuralEigenfunctions(
            kernel, s["k"], method="neuralef", ritz=False, deflation=_DEFLATIONS[s["map"]],
            steps=s["steps"], lr=rate, generator=rng(seed),
        ).fit(x)  # fmt: skip
        fits[rate] = (linear_accuracy(f, (x[:-validation], y[:-validation]), (x[-validation:], y[-validation:])), f)
    best = max(fits, key=lambda rate: fits[rate][0])
    return fits[best][1], best


def _draw_network(authors: bool) -> nn.Module:
    """Our random ConvNet, or the authors': widths 16, max-pooling, variances 2 / fan-in and 0.01."""
    if authors:
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 36, 16), nn.ReLU(), nn.Linear(16, 1),
        )  # fmt: skip
    else:
        network = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(800, 8),
        )  # fmt: skip
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.normal_(layer.bias, std=0.1 if authors else 0.3)
    return network
