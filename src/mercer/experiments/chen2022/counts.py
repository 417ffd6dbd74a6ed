"""Table 2: the data sets, counted."""

from __future__ import annotations

from ...data import load
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .sets import KINDS, needed


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One cell for each data set; smoke counts only what needs no download."""
    names = [name for name in KINDS if scale != "smoke" or not needed(name)]
    return [Cell("chen2022/table2", row=name, settings={"data": name}, data=needed(name)) for name in names]


def run(cell: Cell) -> Outcome:
    """Rows of each part, and classes."""
    data = load(cell.settings["data"])
    counts = (len(data.y_train), len(data.y_test), len(data.classes))
    names = ("training instances", "test instances", "classes")
    return Outcome(values=dict(zip(names, map(float, counts), strict=True)), note=data.note)
