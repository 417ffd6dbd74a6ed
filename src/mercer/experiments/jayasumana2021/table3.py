"""Table 3: five heads on six CIFAR ResNets (Section 6.2)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell
from .heads import HEADS
from .trained import picture_cell
from .trained import run_pictures as run

__all__ = ["cells", "run"]

_DEPTHS = {"smoke": (8,), "small": (8,), "paper": (8, 14, 20, 32, 44, 56)}
_SETS = {"smoke": ("CIFAR-10",), "small": ("CIFAR-10",), "paper": ("CIFAR-10", "CIFAR-100")}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The paper's five heads, and ours as we recommend it."""
    return [
        picture_cell(
            "table3", scale, head, row=f"ResNet-{depth}", column=f"{head}, {name}", network=f"ResNet-{depth}",
            dataset=name.lower().replace("-", ""),
        )
        for depth in _DEPTHS[scale]
        for name in _SETS[scale]
        for head in HEADS
    ]  # fmt: skip
