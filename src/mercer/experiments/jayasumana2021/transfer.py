"""Table 9: transfer of a trained backbone to other classes (Appendix D.2).

The paper fine-tunes an ImageNet ResNet-50 on pets and cars, which are not in the data folder. Below paper scale a
ResNet-20 trained on CIFAR-10 stands in, frozen, with CIFAR-100's twenty superclasses and hundred classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data
from ...data.sources import SOURCES, data_folder, locate
from ...kernels import RadialSeries
from ...modules import embeddings
from ...nn import KernelClassifier
from ...storage import read_npz
from ..backbones import published_resnet20
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .heads import make_head
from .trained import cifar

__all__ = ["cells", "fit_head", "run"]

_HEADS = ("Softmax", "Softmax, scale 10", "LIN", "SOP", "Kernelized", "Mercer's head", "MLP 256")
_DECAY = 1e-4
_ROWS_OF_A_PROTOTYPE = 60  # by a held-out quarter of CIFAR-100's superclasses: fewer rows each overfit
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
        for head in _HEADS
    ]  # fmt: skip


def run(cell: Cell) -> Outcome:
    """Train a head on the frozen embeddings of the training part; accuracy on the test part."""
    if "labels" not in cell.settings:
        raise data.MissingData(f"{cell.row}: Mercer has no loader for this set.")
    z, y, z_test, y_test = _embedded(cell.settings["labels"])
    classes = int(y.max()) + 1
    s = cell.settings
    logits = fit_head(s["head"], z, y, classes, epochs=s["epochs"], seed=cell.seed, device=cell.device)
    right = (logits(z_test).argmax(1) == y_test).double().mean()
    return Outcome(value=100 * float(right), note=f"Stand-in: frozen ResNet-20 of CIFAR-10, {len(z)} rows.")


def fit_head(
    name: str,
    z: Tensor,
    y: Tensor,
    classes: int,
    *,
    epochs: int,
    seed: int,
    lr: float = 0.02,
    batch: int = 64,
    device: str = "cpu",
) -> Callable[[Tensor], Tensor]:
    """Train a head on standardised embeddings by Adam with a one-cycle rate; returns embeddings -> logits.

    Mercer's has as many prototypes as the rows of a class can carry, started by k-means, and a bias.
    """
    mean, deviation = z.mean(0), z.std(0).clamp(min=1e-6)
    scaled = (z - mean) / deviation
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    head = _head(name, z.shape[1], classes, len(z))
    if name == "Mercer's head":
        assert isinstance(head, KernelClassifier)
        head.init_from(scaled, y, generator=generator)
    head.to(device)
    scaled, y = scaled.to(device), y.to(device)
    optimizer = torch.optim.AdamW(head.parameters(), lr, weight_decay=_DECAY)
    steps = epochs * math.ceil(len(z) / batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(z), generator=generator).split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(head(scaled[rows]), y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss became {loss.item()}")

    head.cpu()

    @torch.no_grad()
    def logits(new: Tensor) -> Tensor:
        result: Tensor = head((new - mean) / deviation)
        return result

    return logits


def _head(name: str, width: int, classes: int, n: int) -> nn.Module:
    if name == "MLP 256":
        return nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, classes))
    if name == "Mercer's head":
        prototypes = max(1, min(5, n // (classes * _ROWS_OF_A_PROTOTYPE)))
        return KernelClassifier(width, classes, RadialSeries(), prototypes=prototypes, bias=True, temperature=0.25)
    return make_head(name, width, classes)


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
