"""Experiment 1: the random and the adversarial set, fitted layer by layer with W_s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import figures
from ..cells import Cell, Outcome
from ..results import Result
from .sets import fold
from .solved import passed_through, read_out, solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY = "masoomi2020/exp1"
ROWS = {"random": "random", "adver": "adversarial"}


def cells(scale: str) -> list[Cell]:
    """Both sets; the seeds are the folds that stay out."""
    seeds = {"smoke": 1, "small": 5, "paper": 10}[scale]
    return [Cell(ENTRY, row=row, seeds=seeds, settings={"set": name}) for name, row in ROWS.items()]


def run(cell: Cell) -> Outcome:
    """Training accuracy and H of every layer; the value is the last layer's accuracy."""
    name = cell.settings["set"]
    parts = fold(name, cell.seed % 10)
    chain = solve("W_s", name, parts.x_train, parts.y_train, parts.c, cell.seed)
    outputs = passed_through(chain, parts.x_train)
    accuracy = [read_out(z, parts.y_train, z, parts.y_train, parts.c).train for z in outputs]
    index = [float(i + 1) for i in range(len(outputs))]
    curves = {
        "accuracy": {"x": index, "y": accuracy},
        "H": {"x": index, "y": [record.hsic for record in chain.history]},
    }
    perfect = next((i for i, value in zip(index, accuracy, strict=True) if value == 1.0), None)
    note = f"Perfect from layer {perfect:.0f} on." if perfect else "Never perfect."
    values = {"layers": index[-1], "sigma": min(record.bandwidth for record in chain.history)}
    return Outcome(value=accuracy[-1], values=values, curves=curves, note=note)


def draw(results: list[Result]) -> Figure:
    """Training accuracy by layer."""
    curves = {result.row: result.curves["accuracy"] for result in results if result.seed == 0}
    return figures.lines(curves, x_label="layer", y_label="training accuracy", title="W_s on sets made to deceive")
