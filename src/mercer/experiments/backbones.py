"""Networks that the papers' experiments train: embeddings of pictures and sentences, a linear head on top."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from .. import checks, data

Convolution = Callable[[int, int, int], nn.Module]  # channels in, channels out, stride
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours


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


class CifarResNet(Backbone):
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

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, 4 width)
        x = self.relu(self.bn1(self.conv1(x)))
        pooled: Tensor = self.pool(self.layer3(self.layer2(self.layer1(x))))
        return pooled


def _convolution(width_in: int, width: int, stride: int) -> nn.Module:
    return nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)


def _stage(blocks: int, width_in: int, width: int, stride: int) -> nn.Sequential:
    first = _ResidualBlock(width_in, width, stride, _convolution)
    return nn.Sequential(first, *(_ResidualBlock(width, width, 1, _convolution) for _ in range(blocks - 1)))


def published_resnet20() -> CifarResNet:
    """ResNet-20 with the published weights of CIFAR-10, for pictures as `normalised` gives them."""
    model = CifarResNet(20)
    model.load_state_dict(data.resnet20_weights(), strict=False)
    return model


def normalised(x: Tensor) -> Tensor:  # (n, 3, h, w)
    """Colours less ImageNet's means, over their deviations."""
    mean, deviation = (torch.tensor(v, device=x.device).reshape(1, 3, 1, 1) for v in (_MEAN, _DEVIATION))
    return (x - mean) / deviation


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

    Thirteen convolutions with batch normalisation, one hidden layer, a linear head.

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
        for factor in _PLAN:
            if factor == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            made = nn.Conv2d(channels, factor * width, 3, padding=1, bias=False)
            layers += [made if layers or first is None else first, nn.BatchNorm2d(factor * width), nn.ReLU()]
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
        channels: of the input.
    """

    def __init__(self, num_classes: int = 10, *, channels: int = 3) -> None:
        super().__init__()
        self.embedding_size = 84
        self.body = nn.Sequential(
            nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
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

    Token and place embeddings, encoder layers, the first token's state through tanh, a linear head.

    Args:
        vocabulary: number of tokens; 0 pads, 1 stands first.
        num_classes: outputs.
        width: of the states.
        layers: encoder layers.
        heads: attention heads.
        length: most tokens of an input.
        dropout: in the encoder.
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int = 2,
        *,
        width: int = 64,
        layers: int = 2,
        heads: int = 2,
        length: int = 64,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding_size = width
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.linear = nn.Linear(width, num_classes)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, tokens) -> (n, width)
        states = self.encoder(self.tokens(x) + self.places[: x.shape[1]], src_key_padding_mask=x == 0)
        pooled: Tensor = self.pooler(states[:, 0])
        return pooled
