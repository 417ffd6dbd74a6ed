"""Heads trained on frozen embeddings or feature maps: the rate is chosen on validation rows, other rows score."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import metrics
from mercer.nn import CosineClassifier, KernelClassifier, SecondOrderPooling

from .. import data
from ..cells import MissingPackage
from ..jayasumana2021.sentences import encode
from ..rivals import EfficientProbing

RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
PROBING = "efficient probing, authors' training"  # the one head that is not trained as the others are
PROBING_RATES = (0.5, 1.0, 1.5, 3.0, 6.0, 12.0)  # for 256 rows; the authors search 0.1 to 1.5
PROBING_EPOCHS, PROBING_WARM_UP = 90, 10


@dataclass(frozen=True)
class Rows:
    """Embeddings ``(n, d)``, or maps ``(n, s, d)`` of s places, standardised by the training rows, in three parts.

    Args:
        name: Name of the set.
        parts: (embeddings, labels) to train on, to choose the rate by, to score.
        classes: c.
        units: Shared units, which set the size of the MLP too.
        epochs: Passes over the training rows.
        batch: Rows of a step.
        seeds: Fits that are scored.
    """

    name: str
    parts: tuple[tuple[Tensor, Tensor], ...]
    classes: int
    units: int
    epochs: int
    batch: int
    seeds: int = 5


@dataclass(frozen=True)
class Scores:
    """Of the rows that score, a number for each seed."""

    accuracy: list[float]
    nll: list[float]
    ece: list[float]
    rate: float
    parameters: int


@lru_cache(maxsize=2)
def picture_embeddings(classes: int) -> Rows:
    """ResNet-20 embeddings of the 50,000 training pictures of CIFAR-100: 30,000 to train, 10,000, 10,000."""
    path = Path(os.environ.get("MERCER_DATA", "")) / "cifar100_resnet20_embeddings.npz"
    if not path.is_file():
        raise data.MissingData(f"{path.name} is not in the folder that MERCER_DATA names.")
    with np.load(path, allow_pickle=False) as arrays:
        z = torch.from_numpy(arrays["embeddings"].astype(np.float32))
        y = torch.from_numpy(arrays["coarse" if classes == 20 else "fine"].astype(np.int64))
    parts = in_parts(z, y, (30_000, 10_000, 10_000))
    return Rows(f"{classes} classes of CIFAR-100", parts, classes, 64 if classes == 20 else 128, 8, 256)


@lru_cache(maxsize=1)
def sentence_embeddings() -> Rows:
    """MiniLM embeddings of 9,000 sentences of SST-2: 5,000 to train, 2,000, 2,000; kept in the temporary folder."""
    path = Path(tempfile.gettempdir()) / "mercer_bench_sst2.safetensors"
    if not path.is_file():
        sentences = data.load("sst2")
        some = torch.randperm(len(sentences.x_train), generator=torch.Generator().manual_seed(0))[:9000]
        try:
            z = encode([sentences.x_train[i] for i in some.tolist()])
        except MissingPackage as error:
            raise data.MissingData(str(error)) from error
        safetensors.torch.save_file({"z": z, "y": sentences.y_train[some]}, path)
    tensors = safetensors.torch.load_file(path)
    return Rows("SST-2", in_parts(tensors["z"], tensors["y"], (5000, 2000, 2000)), 2, 64, 15, 64)


@lru_cache(maxsize=2)
@torch.no_grad()
def picture_maps(name: str) -> Rows:
    """ResNet-20's last maps, 64 places of 64 channels, of 3,000 pictures: 1,500 to train, 500, 1,000."""
    pictures = data.load(name, rows=(2000, 1000))
    x, y = torch.cat((pictures.x_train, pictures.x_test)), torch.cat((pictures.y_train, pictures.y_test))
    if x.shape[1] == 1:  # gray digits, with a margin up to 32 x 32
        x = F.pad(x, [(32 - x.shape[3]) // 2] * 4).expand(-1, 3, -1, -1)
    model = data.published_resnet20().eval()
    before_pooling = nn.Sequential(*list(model.children())[:-2])
    z = torch.cat([before_pooling(batch).flatten(2).mT for batch in data.normalised(x).split(250)])
    classes = int(y.max()) + 1
    return Rows(f"maps of {name}", in_parts(z, y, (1500, 500, 1000)), classes, 128, 10, 64, seeds=3)


def in_parts(z: Tensor, y: Tensor, sizes: tuple[int, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Random rows in parts of these sizes, standardised by the first."""
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(100))
    pieces = order[: sum(sizes)].split(list(sizes))
    first = z[pieces[0]].flatten(0, -2)
    mean, deviation = first.mean(0), first.std(0).clamp(min=1e-6)
    return tuple(((z[rows] - mean) / deviation, y[rows]) for rows in pieces)


def _auto(rows: Rows) -> nn.Module:
    head = KernelClassifier(rows.parts[0][0].shape[1], rows.classes, prototypes="auto")
    return head.init_from(*rows.parts[0], generator=torch.Generator().manual_seed(0))


def _shared(rows: Rows) -> nn.Module:
    return KernelClassifier(rows.parts[0][0].shape[-1], rows.classes, shared=rows.units)


def _mlp(rows: Rows) -> nn.Module:
    width, classes = rows.parts[0][0].shape[1], rows.classes
    size = sum(p.numel() for p in _shared(rows).parameters())
    hidden = round((size - classes) / (width + classes + 1))
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class _Placed(nn.Module):
    """A head that reads every place of a map, as ``kernelize(place="before_pooling")`` has it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, z: Tensor) -> Tensor:  # (n, s, d) -> (n, c)
        logits: Tensor = self.head.at_places(z.mean(1), z)  # type: ignore[operator]
        return logits


class _Pooled(nn.Module):
    """A head on the mean over places."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, z: Tensor) -> Tensor:  # (n, s, d) -> (n, c)
        logits: Tensor = self.head(z.mean(1))
        return logits


def _width(rows: Rows) -> int:
    return rows.parts[0][0].shape[-1]


PLACED: dict[str, Callable[[Rows], nn.Module]] = {
    "before pooling": lambda rows: _Placed(_shared(rows)),
    "linear on the mean": lambda rows: _Pooled(nn.Linear(_width(rows), rows.classes)),
    "shared units on the mean": lambda rows: _Pooled(_shared(rows)),
    "efficient probing": lambda rows: _Placed(EfficientProbing(_width(rows), rows.classes, queries=8)),
    "efficient probing, all channels": lambda rows: _Placed(
        EfficientProbing(_width(rows), rows.classes, queries=4, split=False)
    ),
    PROBING: lambda rows: _Placed(EfficientProbing(_width(rows), rows.classes, queries=32, values=True)),
    "second-order pooling": lambda rows: _Placed(SecondOrderPooling(_width(rows), rows.classes, rank=32)),
}
HEADS: dict[str, Callable[[Rows], nn.Module]] = {
    "linear": lambda rows: nn.Linear(rows.parts[0][0].shape[1], rows.classes),
    "cosine": lambda rows: CosineClassifier(rows.parts[0][0].shape[1], rows.classes),
    "default": lambda rows: KernelClassifier(rows.parts[0][0].shape[1], rows.classes),
    "auto": _auto,
    "shared": _shared,
    "MLP of equal parameters": _mlp,
}
_MAKERS = HEADS | PLACED


def rates_of(name: str) -> tuple[float, ...]:
    """The rates that a head is tried at."""
    return PROBING_RATES if name == PROBING else RATES


@cache
def _chosen_rate(name: str, rows: Callable[[], Rows]) -> float:
    """The rate whose head has the least loss on the validation rows."""
    z, y = rows().parts[1]

    def loss(rate: float) -> float:
        head = _fitted(name, rows(), rate, seed=99)
        with torch.no_grad():
            return float(F.cross_entropy(head(z), y))

    return min(rates_of(name), key=loss)


@cache
def scores(name: str, rows: Callable[[], Rows]) -> Scores:
    """Choose the rate, then a fit for each seed; kept, so that three measures of one fit cost one fit."""
    rate, found = _chosen_rate(name, rows), Scores([], [], [], 0.0, 0)
    z, y = rows().parts[2]
    for seed in range(rows().seeds):
        head = _fitted(name, rows(), rate, seed)
        with torch.no_grad():
            probabilities = head(z).softmax(1)
        found.accuracy.append(100 * metrics.accuracy(probabilities, y))
        found.nll.append(metrics.nll(probabilities, y))
        found.ece.append(metrics.ece(probabilities, y))
    size = sum(p.numel() for p in head.parameters())
    return Scores(found.accuracy, found.nll, found.ece, rate, size)


def _fitted(name: str, rows: Rows, rate: float, seed: int) -> nn.Module:
    """AdamW with a one-cycle rate and weight decay 1e-4 on everything, as a plain training loop has it."""
    z, y = rows.parts[0]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    head = _MAKERS[name](rows)
    if name == PROBING:
        _train_by_lars(head, rows, rate, generator)
        return head.eval()
    optimizer = torch.optim.AdamW(head.parameters(), rate, weight_decay=1e-4)
    steps = rows.epochs * math.ceil(len(z) / rows.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for _ in range(rows.epochs):
        for batch in torch.randperm(len(z), generator=generator).split(rows.batch):
            optimizer.zero_grad()
            F.cross_entropy(head(z[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    return head


def _train_by_lars(head: nn.Module, rows: Rows, rate: float, generator: torch.Generator) -> None:
    """LARS as efficient probing's published code trains: momentum 0.9, no weight decay, 90 epochs, half a cosine.

    The rate is for 256 rows, and a step has as many rows as the other heads' steps. A tensor of several dimensions
    moves by a thousandth of its norm at rate 1, whatever the gradient's.
    """
    z, y = rows.parts[0]
    parameters = list(head.parameters())
    momenta = [torch.zeros_like(p) for p in parameters]
    steps = len(z) // rows.batch  # of an epoch; the last rows are left out
    for epoch in range(PROBING_EPOCHS):
        order = torch.randperm(len(z), generator=generator)
        for step in range(steps):
            batch = order[step * rows.batch : (step + 1) * rows.batch]
            gradients = torch.autograd.grad(F.cross_entropy(head(z[batch]), y[batch]), parameters)
            # Warm up in a straight line, then half a cosine down to 0.
            time = epoch + step / steps
            share = time / PROBING_WARM_UP
            if time >= PROBING_WARM_UP:
                done = (time - PROBING_WARM_UP) / (PROBING_EPOCHS - PROBING_WARM_UP)
                share = 0.5 * (1 + math.cos(math.pi * done))
            with torch.no_grad():
                for p, gradient, momentum in zip(parameters, gradients, momenta, strict=True):
                    scale, size, length = 1.0, float(p.norm()), float(gradient.norm())
                    if p.ndim > 1 and size > 0 and length > 0:
                        scale = 0.001 * size / length
                    momentum.mul_(0.9).add_(gradient, alpha=scale)
                    p.sub_(momentum, alpha=share * rate * rows.batch / 256)
