"""The classifiers that the paper compares, and ours, on any backbone."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import checks
from mercer.kernels import RBF, Linear, Polynomial, RadialSeries, Scaled, Sum
from mercer.linalg.distances import unit_rows
from mercer.nn import CosineClassifier, KernelClassifier, Kervolution2d, SecondOrderPooling, kernelize

from ..backbones import DenseNet, LeNet5, Vgg16
from ..data import CifarResNet

SCALE = 10.0  # where learned and fixed scales of bounded kernels start, as the cosine head's does

Make = Callable[[int, int], nn.Module]
Option = TypeVar("Option", bound=Hashable)


class NormalizedSoftmax(nn.Module):
    """A linear classifier on embeddings of length ``scale``: the paper's softmax baseline has length 1 (Section 7.2).

    nn.Linear on unit embeddings starts with logits near 0.07, the bounded kernels near their scale of 10. At length
    10 softmax starts where they do.
    """

    def __init__(self, in_features: int, num_classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)
        self.scale = scale

    def forward(self, z: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.linear(self.scale * unit_rows(z))
        return logits


def _series(
    in_features: int, num_classes: int, *, positivity: str = "relu", order: int = 10, bias: bool = False
) -> nn.Module:
    kernel = RadialSeries(order, positivity=positivity, init="ones", indicators="exact")
    return KernelClassifier(in_features, num_classes, kernel, temperature=kernel.temperature, bias=bias)


def _make_scaled(make: Callable[[], Scaled | Sum], in_features: int, num_classes: int) -> nn.Module:
    return KernelClassifier(in_features, num_classes, make(), bias=False, temperature=1.0)


def _make_mixture() -> Sum:
    """MKL: a learned mixture of the linear, the second-order and the Gaussian kernel (Section 7.1)."""
    kernels = (Linear(), Polynomial(2, 0.5, 0.5), RBF(1.0))
    linear, square, gauss = (Scaled(kernel, SCALE / 3, learnable=True) for kernel in kernels)
    return Sum(Sum(linear, square), gauss)


_MAKERS: dict[str, Make] = {
    "Softmax": NormalizedSoftmax,
    "Softmax, scale 10": partial(NormalizedSoftmax, scale=SCALE),
    "Unnormalized": nn.Linear,
    "LIN": CosineClassifier,
    "Fixed T": partial(CosineClassifier, scale=SCALE, learnable=False),
    "SOP": SecondOrderPooling,
    "Kernelized": _series,
    "Kernelized, bias": partial(_series, bias=True),
    # k(1) / T = 10: under SGD and few epochs a small start costs accuracy.
    "Mercer's head": lambda d, c: KernelClassifier(d, c, RadialSeries(), prototypes=3, bias=True, temperature=0.4),
    # Section 7.4: one more layer of d units.
    "Extra layer": lambda d, c: nn.Sequential(nn.Linear(d, d), nn.ReLU(), NormalizedSoftmax(d, c)),
    "RBF fixed": partial(_make_scaled, lambda: Scaled(RBF(1.0), SCALE, learnable=True)),
    "RBF learned": partial(_make_scaled, lambda: Scaled(RBF(1.0, learnable=True), SCALE, learnable=True)),
    "Polynomial": partial(_make_scaled, lambda: Scaled(Polynomial(10, 0.5, 0.5), SCALE, learnable=True)),
    "Polynomial, steeper": partial(_make_scaled, lambda: Scaled(Polynomial(10, 0.1, 0.9), SCALE, learnable=True)),
    "MKL": partial(_make_scaled, _make_mixture),
    **{f"Kernelized, {name}": partial(_series, positivity=name) for name in ("sigmoid", "softmax", "relu", "none")},
}


# Where kervolutions stand and which kernel they have; the paper says neither.
KERVOLUTIONS = {
    "KERVO": ("first", "polynomial"),
    "KERVO, all layers": ("all", "polynomial"),
    "KERVO, Gaussian": ("first", "gaussian"),
    "KERVO, Gaussian, all layers": ("all", "gaussian"),
}


def make_head(name: str, in_features: int, num_classes: int, *, order: int = 10) -> nn.Module:
    """The head of that name; KERVO changes the backbone and keeps the softmax head."""
    if name == "Kernelized":
        return _series(in_features, num_classes, order=order)
    name = "Softmax" if name in KERVOLUTIONS else name
    return _MAKERS[checks.choice("make_head", "name", name, _MAKERS)](in_features, num_classes)


def backbone(name: str, num_classes: int, *, kervolution: bool = False) -> nn.Module:
    """A network by its name.

    Args:
        name: ``"ResNet-8"`` .. ``"ResNet-56"``, ``"LeNet-5"``, ``"VGG-16"``, ``"DenseNet"``, or a stand-in:
            ``"ResNet-8, half width"``, ``"Small VGG"``, ``"Small DenseNet"``.
        num_classes: outputs.
        kervolution: a polynomial kervolution in place of the first convolution.
    """
    resnets = {f"ResNet-{depth}": (depth, 16) for depth in (8, 14, 20, 32, 44, 56)}
    resnets["ResNet-8, half width"] = (8, 8)
    widths = {"VGG-16": 64, "Small VGG": 8, "DenseNet": 16, "Small DenseNet": 16}
    checks.choice("backbone", "name", name, ("LeNet-5", *resnets, *widths))
    if name == "LeNet-5":
        return LeNet5(num_classes)
    depth, width = resnets.get(name) or (0, widths[name])
    # KERVO: a kervolution in the place of the first convolution
    first = None
    if kervolution:
        first = Kervolution2d(3, width, 3, padding=1, kernel="polynomial")
    if name in resnets:
        return CifarResNet(depth, num_classes, first=first, width=width)
    if name == "VGG-16":
        return Vgg16(num_classes, width=width, hidden=256, first=first)
    if name == "Small VGG":
        return Vgg16(num_classes, width=width, hidden=64, first=first)
    if name == "DenseNet":
        return DenseNet(40, 12, num_classes, first=first)
    return DenseNet(10, 8, num_classes, first=first)


def kervolve(model: nn.Module, where: str, kernel: str) -> None:
    """Put kervolutions of the same shape in the place of the first convolution, or of ``"all"`` larger than 1 x 1."""
    convolutions = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Conv2d) and layer.kernel_size[0] > 1
    ]
    for parent, name, layer in convolutions if where == "all" else convolutions[:1]:
        kervolution = Kervolution2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size[0],
            stride=layer.stride[0],
            padding=int(layer.padding[0]),
            kernel=kernel,
        )
        setattr(parent, name, kervolution)


def build(network: str, head: str, num_classes: int, *, rectify: bool = False, order: int = 10) -> nn.Module:
    """Backbone and head as the paper joins them: the ReLU off the embedding for every head (Appendix A).

    SOP pools the maps before the mean over places, where the backbone ends in one; of LeNet and VGG, whose
    embedding is a hidden layer, it pools that vector.
    """
    model = backbone(network, num_classes, kervolution=head == "KERVO")
    if head in KERVOLUTIONS and head != "KERVO":
        kervolve(model, *KERVOLUTIONS[head])
    model = kernelize(model, head=partial(make_head, head, order=order), rectify=rectify or "off")
    if head == "SOP" and isinstance(model, CifarResNet | DenseNet):
        model.pool = nn.Identity()
    return model


def choose_best(options: Iterable[Option], score: Callable[[Option], float]) -> Option:
    """The option with the highest score; one at which the head diverges is not the one."""
    scores: dict[Option, float] = {}
    for option in options:
        try:
            scores[option] = score(option)
        except FloatingPointError:
            scores[option] = -1.0
    return max(scores, key=lambda option: scores[option])


def train_head(
    head: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    lr: float,
    epochs: int,
    batch: int,
    generator: torch.Generator,
) -> None:
    """Cross-entropy in mini-batches with a one-cycle rate."""
    steps = epochs * math.ceil(len(x) / batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(head(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss became {loss.item()}")
