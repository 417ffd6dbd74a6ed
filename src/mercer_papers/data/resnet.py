"""The ResNets of CIFAR-10, and the one whose weights are published."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import checks

from .loaders import resnet20_weights

Convolution = Callable[[int, int, int], nn.Module]  # channels in, channels out, stride
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours


class _ResidualBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int, convolution: Convolution) -> None:
        super().__init__()
        self.conv1 = convolution(width_in, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = convolution(width, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()  # a module of its own, so that kernelize can take the last one off
        self.stride = stride
        self.padding = width - width_in

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions and the way around them: every second pixel, missing channels 0."""
        way = x[:, :, :: self.stride, :: self.stride] if self.stride > 1 else x
        if self.padding:
            way = F.pad(way, (0, 0, 0, 0, self.padding // 2, self.padding - self.padding // 2))
        y: Tensor = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu2(y + way)
        return out


class CifarResNet(nn.Module):
    """ResNet-8 .. ResNet-56 (He et al., 2016, Section 4.2) for pictures of 32 x 32.

    Widths 16, 32, 64, shortcuts without weights.

    Args:
        depth: 6 n + 2: 8, 14, 20, 32, 44, 56.
        num_classes: outputs of ``linear``.
        convolution: ``convolution(channels_in, channels_out, stride)`` for the first layer; None for 3 x 3. KERVO puts
            a :class:`mercer.nn.Kervolution2d` there.
        width: channels of the first stage.

    >>> sum(p.numel() for p in CifarResNet(56).parameters())
    853018
    """

    def __init__(
        self, depth: int = 20, num_classes: int = 10, *, convolution: Convolution | None = None, width: int = 16
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(checks.sentence("CifarResNet", "depth must be 6 n + 2 for n >= 1", depth))
        self.embedding_size = 4 * width
        self.conv1 = (convolution or _convolution)(3, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.layer1 = _stage(blocks, width, width, 1)
        self.layer2 = _stage(blocks, width, 2 * width, 2)
        self.layer3 = _stage(blocks, 2 * width, 4 * width, 2)
        self.pool: nn.Module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, 4 width)
        """The embedding that the head sees."""
        x = self.relu(self.bn1(self.conv1(x)))
        pooled: Tensor = self.pool(self.layer3(self.layer2(self.layer1(x))))
        return pooled

    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, c)
        """Logits."""
        logits: Tensor = self.linear(self.features(x))
        return logits


def _convolution(width_in: int, width: int, stride: int) -> nn.Module:
    return nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)


def _stage(blocks: int, width_in: int, width: int, stride: int) -> nn.Sequential:
    first = _ResidualBlock(width_in, width, stride, _convolution)
    return nn.Sequential(first, *(_ResidualBlock(width, width, 1, _convolution) for _ in range(blocks - 1)))


def published_resnet20() -> CifarResNet:
    """ResNet-20 with the published weights of CIFAR-10, for pictures as `normalised` gives them."""
    model = CifarResNet(20)
    model.load_state_dict(resnet20_weights(), strict=False)
    return model


def normalised(x: Tensor) -> Tensor:  # (n, 3, h, w)
    """Colours less ImageNet's means, over their deviations."""
    mean, deviation = (torch.tensor(v, device=x.device).reshape(1, 3, 1, 1) for v in (_MEAN, _DEVIATION))
    return (x - mean) / deviation
