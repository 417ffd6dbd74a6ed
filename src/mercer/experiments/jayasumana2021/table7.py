"""Table 7: what normalising embeddings and weights does to softmax (Section 7.2)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell
from .trained import picture_cell
from .trained import run_pictures as run

__all__ = ["cells", "run"]

_ROWS = {
    "No normalization": "Unnormalized",
    "Embeddings normalized": "Softmax",
    "Embeddings and weights normalized, fixed T": "Fixed T",
    "Embeddings and weights normalized, learned T": "LIN",
    "Ours": "Ours",
}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """CIFAR-100 with ResNet-56 at paper scale, the named stand-in below."""
    network, dataset = ("ResNet-56", "cifar100") if scale == "paper" else ("Small ResNet", "cifar10")
    return [
        picture_cell("table7", scale, head, row=row, network=network, dataset=dataset) for row, head in _ROWS.items()
    ]
