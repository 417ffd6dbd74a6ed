"""Heads on frozen embeddings: the transfer setting, where the backbone cannot bend to the head."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels import RadialSeries
from ...nn import KernelClassifier
from .heads import make_head

__all__ = ["FROZEN_HEADS", "fit_head"]

FROZEN_HEADS = ("Softmax", "Softmax, scale 10", "LIN", "SOP", "Kernelized", "Mercer's head", "MLP 256")
_DECAY = 1e-4
_ROWS_OF_A_PROTOTYPE = 60  # by a held-out quarter of CIFAR-100's superclasses: fewer rows each overfit


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
