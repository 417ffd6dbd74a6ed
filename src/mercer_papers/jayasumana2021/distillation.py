"""Table 2: distillation of a ResNet into a LeNet-5 with either head (Section 6.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mercer.nn import distillation_loss

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import published_resnet20
from .heads import build
from .trained import SIZES, STAND_IN, accuracy, fit, logits, pictures_of

_TEMPERATURE = 20.0


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The students of one teacher; CIFAR-100 waits for a teacher of its own, at paper scale."""
    made_up = scale == "smoke"
    sets = {"CIFAR-10": ("cifar10", 10)} | ({"CIFAR-100": ("cifar100", 100)} if scale == "paper" else {})
    return [
        Cell(
            entry.id, row=row, column=head, data=() if made_up else (name,), seeds=1,
            settings={**SIZES[scale], "head": head, "set": "synthetic" if made_up else name, "classes": classes,
                      "lr": 0.05,
                      "teacher": "fresh" if made_up else "trained" if scale == "paper" else "published ResNet-20"},
        )
        for row, (name, classes) in sets.items()
        for head in ("Softmax", "Softmax, scale 10", "Kernelized")
    ]  # fmt: skip


def run(cell: Cell) -> Outcome:
    """The student learns from the teacher's softened logits alone; the teacher sees each picture once, unmoved."""
    s = cell.settings
    torch.manual_seed(cell.seed)
    x, y, x_test, y_test = pictures_of(s, cell.seed, cell.device)
    if s["teacher"] == "published ResNet-20":
        teacher: nn.Module = published_resnet20()
    else:
        trained = s["teacher"] == "trained"
        teacher = build("ResNet-56" if trained else STAND_IN, "Softmax", s["classes"])
        if trained:
            fit(teacher, x, y, epochs=450, generator=torch.Generator().manual_seed(cell.seed))
    targets = logits(teacher, x)
    student = build("LeNet-5", s["head"], s["classes"])

    def loss(outputs: Tensor, softened: Tensor) -> Tensor:
        # the gradient shrinks as 1 / T^2; the factor lets one learning rate serve for labels and teachers
        return _TEMPERATURE**2 * distillation_loss(outputs, softened, _TEMPERATURE)

    generator = torch.Generator().manual_seed(cell.seed)
    fit(student, x, targets, epochs=s["epochs"], batch=s["batch"], lr=s["lr"], generator=generator, loss=loss,
        augment=None)  # fmt: skip
    theirs = accuracy(teacher, x_test, y_test)
    note = f"Teacher: {s['teacher']}, {theirs:.2f} % itself; {len(x)} pictures, {s['epochs']} epochs."
    return Outcome(value=accuracy(student, x_test, y_test), values={"teacher accuracy": theirs}, note=note)
