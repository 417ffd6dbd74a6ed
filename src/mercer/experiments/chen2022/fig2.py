"""Figure 2: training loss by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cells import Cell, Outcome
from ..results import Result
from .curves import curve_cells, curve_outcome, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cells(scale: str) -> list[Cell]:
    """One curve for each data set and optimizer."""
    return curve_cells("chen2022/fig2", scale)


def run(cell: Cell) -> Outcome:
    """The curve of the best try."""
    return curve_outcome(cell, "loss")


def draw(results: list[Result]) -> Figure:
    """Training loss by epoch."""
    return panels(results, "loss", "training loss", top=3.0)
