"""Table 1: heads alone on the synthetic sphere, beside the Bayes rule (Section 6.1, Appendix B)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ...data import Sphere, sphere
from ...kernels import RadialSeries
from ...nn import KernelClassifier
from ..catalogue import Entry
from ..cells import Cell, Outcome

__all__ = ["BAYES", "SIZES", "cells", "fit_on_sphere", "run", "sphere_of"]

BAYES = "Bayes optimal"
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 100, "epochs": 2, "batch": 50, "bayes_samples": 1000, "lr": 0.03},
    "small": {"rows": 5000, "epochs": 10, "batch": 256, "bayes_samples": 50_000, "lr": 0.03},
    "paper": {"rows": 5000, "epochs": 100, "batch": 128, "bayes_samples": 200_000, "lr": 0.03},
}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Several draws of the centres: the paper prints one, and its difficulty depends on them."""
    return [
        Cell(
            entry.id,
            row=head,
            column="accuracy",
            settings={**SIZES[scale], "head": head},
            seeds={"smoke": 1, "small": 3, "paper": 10}[scale],
        )
        for head in entry.run["heads"]
    ]


def run(cell: Cell) -> Outcome:
    """Test accuracy on the centres of this seed."""
    drawn = sphere_of(cell.settings, cell.seed)
    if cell.settings["head"] == BAYES:
        best, error = drawn.bayes_accuracy(cell.settings["bayes_samples"])
        return Outcome(value=100 * best, values={"standard error": 100 * error})
    head = fit_on_sphere(cell.settings["head"], drawn, cell.settings, cell.seed)
    right = (head(drawn.x_test).argmax(1) == drawn.y_test).double().mean()
    return Outcome(value=100 * right.item(), note=f"Our own centres, seed {cell.seed}.")


def sphere_of(settings: Mapping[str, Any], seed: int) -> Sphere:
    """The set of this seed."""
    return sphere(settings["rows"], settings["rows"], seed=seed)


def fit_on_sphere(name: str, drawn: Sphere, settings: Mapping[str, Any], seed: int) -> nn.Module:
    """Train one head by Adam with a one-cycle learning rate; those of several prototypes start from k-means."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    head = _head(name)
    if isinstance(head, KernelClassifier) and head.prototypes > 1:
        head.init_from(drawn.x_train, drawn.y_train, generator=generator)
    x, y, batch = drawn.x_train, drawn.y_train, settings["batch"]
    optimizer = torch.optim.Adam(head.parameters(), settings["lr"])
    steps = settings["epochs"] * math.ceil(len(x) / batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings["lr"], total_steps=steps, pct_start=0.1)
    for _ in range(settings["epochs"]):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(head(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss became {loss.item()}")
    return head


def _head(name: str) -> nn.Module:
    if name == "Softmax":
        return nn.Linear(3, 2)
    if name.startswith("Kernelized"):
        kernel = RadialSeries(init="ones", indicators="exact")
        return KernelClassifier(3, 2, kernel, temperature=kernel.temperature, bias=name.endswith("bias"))
    basis = "gegenbauer" if "Gegenbauer" in name else "monomial"
    return KernelClassifier(3, 2, RadialSeries(basis=basis), prototypes=10, bias=True, temperature=1.0)
