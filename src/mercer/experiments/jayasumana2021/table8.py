"""Table 8: five heads on VGG-16 and DenseNet-40-12 (Appendix D.1)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell
from .heads import HEADS
from .trained import picture_cell
from .trained import run_pictures as run

__all__ = ["cells", "run"]


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Small networks of both kinds stand in below paper scale."""
    small = scale != "paper"
    networks = {"VGG-16": "Small VGG" if small else "VGG-16", "DenseNet": "Small DenseNet" if small else "DenseNet"}
    sets = {"CIFAR-10": "cifar10"} if small else {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    return [
        picture_cell("table8", scale, head, row=row, column=f"{head}, {column}", network=network, dataset=dataset)
        for row, network in networks.items()
        for column, dataset in sets.items()
        for head in HEADS
    ]
