"""Table 1: Kernel SGD in the last layer or in all layers."""

from __future__ import annotations

from ..cells import Cell, Outcome
from .setting import KINDS, needed
from .training import Plan, searched

LAYERS = {"last": "last layer", "all": "all layers"}


def cells(scale: str) -> list[Cell]:
    """One cell for each data set: both trainings."""
    seeds = {"smoke": 1, "small": 1, "paper": 5}[scale]
    return [
        Cell("chen2022/table1", row=name, settings={"data": name, "scale": scale}, data=needed(name), seeds=seeds)
        for name in KINDS
    ]


def run(cell: Cell) -> Outcome:
    """Test accuracy and time of both."""
    values: dict[str, float] = {}
    notes = []
    for layers, title in LAYERS.items():
        best = searched(Plan(cell.settings["data"], "ours", cell.settings["scale"], cell.seed, layers=layers))
        values |= {f"test accuracy, {title}": best.test, f"time, {title}": best.seconds}
        notes.append(f"{title}: {best.note()}")
    return Outcome(values=values, note=" ".join(notes))
