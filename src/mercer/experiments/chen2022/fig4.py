"""Figure 4: test accuracy with RBF, linear, polynomial and random matrices in H's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import figures
from ..cells import Cell, Outcome
from ..results import Result
from .methods import KERNELS, LAST_LAYER
from .setting import KINDS, needed
from .training import Plan, searched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = "test accuracy"


def cells(scale: str) -> list[Cell]:
    """One bar for each data set and matrix, and SGD with its own rate in the last layer."""
    return [
        Cell(
            "chen2022/fig4",
            row=f"{name}, {kernel}",
            column=COLUMN,
            settings={"data": name, "kernel": kernel, "scale": scale},
            data=needed(name),
            seeds=1,
        )
        for name in KINDS
        for kernel in (*KERNELS, LAST_LAYER)
    ]


def run(cell: Cell) -> Outcome:
    """Test accuracy of the best try."""
    kernel = cell.settings["kernel"]
    method = LAST_LAYER if kernel == LAST_LAYER else "ours"
    matrix = "RBF" if kernel == LAST_LAYER else kernel
    best = searched(Plan(cell.settings["data"], method, cell.settings["scale"], cell.seed, kernel=matrix))
    return Outcome(value=best.test, note=best.note())


def draw(results: list[Result]) -> Figure:
    """Bars by data set."""
    heights: dict[str, dict[str, float]] = {}
    for result in results:
        name, kernel = result.row.split(", ", 1)
        if result.value is not None:
            heights.setdefault(kernel, {})[name] = result.value
    return figures.bars(heights, x_label="test accuracy, %")
