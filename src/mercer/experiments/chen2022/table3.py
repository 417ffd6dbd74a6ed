"""Table 3: Kernel SGD against second-order optimizers, and against SGD with its own rate in the last layer."""

from __future__ import annotations

from ..cells import Cell, Outcome
from .methods import FUNCTION_SPACE, LAST_LAYER, SECOND_ORDER
from .setting import KINDS, needed
from .training import Plan, searched


def cells(scale: str) -> list[Cell]:
    """One row for each data set and optimizer."""
    seeds = {"smoke": 1, "small": 1, "paper": 5}[scale]
    return [
        Cell(
            "chen2022/table3",
            row=f"{name}, {method}",
            settings={"data": name, "method": method, "scale": scale},
            data=needed(name),
            seeds=seeds,
        )
        for name in KINDS
        for method in (*SECOND_ORDER, LAST_LAYER, FUNCTION_SPACE)
    ]


def run(cell: Cell) -> Outcome:
    """Accuracies, time, and the memory of the optimizer's state."""
    best = searched(Plan(cell.settings["data"], cell.settings["method"], cell.settings["scale"], cell.seed))
    names = ("training accuracy", "test accuracy", "time", "Hessian")
    numbers = (best.train, best.test, best.seconds, best.state_mb)
    return Outcome(values=dict(zip(names, numbers, strict=True)), note=best.note())
