"""Figure 2(c): a table of test accuracy by step on MNIST, on all its test rows of both classes."""

from __future__ import annotations

from dataclasses import replace

from ..catalogue import Entry
from ..cells import Cell, Outcome
from .curves import training
from .setting import PLAIN, curve_cells

TEST = {"smoke": 40, "small": 2115, "paper": 2115}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One training for each embedding; its steps are the columns."""
    found = curve_cells("spectral2019/fig2c", ("mnist",), PLAIN, scale)
    return [replace(cell, column="", settings={**cell.settings, "test": TEST[scale]}) for cell in found]


def run(cell: Cell) -> Outcome:
    """Accuracy in per cent after 1, 5, 20, 100 steps and at the end."""
    accuracy = training(cell).accuracy
    steps = [step for step in (1, 5, 20, 100) if step < len(accuracy) - 1] + [len(accuracy) - 1]
    return Outcome(values={f"step {step}": 100 * accuracy[step] for step in steps})
