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
    sets = {"CIFAR-10": ("cifar10", 10)}
    teacher = {"smoke": "fresh", "small": "published ResNet-20", "paper": "trained"}[scale]
    if scale == "paper":
        sets["CIFAR-100"] = ("cifar100", 100)
    cells = []
    for row, (name, classes) in sets.items():
        for head in ("Softmax", "Softmax, scale 10", "Kernelized"):
            settings = {**SIZES[scale], "head": head, "set": name, "classes": classes, "lr": 0.05, "teacher": teacher}
            if scale == "smoke":
                cells.append(Cell(entry.id, row, head, {**settings, "set": "synthetic"}, seeds=1))
            else:
                cells.append(Cell(entry.id, row, head, settings, (name,), seeds=1))
    return cells


def run(cell: Cell) -> Outcome:
    """The student learns from the teacher's softened logits alone; the teacher sees each picture once, unmoved."""
    s = cell.settings
    torch.manual_seed(cell.seed)
    x, y, x_test, y_test = pictures_of(s, cell.seed, cell.device)
    if s["teacher"] == "published ResNet-20":
        teacher: nn.Module = published_resnet20()
    else:
        teacher = build("ResNet-56" if s["teacher"] == "trained" else STAND_IN, "Softmax", s["classes"])
    if s["teacher"] == "trained":
        fit(teacher, x, y, epochs=450, generator=torch.Generator().manual_seed(cell.seed))
    targets = logits(teacher, x)
    student = build("LeNet-5", s["head"], s["classes"])

    # The gradient shrinks as 1 / T^2; the factor lets one learning rate serve for labels and teachers.
    def loss(scores: Tensor, goals: Tensor) -> Tensor:
        return _TEMPERATURE**2 * distillation_loss(scores, goals, _TEMPERATURE)

    generator = torch.Generator().manual_seed(cell.seed)
    fit(student, x, targets, epochs=s["epochs"], batch=s["batch"], lr=s["lr"], generator=generator, loss=loss,
        augment=None)  # fmt: skip
    teacher_accuracy = accuracy(teacher, x_test, y_test)
    note = f"Teacher: {s['teacher']}, {teacher_accuracy:.2f} % itself; {len(x)} pictures, {s['epochs']} epochs."
    return Outcome(value=accuracy(student, x_test, y_test), values={"teacher accuracy": teacher_accuracy}, note=note)
