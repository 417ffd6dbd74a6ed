"""Networks that the papers' experiments train: embeddings of pictures and sentences, a linear head on top."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from mercer import checks


class Backbone(nn.Module):
    """An embedding and a linear head on it; a variant writes ``features``."""

    embedding_size: int
    linear: nn.Module

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The embedding that the head sees."""

    @override
    def forward(self, x: Tensor) -> Tensor:  # -> (n, c)
        logits: Tensor = self.linear(self.features(x))
        return logits


class _DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """All that came before, and ``growth`` new channels."""
        return torch.cat((x, self.conv(F.relu(self.bn(x)))), 1)


class DenseNet(Backbone):
    """DenseNet-40-12 (Huang et al., 2017) for CIFAR: three blocks of densely connected layers with pooling in between.

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
        layers, remainder = divmod(depth - 4, 3)
        if remainder or layers < 1:
            raise ValueError(checks.sentence("DenseNet", "depth must be 3 n + 4 for n >= 1", depth))
        # three blocks; between two of them the picture is halved
        parts: list[nn.Module] = [first or nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        channels = 16
        for block in range(3):
            if block:
                conv = nn.Conv2d(channels, channels, 1, bias=False)
                parts += [nn.BatchNorm2d(channels), nn.ReLU(), conv, nn.AvgPool2d(2)]
            for _ in range(layers):
                parts.append(_DenseLayer(channels, growth))
                channels += growth
        self.embedding_size = channels
        self.body = nn.Sequential(*parts, nn.BatchNorm2d(channels))
        self.relu = nn.ReLU()
        self.pool: nn.Module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(channels, num_classes)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, channels)
        pooled: Tensor = self.pool(self.relu(self.body(x)))
        return pooled


_PLAN = (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0)  # widths over the first one; 0 halves the picture


class Vgg16(Backbone):
    """VGG-16 for CIFAR (jayasumana2021, Appendix D.1).

    Thirteen convolutions with batch normalization, one hidden layer, a linear head.

    Args:
        num_classes: outputs.
        width: channels of the first stage, 64 in the paper.
        hidden: units before the head, 256 in the paper.
        first: takes the place of the first convolution, as KERVO does.
    """

    def __init__(
        self, num_classes: int = 10, *, width: int = 64, hidden: int = 256, first: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.embedding_size = hidden
        layers: list[nn.Module] = []
        channels = 3
        # the convolutions, each with norm and ReLU; then the hidden layer
        for factor in _PLAN:
            if factor == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            convolution: nn.Module = nn.Conv2d(channels, factor * width, 3, padding=1, bias=False)
            if first is not None and not layers:
                convolution = first
            layers += [convolution, nn.BatchNorm2d(factor * width), nn.ReLU()]
            channels = factor * width
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, hidden), nn.BatchNorm1d(hidden))
        self.relu = nn.ReLU()
        self.linear = nn.Linear(hidden, num_classes)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, hidden)
        embedding: Tensor = self.relu(self.body(x))
        return embedding


class LeNet5(Backbone):
    """LeNet-5 (LeCun et al., 1998) with ReLU and max pooling.

    Two convolutions of 5 x 5 with 6 and 16 filters, hidden layers of 120 and 84, a linear head.

    Args:
        num_classes: outputs.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.embedding_size = 84
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        )  # fmt: skip
        self.relu = nn.ReLU()
        self.linear = nn.Linear(84, num_classes)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, 84)
        embedding: Tensor = self.relu(self.body(x))
        return embedding


class SmallTransformer(Backbone):
    """A small encoder read at its first token, as BERT is.

    Token and place embeddings (at most 64 tokens), encoder layers of two heads, the first token's state through tanh, a
    linear head.

    Args:
        vocabulary: number of tokens; 0 pads, 1 stands first.
        num_classes: outputs.
        width: of the states.
        layers: encoder layers.
        dropout: in the encoder.
    """

    def __init__(
        self, vocabulary: int, num_classes: int = 2, *, width: int = 64, layers: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embedding_size = width
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.linear = nn.Linear(width, num_classes)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, tokens) -> (n, width)
        states = self.encoder(self.tokens(x) + self.places[: x.shape[1]], src_key_padding_mask=x == 0)
        pooled: Tensor = self.pooler(states[:, 0])
        return pooled
