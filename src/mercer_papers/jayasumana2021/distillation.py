"""Table 2: distillation of a ResNet into a LeNet-5 with either head (Section 6.4)."""

from __future__ import annotations

from functools import partial

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
    teacher = _teacher(s["teacher"], s["classes"], x, y, s, cell.seed)
    targets = logits(teacher, x)
    student = build("LeNet-5", s["head"], s["classes"])
    # The gradient shrinks as 1 / T^2; the factor lets one learning rate serve for labels and teachers.
    loss = partial(_scaled_distillation, temperature=_TEMPERATURE)
    generator = torch.Generator().manual_seed(cell.seed)
    fit(student, x, targets, epochs=s["epochs"], batch=s["batch"], lr=s["lr"], generator=generator, loss=loss,
        augment=None)  # fmt: skip
    theirs = accuracy(teacher, x_test, y_test)
    note = f"Teacher: {s['teacher']}, {theirs:.2f} % itself; {len(x)} pictures, {s['epochs']} epochs."
    return Outcome(value=accuracy(student, x_test, y_test), values={"teacher accuracy": theirs}, note=note)


def _scaled_distillation(student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    return temperature**2 * distillation_loss(student, teacher, temperature)


def _teacher(kind: str, classes: int, x: Tensor, y: Tensor, settings: object, seed: int) -> nn.Module:
    if kind == "published ResNet-20":
        return published_resnet20()
    model = build("ResNet-56" if kind == "trained" else STAND_IN, "Softmax", classes)
    if kind == "trained":
        fit(model, x, y, epochs=450, generator=torch.Generator().manual_seed(seed))
    return model
