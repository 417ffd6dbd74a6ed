"""Table 1 and Figure 1: heads alone on the synthetic sphere, beside the Bayes rule (Section 6.1, Appendix B)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mercer.figures.theme import LIGHT, Figure, canvas
from mercer.kernels import RadialSeries
from mercer.nn import KernelClassifier

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import Sphere, sphere
from ..results import Result
from .heads import train_head

_BAYES = "Bayes optimal"
_SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 100, "epochs": 2, "batch": 50, "bayes_samples": 1000, "lr": 0.03, "rates": []},
    "small": {"rows": 5000, "epochs": 10, "batch": 256, "bayes_samples": 50_000, "lr": 0.03, "rates": []},
    "paper": {
        "rows": 5000,
        "epochs": 100,
        "batch": 128,
        "bayes_samples": 200_000,
        "lr": 0.03,
        "rates": [0.01, 0.03, 0.1, 0.3],
    },
}
_DATA = "Data"
_STARTS = ", best of 12 starts by training loss"  # the head has one prototype a class: where it starts decides
_GRID = (45, 90)  # latitudes, longitudes


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Several draws of the centres: the paper prints one, and its difficulty depends on them."""
    seeds = {"smoke": 1, "small": 2, "paper": 10}[scale]
    maps = entry.run.get("maps", ())
    cells = []
    for row in maps or entry.run["heads"]:
        settings = dict(_SIZES[scale])
        if row.endswith(_STARTS):  # only these rows have that setting, so that stored runs of the others repeat
            settings["starts"] = 2 if scale == "smoke" else 12
        if maps:
            settings |= {"grid": list(_GRID), "shows": row}
            cells.append(Cell(entry.id, row, "", settings, seeds=min(5, seeds)))
        else:
            cells.append(Cell(entry.id, row, "accuracy", {**settings, "head": row}, seeds=seeds))
    return cells


def run(cell: Cell) -> Outcome:
    """Test accuracy on the centres of this seed, or a map of the sphere."""
    data = sphere(cell.settings["rows"], cell.settings["rows"], seed=cell.seed)
    if "shows" in cell.settings:
        return _map(cell, data)
    if cell.settings["head"] == _BAYES:
        best, error = data.bayes_accuracy(cell.settings["bayes_samples"])
        return Outcome(value=100 * best, values={"standard error": 100 * error})
    head, loss = _fit(cell.settings["head"], cell)
    right = (head(data.x_test).argmax(1) == data.y_test).double().mean()
    return Outcome(value=100 * right.item(), values={"training loss": loss}, note=f"Our own centres, seed {cell.seed}.")


def _fit(name: str, cell: Cell) -> tuple[nn.Module, float]:
    """The head of this name and its training loss, over as many starts as the cell asks for, at its own rate."""
    s = cell.settings
    head, plan = name.removesuffix(_STARTS), (s["rows"], s["epochs"], s["batch"])
    rate = s["lr"]
    if s["rates"]:
        # the rate of least loss on a fifth of the training rows, from the first start
        scores = {tried: _train(head, *plan, tried, 1, cell.seed, cell.device, 0.2)[1] for tried in s["rates"]}
        rate = min(scores, key=lambda tried: scores[tried])
    return _train(head, *plan, rate, s.get("starts", 1), cell.seed, cell.device)


@lru_cache(maxsize=1024)  # the figure shows the heads of the table
def _train(
    name: str, rows: int, epochs: int, batch: int, lr: float, starts: int, seed: int, device: str, judging: float = 0.0
) -> tuple[nn.Module, float]:
    """Train by Adam with a one-cycle rate; of several starts the one with the least training loss, no test row seen.

    The first start is that of a single one. Heads of several prototypes start from k-means. A share ``judging`` of the
    training rows may stay out; the loss is then that of those.
    """
    data = sphere(rows, rows, seed=seed)
    x, y = data.x_train.to(device), data.y_train.to(device)
    # rows that judge, where any are asked for
    x_judge, y_judge = x, y
    if judging:
        count = round(judging * len(x))
        x_judge, y_judge, x, y = x[:count], y[:count], x[count:], y[count:]
    best: tuple[nn.Module, float] | None = None
    for start in range(starts):
        generator = torch.Generator().manual_seed(seed + 10_000 * start)
        torch.manual_seed(seed + 10_000 * start)
        if name == "Softmax":
            head: nn.Module = nn.Linear(3, 2)
        elif name.startswith("Kernelized"):
            kernel = RadialSeries(init="ones", indicators="exact")
            head = KernelClassifier(3, 2, kernel, temperature=kernel.temperature, bias=name.endswith("bias"))
        else:
            kernel = RadialSeries(basis="gegenbauer" if "Gegenbauer" in name else "monomial")
            head = KernelClassifier(3, 2, kernel, prototypes=10, bias=True, temperature=1.0)
            head.init_from(x.cpu(), y.cpu(), generator=generator)
        head.to(device)
        optimizer = torch.optim.Adam(head.parameters(), lr)
        train_head(head, optimizer, x, y, lr=lr, epochs=epochs, batch=batch, generator=generator)
        with torch.no_grad():
            loss = F.cross_entropy(head(x_judge), y_judge).item()
        if best is None or loss < best[1]:
            best = head.cpu(), loss
    assert best is not None
    return best


def _map(cell: Cell, drawn: Sphere) -> Outcome:
    """Probability of the orange class at every latitude and longitude; of the data, a few hundred points."""
    shows = cell.settings["shows"]
    if shows == _DATA:
        shown = drawn.x_train[:240]
        longitudes = torch.atan2(shown[:, 1], shown[:, 0])
        points = torch.stack((longitudes, shown[:, 2].asin(), drawn.y_train[:240].float()), 1)
        return Outcome(arrays={"points": points.tolist()})
    # unit vectors of the grid
    latitude = torch.linspace(-math.pi / 2, math.pi / 2, cell.settings["grid"][0])
    longitude = torch.linspace(-math.pi, math.pi, cell.settings["grid"][1])
    u = torch.stack(
        [
            latitude.cos()[:, None] * longitude.cos()[None],
            latitude.cos()[:, None] * longitude.sin()[None],
            latitude.sin()[:, None].expand(-1, len(longitude)),
        ],
        2,
    ).reshape(-1, 3)
    best = drawn.posterior(u)[:, 1]
    orange = best
    if shows != _BAYES:
        head, _ = _fit(shows, cell)
        with torch.no_grad():
            orange = head(u).softmax(1)[:, 1]
    # the share of the sphere's area where it agrees with the Bayes rule
    shape = (len(latitude), len(longitude))
    area = latitude.cos()[:, None].expand(shape).reshape(-1)  # of the sphere that a point of the grid stands for
    agreement = float((((orange > 0.5) == (best > 0.5)).float() * area).sum() / area.sum())
    return Outcome(
        arrays={"orange": orange.reshape(shape).tolist()}, values={"agreement with the Bayes rule": agreement}
    )


def draw(results: list[Result]) -> Figure | None:
    """Maps of the whole sphere, blue and orange, with the data's points in the first; Table 1 has no picture."""
    by_row = {result.settings["shows"]: result for result in results if result.seed == 0 and "shows" in result.settings}
    if not by_row:
        return None
    shown = list(by_row)
    figure, axes = canvas(columns=len(shown), width=2.7 * len(shown), height=2.4)
    for axis, row in zip(axes, shown, strict=True):
        arrays = by_row[row].arrays
        axis.set_title(row, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        # the data as points, a head as its two regions
        if "points" in arrays:
            x, y, orange = zip(*arrays["points"], strict=True)
            colours = [LIGHT.series[1] if o else LIGHT.series[0] for o in orange]
            axis.scatter(x, y, c=colours, s=3, linewidths=0)
            axis.set_xlim(-math.pi, math.pi)
            axis.set_ylim(-math.pi / 2, math.pi / 2)
        else:
            axis.contourf(
                torch.linspace(-math.pi, math.pi, len(arrays["orange"][0])),
                torch.linspace(-math.pi / 2, math.pi / 2, len(arrays["orange"])),
                arrays["orange"],
                levels=[-0.01, 0.5, 1.01],
                colors=[LIGHT.series[0], LIGHT.series[1]],
                alpha=0.75,
            )
    axes[0].set_xlabel("longitude")
    axes[0].set_ylabel("latitude")
    return figure
