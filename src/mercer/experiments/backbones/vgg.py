"""VGG-16 for CIFAR with 256 hidden units at the end (jayasumana2021, Appendix D.1)."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Vgg16"]

_PLAN = (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0)  # widths over the first one; 0 halves the picture


class Vgg16(nn.Module):
    """Thirteen convolutions with batch normalisation, one hidden layer, a linear head.

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

    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, hidden)
        """The embedding that the head sees."""
        embedding: Tensor = self.relu(self.body(x))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.linear(self.features(x))
        return logits
