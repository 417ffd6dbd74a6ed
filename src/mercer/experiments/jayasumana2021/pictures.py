"""CIFAR pictures, and the training of Appendix A: SGD, linear warm-up, cosine decay, flip and crop."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data
from ...nn import KernelClassifier
from ..backbones import normalised

__all__ = ["Pictures", "accuracy", "cifar", "fit", "logits", "squared_loss"]

_WARM_UP = 0.1  # share of the steps
_WEIGHT_DECAY = 1e-4
Pictures = tuple[Tensor, Tensor, Tensor, Tensor]  # training pictures and labels, test pictures and labels
Loss = Callable[[Tensor, Tensor], Tensor]


@lru_cache(maxsize=2)
def cifar(name: str, rows: int | None, test_rows: int | None) -> Pictures:
    """``"cifar10"``, ``"cifar100"`` or ``"cifar100_subset"``, its first rows, normalised as ImageNet's pictures are."""
    found = data.load(name, rows=None if rows is None else (rows, test_rows or rows))
    return normalised(found.x_train), found.y_train, normalised(found.x_test), found.y_test


def synthetic_pictures(n: int, classes: int, seed: int) -> Pictures:
    """Noise around one pattern for each class: what the smoke scale trains on, where there is no data folder."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(classes, 3, 32, 32, generator=generator)
    y = torch.arange(2 * n) % classes
    x = patterns[y] + torch.randn(2 * n, 3, 32, 32, generator=generator)
    return x[:n], y[:n], x[n:], y[n:]


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    generator: torch.Generator,
    lr: float = 0.1,
    batch: int = 128,
    loss: Loss = F.cross_entropy,
    augment: bool = True,
) -> list[float]:
    """Train in place; the mean loss of every epoch. ``y`` holds labels, or a teacher's logits.

    Raises:
        FloatingPointError: the loss became NaN or infinite.
    """
    optimizer = torch.optim.SGD(_groups(model), lr, momentum=0.9, weight_decay=_WEIGHT_DECAY)
    per_epoch = max(1, len(x) // batch)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(epochs * per_epoch))
    model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    losses = []
    for _ in range(epochs):
        total = 0.0
        order = torch.randperm(len(x), generator=generator)
        for rows in order[: per_epoch * batch].split(batch):
            pictures = _augmented(x[rows], generator) if augment else x[rows]
            value = loss(model(pictures.contiguous(memory_format=torch.channels_last)), y[rows])
            if not math.isfinite(value.item()):
                raise FloatingPointError(f"loss became {value.item()} at step {scheduler.last_epoch}")
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            scheduler.step()
            total += value.item()
        losses.append(total / per_epoch)
    return losses


@torch.no_grad()
def logits(model: nn.Module, x: Tensor, *, batch: int = 500) -> Tensor:
    """Logits of all pictures in ``eval`` mode."""
    model.eval()
    parts = [model(part.contiguous(memory_format=torch.channels_last)) for part in x.split(batch)]
    return torch.cat(parts)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Per cent of pictures classified rightly."""
    return 100 * float((logits(model, x).argmax(1) == y).double().mean())


def squared_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance to one-hot targets (Hui and Belkin, 2020; Table 10)."""
    return (scores - F.one_hot(labels, scores.shape[1]).to(scores.dtype)).square().mean()


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """All parameters; those of a kernelised head by its own groups, so that alpha is decayed too (Appendix A)."""
    heads = [m for m in model.modules() if isinstance(m, KernelClassifier)]
    own = {id(p) for head in heads for p in head.parameters()}
    rest = [p for p in model.parameters() if id(p) not in own and p.requires_grad]
    return [{"params": rest}, *(group for head in heads for group in head.param_groups(weight_decay=_WEIGHT_DECAY))]


def _schedule(steps: int) -> Callable[[int], float]:
    warm = max(1, round(_WARM_UP * steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return factor


def _augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored by chance and moved by up to four pixels, zeros coming in: one move for each picture."""
    n, size = len(x), x.shape[-1]
    flipped = torch.rand(n, generator=generator) < 0.5
    x = torch.where(flipped[:, None, None, None], x.flip(3), x)
    padded = F.pad(x, (4, 4, 4, 4))
    down, right = torch.randint(9, (2, n, 1), generator=generator)
    rows = (down + torch.arange(size))[:, None, :, None]  # (n, 1, size, 1)
    columns = (right + torch.arange(size))[:, None, None, :]
    return padded[torch.arange(n)[:, None, None, None], torch.arange(x.shape[1])[None, :, None, None], rows, columns]
