"""The figures that are curves over the steps of one training: cells, outcome and picture."""

from __future__ import annotations

from ..cells import Cell, Outcome
from .setting import Trained, trained

FIELDS = {"loss": "training loss", "test_loss": "test loss", "accuracy": "test accuracy"}


def training(cell: Cell) -> Trained:
    """The training that a cell names."""
    s = cell.settings
    sizes = (s[name] for name in ("rows", "test", "width", "steps", "units", "epochs"))
    return trained(s["set"], s["embedding"], *sizes, cell.seed)


def outcome(cell: Cell, field: str) -> Outcome:
    """One field of the training by step; for the training loss, with what the spectrum predicted."""
    result = training(cell)
    y: list[float] = getattr(result, field)
    curves = {field: {"x": [float(step) for step in range(len(y))], "y": y}}
    values = {"laziness": result.laziness}
    note = f"{FIELDS[field]} after {len(y) - 1} steps"
    if field == "loss":
        curves["predicted"] = {"x": curves[field]["x"], "y": result.predicted}
        values["predicted"] = result.predicted[-1]
        note += f"; predicted {result.predicted[-1]:.3g}, laziness {result.laziness:.2g}"
    return Outcome(value=y[-1], values=values, curves=curves, note=note + ".")
