"""Table 1: the complexity y^T H^-1 y of two classes under each kernel (spectral2019, Eq. 5-6)."""

from __future__ import annotations

import torch

from ...spectral import analyze
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .setting import COLUMNS, gram_kernel, pair

ROWS = (
    "gamma 0.1, exact",
    "gamma 1, exact",
    "gamma 10, exact",
    "gamma 1, RFF 500",
    "gamma 1, RFF 1000",
    "gamma 1, RFF 3072",
    "gamma 1, RFF 10000",
    "no kernel",
)
LIMIT = {"smoke": 150, "small": None, "paper": None}  # rows of a set; the paper's own are all of both classes
TOLERANCE = 1e-5


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every kernel on MNIST and CIFAR-10, and on scikit-learn's digits, which need no download."""
    return [
        Cell(
            "spectral2019/table1",
            row=row,
            column=COLUMNS[name],
            data=() if name == "digits" else (name,),
            seeds=(3 if scale == "paper" else 1) if "RFF" in row else None,
            settings={"set": name, "rows": LIMIT[scale], "tolerance": TOLERANCE},
        )
        for name in ("mnist", "cifar10", "digits")
        for row in ROWS
    ]


def run(cell: Cell) -> Outcome:
    """The complexity of one kernel on one set, with the lower end of its bracket."""
    generator = torch.Generator().manual_seed(cell.seed)
    both = pair(cell.settings["set"], cell.settings["rows"])
    kernel, x = gram_kernel(cell.row, both.x, generator)
    spectrum = analyze(kernel, x, both.y, tolerance=cell.settings["tolerance"])
    value = spectrum.complexity
    note = f"{len(x)} rows."
    return Outcome(value=value, values={"bound": spectrum.bound}, note=note)
