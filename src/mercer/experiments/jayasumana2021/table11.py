"""Table 11: rectified against unrectified embeddings (Appendix D.4)."""

from __future__ import annotations

from ..catalogue import Entry
from ..cells import Cell
from .trained import picture_cell
from .trained import run_pictures as run

__all__ = ["cells", "run"]


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Both heads with the ReLU on the embedding and without it."""
    network, dataset = ("ResNet-56", "cifar100") if scale == "paper" else ("Small ResNet", "cifar10")
    return [
        picture_cell(
            "table11", scale, head, network=network, dataset=dataset, rectify=rectify,
            row=f"{head}, {'rectified' if rectify else 'unrectified'}",
        )
        for head in ("Softmax", "Ours")
        for rectify in (True, False)
    ]  # fmt: skip
