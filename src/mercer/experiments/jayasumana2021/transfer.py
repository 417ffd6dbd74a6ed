"""Table 9: transfer of a trained backbone to other classes (Appendix D.2).

The paper fine-tunes an ImageNet ResNet-50 on pets and cars, which are not in the data folder. Below paper scale a
ResNet-20 trained on CIFAR-10 stands in, frozen, with CIFAR-100's twenty superclasses and hundred classes.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ... import data
from ...data.sources import SOURCES, data_folder, locate
from ...modules import embeddings
from ...storage import read_npz
from ..backbones import published_resnet20
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .embedded import FROZEN_HEADS, fit_head
from .pictures import cifar

__all__ = ["cells", "run"]

_PAPER = {"Oxford-IIIT Pets": "oxford_pets", "Stanford Cars": "stanford_cars"}
_STAND_INS = {"CIFAR-100, 20 superclasses": "coarse", "CIFAR-100, 100 classes": "fine"}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every head on both targets; at paper scale the sets are named, and are missing."""
    if scale == "paper":
        settings = {"backbone": "ResNet-50 of ImageNet", "batch": 64}
        return [
            Cell(entry.id, row=row, column=head, settings=settings, data=(name,), seeds=1)
            for row, name in _PAPER.items()
            for head in ("Softmax", "LIN", "SOP", "Kernelized")
        ]
    smoke = scale == "smoke"
    return [
        Cell(
            entry.id, row=row, column=head, data=() if smoke else ("cifar100_subset",),
            seeds=1 if smoke else 3,
            settings={"labels": "synthetic" if smoke else labels, "head": head, "epochs": 2 if smoke else 30},
        )
        for row, labels in _STAND_INS.items()
        for head in FROZEN_HEADS
    ]  # fmt: skip


def run(cell: Cell) -> Outcome:
    """Train a head on the frozen embeddings of the training part; accuracy on the test part."""
    if "labels" not in cell.settings:
        raise data.MissingData(f"{cell.row}: Mercer has no loader for this set.")
    z, y, z_test, y_test = _embedded(cell.settings["labels"])
    classes = int(y.max()) + 1
    logits = fit_head(cell.settings["head"], z, y, classes, epochs=cell.settings["epochs"], seed=cell.seed)
    right = (logits(z_test).argmax(1) == y_test).double().mean()
    return Outcome(value=100 * float(right), note=f"Stand-in: frozen ResNet-20 of CIFAR-10, {len(z)} rows.")


@lru_cache(maxsize=3)
def _embedded(labels: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if labels == "synthetic":
        generator = torch.Generator().manual_seed(0)
        z, y = torch.randn(80, 8, generator=generator), torch.arange(80) % 4
        return z[:40], y[:40], z[40:], y[40:]
    x, y, x_test, y_test = cifar("cifar100_subset", None, None)
    model = published_resnet20()
    z, z_test = (embeddings(model, list(part.split(250)), layer="pool") for part in (x, x_test))
    if labels == "coarse":
        coarse = _coarse_of_fine()
        y, y_test = coarse[y], coarse[y_test]
    return z, y, z_test, y_test


def _coarse_of_fine() -> Tensor:
    found = locate(SOURCES["cifar100_subset"], data_folder(None))
    if found is None:
        raise data.MissingData(data.how_to_get("cifar100_subset"))
    return torch.from_numpy(read_npz(found[0][0], ["coarse_of_fine"])["coarse_of_fine"].astype("int64"))
