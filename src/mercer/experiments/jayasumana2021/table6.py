"""Table 6: a learned kernel against fixed kernels in the head (Section 7.1)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell
from .trained import picture_cell
from .trained import run_pictures as run

__all__ = ["cells", "run"]

_ROWS = {
    "Gaussian RBF, fixed sigma": "RBF fixed",
    "Gaussian RBF, learned sigma": "RBF learned",
    "Polynomial, order 10": "Polynomial",
    "MKL": "MKL",
    "Ours": "Ours",
}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """CIFAR-100 with ResNet-56 at paper scale, the named stand-in below."""
    network, dataset = ("ResNet-56", "cifar100") if scale == "paper" else ("Small ResNet", "cifar10")
    return [
        picture_cell("table6", scale, head, row=row, network=network, dataset=dataset) for row, head in _ROWS.items()
    ]
