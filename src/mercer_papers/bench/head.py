"""The kernelised head against the heads it replaces: accuracy and calibration on frozen embeddings, CPU time of a step.

Before pooling, on feature maps, its rivals are efficient probing (learned queries) and second-order pooling.

Goals are ratios of the peer's time over ours: 1 / 1.35 at (batch 1024, width 768, classes 10000) says that ours may
take 1.35 times as long as a linear layer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.kernels import RadialSeries
from mercer.nn import CosineClassifier, KernelClassifier

from .head_fits import HEADS, PLACED, Rows, Scores, picture_embeddings, picture_maps, scores, sentence_embeddings
from .timing import Case, Peer


@dataclass(frozen=True)
class Data:
    """Embeddings, what flows back, and every contender's head on the same sizes."""

    z: Tensor
    grad: Tensor
    kernel: KernelClassifier
    linear: nn.Linear
    cosine: CosineClassifier


def make_data(batch: int, width: int, classes: int) -> Data:
    """Random embeddings of that size."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(batch, width, generator=generator).requires_grad_()
    grad = torch.randn(batch, classes, generator=generator)
    kernel = KernelClassifier(width, classes)
    return Data(z, grad, kernel, nn.Linear(width, classes), CosineClassifier(width, classes))


def move(data: Data, device: str) -> Data:
    """These data on a device."""
    heads = {name: getattr(data, name).to(device) for name in ("kernel", "linear", "cosine")}
    return replace(data, z=data.z.detach().to(device).requires_grad_(), grad=data.grad.to(device), **heads)


def step(data: Data, *, name: str, by_powers: bool = False) -> Tensor:
    """Forward and backward through the head of that name, or through the same series as a first version would be."""
    head: nn.Module = getattr(data, name)
    logits = compute_by_powers(data.kernel, data.z) if by_powers else head(data.z)
    torch.autograd.backward(logits, data.grad)
    gradient = data.z.grad
    data.z.grad = None
    head.zero_grad()
    assert gradient is not None
    return gradient


def compute_by_powers(head: KernelClassifier, z: Tensor) -> Tensor:
    """Logits of a head by normalised copies and one power after the other, all left to autograd."""
    assert isinstance(head.kernel, RadialSeries)
    t = F.normalize(z, dim=1) @ F.normalize(head.weight, dim=1).mT
    alpha = head.kernel.coefficients[2:]
    total = torch.zeros_like(t)
    for m in range(len(alpha)):
        total = total + alpha[m] * t**m
    return total


def saved_bytes(head: Callable[[Tensor], Tensor], z: Tensor) -> int:
    """Bytes of the distinct tensors that autograd keeps for the backward pass."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        head(z)
    return sum(saved.values())


def _case(batch: int, width: int, classes: int, allowed: float, *, beat_cosine: bool) -> Case:
    return Case(
        f"forward + backward, batch {batch}, width {width}, {classes} classes",
        setup=partial(make_data, batch, width, classes),
        ours=partial(step, name="kernel"),
        peers={
            "nn.Linear": Peer(partial(step, name="linear"), ("torch",), {"cpu": 1 / allowed}),
            "cosine head": Peer(partial(step, name="cosine"), ("torch",), {"cpu": 1.0} if beat_cosine else {}),
            "powers by autograd": Peer(partial(step, name="kernel", by_powers=True), ("torch",), {"cpu": 3.0}),
        },
        accuracy=lambda data, _: saved_bytes(data.kernel, data.z) / saved_bytes(data.linear, data.z),
        accuracy_name="kept for backward, ours / nn.Linear's",
        limits={"accuracy": 1.3} if (batch, width, classes) == (128, 512, 1000) else {},
        move=move,
    )


def _fit_cases(name: str, rows: Callable[[], Rows], *, before_pooling: bool = False) -> list[Case]:
    """Three measures of all heads on one set, ours first; the first measure pays for the fits."""
    heads, first = ["shared", *(head for head in HEADS if head != "shared")], f"accuracy %, {name}, ours: shared units"
    if before_pooling:
        heads, first = list(PLACED), f"accuracy % of maps, {name}, ours: before pooling"
    # what is shown of a fit
    measures: list[tuple[str, str, Callable[[Scores], list[float]]]] = [
        (first, "higher", lambda scores: scores.accuracy),
        (f"NLL, {name}, the same fits", "lower", lambda scores: scores.nll),
        (f"ECE, {name}, the same fits", "lower", lambda scores: scores.ece),
    ]
    ours, *others = heads
    return [
        Case(
            what,
            setup=lambda: rows,
            ours=partial(scores, ours),
            peers={head: Peer(partial(scores, head), needs=("torch",)) for head in others},
            accuracy=lambda _, found, score=score: statistics.mean(score(found)),  # type: ignore[misc]
            accuracy_name=what.split(",")[0],
            better=better,
            repeats=1,
            memory=False,
        )
        for what, better, score in measures
    ]


CASES = [
    *_fit_cases("20 classes", partial(picture_embeddings, 20)),
    *_fit_cases("100 classes", partial(picture_embeddings, 100)),
    *_fit_cases("SST-2", sentence_embeddings),
    *_fit_cases("CIFAR-100 pictures", partial(picture_maps, "cifar100_subset"), before_pooling=True),
    *_fit_cases("MNIST digits", partial(picture_maps, "mnist"), before_pooling=True),
    _case(128, 64, 100, 3.5, beat_cosine=False),
    _case(128, 512, 1000, 1.7, beat_cosine=True),
    _case(1024, 768, 10_000, 1.35, beat_cosine=True),
]
