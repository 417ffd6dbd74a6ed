"""The paper's networks: two hidden layers of 100 on tables, ResNet-18 on pictures, an LSTM of width 100 on texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..backbones import CifarResNet

__all__ = ["Lstm", "ResNet18", "make_network", "mlp"]


def mlp(d: int, c: int, *, hidden: int = 2, width: int = 100) -> nn.Sequential:
    """Hidden layers of ``width`` with ReLU, and a linear read-out."""
    widths = [d, *[width] * hidden]
    layers: list[nn.Module] = []
    for i in range(hidden):
        layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, c))


class Lstm(nn.Module):
    """Word vectors (learned: no GloVe here), one LSTM of width 100, the mean of its outputs, a linear read-out."""

    def __init__(self, words: int, c: int, *, width: int = 100, vector: int = 50) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, vector, padding_idx=0)
        self.lstm = nn.LSTM(vector, width, batch_first=True)
        self.linear = nn.Linear(width, c)

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, c)
        """Logits of texts as word numbers, 0 where there is none."""
        outputs, _ = self.lstm(self.embedding(tokens))
        there = (tokens != 0).to(outputs.dtype)[..., None]
        logits: Tensor = self.linear((outputs * there).sum(1) / there.sum(1).clamp(min=1))
        return logits


class _Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        same = stride == 1 and width_in == width
        way = [nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)]
        self.way = nn.Identity() if same else nn.Sequential(*way)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.way(x))


class ResNet18(nn.Module):
    """ResNet-18 (He et al., 2016) with a 3 x 3 first layer for 32 x 32 pictures; last width 512."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        blocks, width_in = [], 64
        for stage, width in enumerate((64, 128, 256, 512)):
            blocks += [_Block(width_in, width, 2 if stage else 1), _Block(width, width, 1)]
            width_in = width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(512, c)

    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, c)
        """Logits of pictures."""
        logits: Tensor = self.linear(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


def make_network(kind: str, x: Tensor, c: int, words: int, name: str, seed: int) -> nn.Module:
    """The network for a kind of data (table, image, text); ``name`` is that of an image network."""
    torch.manual_seed(seed)
    if kind == "table":
        return mlp(x.shape[1], c)
    if kind == "text":
        return Lstm(words, c)
    return ResNet18(c) if name == "ResNet-18" else CifarResNet(8, c, width=8)
