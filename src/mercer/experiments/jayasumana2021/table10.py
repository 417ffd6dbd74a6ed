"""Table 10: the squared loss with and without a kernelised head (Appendix D.3)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell
from .trained import STAND_IN, picture_cell
from .trained import run_pictures as run

__all__ = ["cells", "run"]

_DEPTHS = {"smoke": (8,), "small": (8,), "paper": (8, 14, 20, 32, 44, 56)}
_HEADS = {"Squared loss": "Softmax", "Ours": "Ours"}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Both heads on CIFAR-10 and, from small scale on, on CIFAR-100 or its subset."""
    sets = {"CIFAR-10": "cifar10"} if scale == "smoke" else {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    return [
        picture_cell(
            "table10", scale, head, row=f"ResNet-{depth}", column=f"{name}, {column}", dataset=dataset, loss="squared",
            network=f"ResNet-{depth}" if scale == "paper" else STAND_IN,
        )
        for depth in _DEPTHS[scale]
        for column, dataset in sets.items()
        for name, head in _HEADS.items()
    ]  # fmt: skip
