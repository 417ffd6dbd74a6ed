"""Theorem 2: the scatter ratio falls to 0 and the kernel becomes the label kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ... import figures
from ...layerwise import fit_spectral
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .sets import fold
from .solved import fitted_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY = "masoomi2020/thm2"
SETS = ("random", "spiral", "wine")
SHOWN = 60
NEAR = 0.1  # how near the mean kernel values must come to 1 and 0


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Three sets that need no download."""
    sets = ("wine",) if scale == "smoke" else SETS
    return [Cell(ENTRY, row=name, settings={"set": name}) for name in sets]


def run(cell: Cell) -> Outcome:
    """T by layer, and the last layer's kernel: mean within and between classes."""
    parts = fold(cell.settings["set"], 0)
    generator = torch.Generator().manual_seed(0)
    chain = fit_spectral(parts.x_train, parts.y_train, parts.c, enough=0.999, generator=generator)
    features, y = fitted_outputs(chain), parts.y_train
    gram, same = features @ features.mT, y[:, None] == y
    within, between = float(gram[same].mean()), float(gram[~same].mean())
    T = [record.t for record in chain.history]
    order = y.argsort(stable=True)
    rows = order[torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long()]
    return Outcome(
        value=T[-1],
        values={"within": within, "between": between, "H": chain.history[-1].hsic},
        curves={"T": {"x": [float(i + 1) for i in range(len(T))], "y": T}},
        arrays={"kernel": gram[rows][:, rows].tolist()},
        passed=T[-1] < T[0] and T[-1] < NEAR and within > 1 - NEAR and abs(between) < NEAR,
        note=f"Mean kernel {within:.3f} within and {between:.3f} between classes; T from {T[0]:.2f} to {T[-1]:.3f}.",
    )


def draw(results: list[Result]) -> Figure:
    """The limit kernel, rows sorted by class."""
    figure, axes = figures.canvas(1, len(results), width=3.2 * len(results), height=3.4)
    for result, ax in zip(results, axes, strict=True):
        ax.imshow(np.asarray(result.arrays["kernel"]), vmin=0, vmax=1, cmap="viridis")
        ax.set(title=f"{result.row}: last layer", xticks=[], yticks=[], xlabel="rows by class")
        ax.grid(False)
    return figure
