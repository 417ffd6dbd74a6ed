"""DenseNet-40-12 (Huang et al., 2017) for CIFAR."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import checks

__all__ = ["DenseNet"]


class _Layer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """All that came before, and ``growth`` new channels."""
        return torch.cat((x, self.conv(F.relu(self.bn(x)))), 1)


class DenseNet(nn.Module):
    """Three blocks of densely connected layers with pooling in between.

    Args:
        depth: 3 n + 4 layers; 40 in the paper.
        growth: channels that each layer adds; 12 in the paper.
        num_classes: outputs.
        first: takes the place of the first convolution (3 -> 16 channels), as KERVO does.
    """

    def __init__(
        self, depth: int = 40, growth: int = 12, num_classes: int = 10, *, first: nn.Module | None = None
    ) -> None:
        super().__init__()
        layers, rest = divmod(depth - 4, 3)
        if rest or layers < 1:
            raise ValueError(checks.sentence("DenseNet", "depth must be 3 n + 4 for n >= 1", depth))
        parts: list[nn.Module] = [first or nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        channels = 16
        for block in range(3):
            if block:
                conv = nn.Conv2d(channels, channels, 1, bias=False)
                parts += [nn.BatchNorm2d(channels), nn.ReLU(), conv, nn.AvgPool2d(2)]
            for _ in range(layers):
                parts.append(_Layer(channels, growth))
                channels += growth
        self.embedding_size = channels
        self.body = nn.Sequential(*parts, nn.BatchNorm2d(channels))
        self.relu = nn.ReLU()
        self.pool: nn.Module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(channels, num_classes)

    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, channels)
        """The embedding that the head sees."""
        pooled: Tensor = self.pool(self.relu(self.body(x)))
        return pooled

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.linear(self.features(x))
        return logits
