"""Table 4: Kernel SGD against SGD, SGD with momentum, and SGD with its own rate in the last layer."""

from __future__ import annotations

from ..cells import Cell, Outcome
from .methods import FIRST_ORDER, FUNCTION_SPACE, LAST_LAYER
from .setting import KINDS, needed
from .training import Plan, searched


def cells(scale: str) -> list[Cell]:
    """One row for each data set and optimizer."""
    seeds = {"smoke": 1, "small": 1, "paper": 5}[scale]
    return [
        Cell(
            "chen2022/table4",
            row=f"{name}, {method}",
            settings={"data": name, "method": method, "scale": scale},
            data=needed(name),
            seeds=seeds,
        )
        for name in KINDS
        for method in (*FIRST_ORDER, LAST_LAYER, FUNCTION_SPACE)
    ]


def run(cell: Cell) -> Outcome:
    """Test accuracy and time."""
    best = searched(Plan(cell.settings["data"], cell.settings["method"], cell.settings["scale"], cell.seed))
    return Outcome(values={"test accuracy": best.test, "time": best.seconds}, note=best.note())
