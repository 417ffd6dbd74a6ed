"""Figure 1(b): training loss by step on CIFAR-10."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .curves import outcome
from .drawing import by_step
from .setting import PLAIN, curve_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One training for each embedding."""
    return curve_cells("spectral2019/fig1b", ("cifar10",), PLAIN, scale)


def run(cell: Cell) -> Outcome:
    """The training loss / n by step."""
    return outcome(cell, "loss")


def draw(results: list[Result]) -> Figure:
    """The training loss / n against the step."""
    return by_step(results, "loss", "training loss / n", log=True)
