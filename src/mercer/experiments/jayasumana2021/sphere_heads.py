"""Heads without a network on the sphere of Appendix B: for Table 1 and Figure 1."""

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

__all__ = ["SIZES", "fit_on_sphere", "sphere_of"]

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 100, "epochs": 2, "batch": 50, "seeds": 1, "bayes_samples": 1000, "lr": 0.03},
    "small": {"rows": 5000, "epochs": 10, "batch": 256, "seeds": 10, "bayes_samples": 50_000, "lr": 0.03},
    "paper": {"rows": 5000, "epochs": 100, "batch": 128, "seeds": 10, "bayes_samples": 200_000, "lr": 0.03},
}


def sphere_of(settings: Mapping[str, Any], seed: int) -> Sphere:
    """The set of this seed."""
    return sphere(settings["rows"], settings["rows"], seed=seed)


def fit_on_sphere(name: str, drawn: Sphere, settings: Mapping[str, Any], seed: int) -> nn.Module:
    """Train one head by Adam with a one-cycle learning rate; the recommended ones start from k-means."""
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
    if name == "Ours":
        return KernelClassifier(3, 2, RadialSeries(init="ones", indicators="exact"))
    basis = "gegenbauer" if "Gegenbauer" in name else "monomial"
    return KernelClassifier(3, 2, RadialSeries(basis=basis), prototypes=10, bias=True)
