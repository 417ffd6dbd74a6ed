"""Figure 2(c): a table of test accuracy by step on MNIST, and on digits, which need no download."""

from __future__ import annotations

from ..cells import Cell, Outcome
from .curves import training
from .setting import PLAIN, curve_cells


def cells(scale: str) -> list[Cell]:
    """One training for each embedding; its steps are the columns."""
    found = curve_cells("spectral2019/fig2c", ("mnist", "digits"), PLAIN, scale)
    return [
        Cell(cell.entry, row=f"{cell.column}, {cell.row}", settings=cell.settings, data=cell.data, seeds=cell.seeds)
        for cell in found
    ]


def run(cell: Cell) -> Outcome:
    """Accuracy in per cent after 1, 5, 20, 100 steps and at the end."""
    accuracy = training(cell).accuracy
    steps = [step for step in (1, 5, 20, 100) if step < len(accuracy) - 1] + [len(accuracy) - 1]
    return Outcome(values={f"step {step}": 100 * accuracy[step] for step in steps})
