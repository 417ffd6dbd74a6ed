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


def data(batch: int, width: int, classes: int) -> Data:
    """Random embeddings of that size."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(batch, width, generator=generator).requires_grad_()
    grad = torch.randn(batch, classes, generator=generator)
    kernel = KernelClassifier(width, classes)
    return Data(z, grad, kernel, nn.Linear(width, classes), CosineClassifier(width, classes))


def moved(held: Data, device: str) -> Data:
    """The same on a device."""
    heads = {name: getattr(held, name).to(device) for name in ("kernel", "linear", "cosine")}
    return replace(held, z=held.z.detach().to(device).requires_grad_(), grad=held.grad.to(device), **heads)


def _through(head: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], held: Data) -> Tensor:
    logits = head(held.z)
    torch.autograd.backward(logits, held.grad)
    gradient = held.z.grad
    held.z.grad = None
    for parameter in parameters:
        parameter.grad = None
    assert gradient is not None
    return gradient


def ours(held: Data) -> Tensor:
    """Forward and backward through the kernelised head."""
    return _through(held.kernel, list(held.kernel.parameters()), held)


def linear(held: Data) -> Tensor:
    """The same through ``nn.Linear``."""
    return _through(held.linear, list(held.linear.parameters()), held)


def cosine(held: Data) -> Tensor:
    """The same through the cosine head."""
    return _through(held.cosine, list(held.cosine.parameters()), held)


def powers(held: Data) -> Tensor:
    """The same series with every power left to autograd: what a first version would be."""
    return _through(partial(by_powers, held.kernel), list(held.kernel.parameters()), held)


def by_powers(head: KernelClassifier, z: Tensor) -> Tensor:
    """Logits of a head by normalised copies and one power after the other."""
    assert isinstance(head.kernel, RadialSeries)
    t = F.normalize(z, dim=1) @ F.normalize(head.weight, dim=1).mT
    alpha = head.kernel.coefficients[2:]
    total = torch.zeros_like(t)
    for m in range(len(alpha)):
        total = total + alpha[m] * t**m
    return total


def saved_bytes(head: Callable[[Tensor], Tensor], z: Tensor) -> int:
    """Bytes of the distinct tensors that autograd keeps for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        head(z)
    return sum(kept.values())


def _case(batch: int, width: int, classes: int, allowed: float, *, beat_cosine: bool) -> Case:
    return Case(
        f"forward + backward, batch {batch}, width {width}, {classes} classes",
        setup=partial(data, batch, width, classes),
        ours=ours,
        peers={
            "nn.Linear": Peer(linear, needs=("torch",), goals={"cpu": 1 / allowed}),
            "cosine head": Peer(cosine, needs=("torch",), goals={"cpu": 1.0} if beat_cosine else {}),
            "powers by autograd": Peer(powers, needs=("torch",), goals={"cpu": 3.0}),
        },
        accuracy=lambda held, _: saved_bytes(held.kernel, held.z) / saved_bytes(held.linear, held.z),
        accuracy_name="kept for backward, ours / nn.Linear's",
        limits={"accuracy": 1.3} if (batch, width, classes) == (128, 512, 1000) else {},
        move=moved,
    )


def _fit_case(
    what: str, rows: Callable[[], Rows], better: str, score: Callable[[Scores], list[float]], heads: list[str]
) -> Case:
    """One measure of all heads, ours first, on one set; the first measure pays for the fits."""
    ours, *rest = heads
    works = {name: Peer(partial(_trained, name), needs=("torch",)) for name in rest}
    return Case(
        what,
        setup=lambda: rows,
        ours=partial(_trained, ours),
        peers=works,
        accuracy=lambda _, found: statistics.mean(score(found)),
        accuracy_name=what.split(",")[0],
        better=better,
        repeats=1,
        memory=False,
    )


def _trained(name: str, rows: Callable[[], Rows]) -> Scores:
    return scores(name, rows)


def _fit_cases(name: str, rows: Callable[[], Rows], ours: str = "shared units") -> list[Case]:
    what, heads = "accuracy %", ["shared", *(head for head in HEADS if head != "shared")]
    if ours == "before pooling":
        what, heads = "accuracy % of maps", list(PLACED)
    return [
        _fit_case(f"{what}, {name}, ours: {ours}", rows, "higher", lambda found: found.accuracy, heads),
        _fit_case(f"NLL, {name}, the same fits", rows, "lower", lambda found: found.nll, heads),
        _fit_case(f"ECE, {name}, the same fits", rows, "lower", lambda found: found.ece, heads),
    ]


CASES = [
    *_fit_cases("20 classes", partial(picture_embeddings, 20)),
    *_fit_cases("100 classes", partial(picture_embeddings, 100)),
    *_fit_cases("SST-2", sentence_embeddings),
    *_fit_cases("CIFAR-100 pictures", partial(picture_maps, "cifar100_subset"), "before pooling"),
    *_fit_cases("MNIST digits", partial(picture_maps, "mnist"), "before pooling"),
    _case(128, 64, 100, 3.5, beat_cosine=False),
    _case(128, 512, 1000, 1.7, beat_cosine=True),
    _case(1024, 768, 10_000, 1.35, beat_cosine=True),
]
