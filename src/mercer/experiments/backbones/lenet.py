"""LeNet-5 (LeCun et al., 1998) for colour pictures of 32 x 32, with ReLU and max pooling."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["LeNet5"]


class LeNet5(nn.Module):
    """Two convolutions of 5 x 5 with 6 and 16 filters, hidden layers of 120 and 84, a linear head.

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

    def features(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, 84)
        """The embedding that the head sees."""
        embedding: Tensor = self.relu(self.body(x))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.linear(self.features(x))
        return logits
