"""Table 12: the activation that keeps the kernel's coefficients non-negative (Appendix D.5)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell, Outcome
from .trained import picture_cell, run_pictures

__all__ = ["cells", "run"]


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Each activation with the paper's temperature; ``none`` may diverge, and then says so."""
    network, dataset = ("ResNet-56", "cifar100") if scale == "paper" else ("Small ResNet", "cifar10")
    return [
        picture_cell("table12", scale, f"Ours, {name}", row=name, network=network, dataset=dataset)
        for name in ("sigmoid", "softmax", "relu", "none")
    ]


def run(cell: Cell) -> Outcome:
    """Train; a divergence is the result that the paper reports for ``none``, not an error of ours."""
    try:
        return run_pictures(cell)
    except FloatingPointError as error:
        return Outcome(values={"diverged": 1.0}, note=f"Unstable, as the paper says of no activation: {error}.")
