"""Experiment 2: what the rows become in input data space and in kernel space, layer by layer."""

from __future__ import annotations

import numpy as np
import torch

from mercer.figures.theme import Figure, canvas
from mercer.layerwise.bandwidths import most_dependent
from mercer.layerwise.dependence import gaussian

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .solved import fold, pass_through, solve

SHOWN = 60  # rows of a kernel matrix in the picture
POINTS = 100


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The spiral and wine by both solvers."""
    sets = ("wine",) if scale == "smoke" else ("spiral", "wine")
    return [
        Cell(entry.id, row=f"{name}, {method}", settings={"set": name, "by": method})
        for name in sets
        for method in ("W_s", "ISM")
    ]


def run(cell: Cell) -> Outcome:
    """Positions in the plane of the two widest directions and the kernel matrix, of three layers."""
    s = cell.settings
    parts = fold(s["set"], 0)
    chain = solve(s["by"], s["set"], parts.x_train, parts.y_train, parts.c, 0)
    order = parts.y_train.argsort(stable=True)
    rows = order[torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long()]
    # outputs in IDS of every layer
    inputs = [parts.x_train, *pass_through(chain, parts.x_train)[:-1]]
    places = [layer.project(rows_in) for layer, rows_in in zip(chain.layers, inputs, strict=True)]
    stages = sorted({0, len(chain.layers) // 2, len(chain.layers) - 1})
    shown = torch.arange(len(order)) % max(1, len(order) // POINTS) == 0
    arrays: dict[str, list[object]] = {"labels": parts.y_train[shown].tolist(), "stages": [i + 1 for i in stages]}
    for i in stages:
        z = places[i]
        gram = gaussian(most_dependent(z, parts.y_train, parts.c))(z)
        # the plane of the two widest directions; a line, where there is but one
        centred = z - z.mean(0)
        plane = torch.cat((centred, torch.zeros_like(centred)), 1)
        if z.shape[1] > 1:
            plane = centred @ torch.linalg.svd(centred, full_matrices=False)[2][:2].mT
        arrays[f"ids {i + 1}"] = plane[shown].tolist()
        arrays[f"rkhs {i + 1}"] = gram[rows][:, rows].tolist()
    last = chain.history[-1]
    return Outcome(value=last.hsic, values={"C": last.c, "T": last.t}, arrays=arrays)


def draw(results: list[Result]) -> Figure:
    """Two lines for each run: positions in IDS, kernel matrices in RKHS with rows sorted by class."""
    figure, axes = canvas(2 * len(results), 3, width=8.4, height=4.6 * len(results))
    for i, result in enumerate(results):
        labels = np.asarray(result.arrays["labels"])
        stages = result.arrays["stages"]
        for j in range(3):
            above, below = axes[6 * i + j], axes[6 * i + 3 + j]
            if j >= len(stages):
                above.set_visible(False)
                below.set_visible(False)
                continue
            points = np.asarray(result.arrays[f"ids {stages[j]}"])
            for k in np.unique(labels):
                above.scatter(
                    points[labels == k, 0], points[labels == k, 1], s=9, alpha=0.7, linewidths=0, label=f"class {k}"
                )
            above.set_title(f"{result.row}: layer {stages[j]}", fontsize=9)
            below.imshow(np.asarray(result.arrays[f"rkhs {stages[j]}"]), vmin=0, vmax=1, cmap="viridis")
            below.set_title("kernel, rows by class", fontsize=9)
            for ax in (above, below):
                ax.grid(False)
                ax.set(xticks=[], yticks=[])
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, markerscale=2.5)
    return figure
