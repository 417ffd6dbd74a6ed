"""Figure 2: accuracy against the order M of the series (Section 7.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import figures
from ..catalogue import Entry
from ..cells import Cell
from ..results import Result
from .trained import picture_cell
from .trained import run_pictures as run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cells", "draw", "run"]

_ORDERS = {"smoke": (1, 3), "small": (1, 2, 3, 5, 10, 20), "paper": (1, 2, 3, 5, 7, 10, 15, 20)}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The paper's head at each order."""
    network, dataset = ("ResNet-56", "cifar100") if scale == "paper" else ("Small ResNet", "cifar10")
    return [
        picture_cell("fig2", scale, f"Ours, M = {order}", row=f"M = {order}", network=network, dataset=dataset)
        for order in _ORDERS[scale]
    ]


def draw(results: list[Result]) -> Figure:
    """Accuracy over M."""
    points = sorted((int(r.row.removeprefix("M = ")), r.value) for r in results if r.value is not None)
    curve = {"x": [float(m) for m, _ in points], "y": [value for _, value in points]}
    return figures.lines({"kernelised head": curve}, x_label="order M of the series", y_label="test accuracy, %")
