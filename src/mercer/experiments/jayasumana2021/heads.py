"""The classifiers that the paper compares, by the names its tables use, on any backbone of ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ... import checks
from ...kernels import RBF, Linear, Polynomial, RadialSeries, Scaled, Sum
from ...linalg import unit_rows
from ...nn import CosineClassifier, KernelClassifier, Kervolution2d, SecondOrderPooling, kernelize
from ..backbones import CifarResNet, DenseNet, LeNet5, Vgg16

__all__ = ["HEADS", "NormalizedSoftmax", "backbone", "build", "make_head"]

HEADS = ("Softmax", "LIN", "SOP", "KERVO", "Ours", "Recommended")
_SCALE = 10.0  # where learned and fixed scales of bounded kernels start, as the cosine head's does

Make = Callable[[int, int], nn.Module]


class NormalizedSoftmax(nn.Module):
    """A linear classifier on embeddings of length 1: the paper's softmax baseline (Section 7.2)."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, z: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.linear(unit_rows(z))
        return logits


def _extra_layer(in_features: int, num_classes: int) -> nn.Module:
    """Section 7.4: one more layer of d units."""
    return nn.Sequential(nn.Linear(in_features, in_features), nn.ReLU(), NormalizedSoftmax(in_features, num_classes))


def _series(in_features: int, num_classes: int, *, positivity: str = "relu", order: int = 10) -> nn.Module:
    kernel = RadialSeries(order, positivity=positivity, init="ones", indicators="exact")
    return KernelClassifier(in_features, num_classes, kernel, temperature=kernel.temperature)


def _kernel(make: Callable[[], nn.Module], in_features: int, num_classes: int) -> nn.Module:
    kernel = make()
    assert isinstance(kernel, Scaled | Sum)
    return KernelClassifier(in_features, num_classes, kernel)


def _recommended(in_features: int, num_classes: int) -> nn.Module:
    # k(1) / T = 10: under SGD and few epochs a small start costs accuracy (docs/papers/jayasumana2021.md).
    return KernelClassifier(in_features, num_classes, RadialSeries(), prototypes=3, bias=True, temperature=0.4)


def _mkl() -> Sum:
    """A learned mixture of the linear, the second-order and the Gaussian kernel (Section 7.1)."""
    parts = [Scaled(kernel, _SCALE / 3, learnable=True) for kernel in (Linear(), Polynomial(2, 0.5, 0.5), RBF(1.0))]
    return Sum(Sum(parts[0], parts[1]), parts[2])


_MAKERS: dict[str, Make] = {
    "Softmax": NormalizedSoftmax,
    "Unnormalized": nn.Linear,
    "LIN": CosineClassifier,
    "Fixed T": partial(CosineClassifier, scale=_SCALE, learnable=False),
    "SOP": SecondOrderPooling,
    "Ours": _series,
    "Recommended": _recommended,
    "Extra layer": _extra_layer,
    "RBF fixed": partial(_kernel, lambda: Scaled(RBF(1.0), _SCALE, learnable=True)),
    "RBF learned": partial(_kernel, lambda: Scaled(RBF(1.0, learnable=True), _SCALE, learnable=True)),
    "Polynomial": partial(_kernel, lambda: Scaled(Polynomial(10, 0.5, 0.5), _SCALE, learnable=True)),
    "MKL": partial(_kernel, _mkl),
    **{f"Ours, {name}": partial(_series, positivity=name) for name in ("sigmoid", "softmax", "relu", "none")},
    **{f"Ours, M = {order}": partial(_series, order=order) for order in (1, 2, 3, 5, 7, 10, 15, 20)},
}


def make_head(name: str, in_features: int, num_classes: int) -> nn.Module:
    """The head of that name; KERVO changes the backbone and keeps the softmax head."""
    name = "Softmax" if name == "KERVO" else name
    return _MAKERS[checks.choice("make_head", "name", name, _MAKERS)](in_features, num_classes)


def backbone(name: str, num_classes: int, *, kervolution: str | None = None) -> nn.Module:
    """A network by the name of the paper's tables; ``"Small VGG"`` and ``"Small DenseNet"`` are stand-ins.

    Args:
        name: ``"ResNet-8"`` .. ``"ResNet-56"``, ``"LeNet-5"``, ``"VGG-16"``, ``"DenseNet"`` or a stand-in.
        num_classes: outputs.
        kervolution: the kernel of a kervolution in the place of the first convolution; None for none.
    """
    widths = {"VGG-16": 64, "Small VGG": 8, "DenseNet": 16, "Small DenseNet": 16, "Small ResNet": 8}
    first = None if kervolution is None else _kervolution(kervolution, widths.get(name, 16))
    if name.startswith("ResNet-") or name == "Small ResNet":
        make = None if first is None else lambda *_: first
        depth = 8 if name == "Small ResNet" else int(name.removeprefix("ResNet-"))
        return CifarResNet(depth, num_classes, convolution=make, width=widths.get(name, 16))
    if name == "LeNet-5":
        return LeNet5(num_classes)
    if name in ("VGG-16", "Small VGG"):
        small = name == "Small VGG"
        return Vgg16(num_classes, width=widths[name], hidden=64 if small else 256, first=first)
    checks.choice("backbone", "name", name, ("ResNet-8", "LeNet-5", *widths))
    depth, growth = (40, 12) if name == "DenseNet" else (10, 8)
    return DenseNet(depth, growth, num_classes, first=first)


def build(
    network: str, head: str, num_classes: int, *, rectify: bool = False, kervolution: str = "polynomial"
) -> nn.Module:
    """Backbone and head as the paper joins them: the ReLU off the embedding for every head (Appendix A)."""
    model = backbone(network, num_classes, kervolution=kervolution if head == "KERVO" else None)
    return kernelize(model, head=partial(make_head, head), rectify=rectify)


def _kervolution(kernel: str, channels: int) -> nn.Module:
    return Kervolution2d(3, channels, 3, padding=1, kernel=kernel)
