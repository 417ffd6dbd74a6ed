"""ResNet-20 for 32 x 32 pictures, to read a trained network's blocks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from ..data import resnet20_weights


class _Block(nn.Module):
    __call__: Callable[..., Tensor]

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.more = channels - channels // stride
        self.conv1 = nn.Conv2d(channels // stride, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    @override
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.more:  # a shortcut without weights: every second place, the new channels 0
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more // 2))
        return (out + x).relu()


class _ResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(_Block(channels, stride if first else 1) for first in (True, False, False)))
            for channels, stride in ((16, 1), (32, 2), (64, 2))
        )
        self.linear = nn.Linear(64, 10)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


def trained_resnet20() -> nn.Module:
    """The network with the weights of `mercer.data.resnet20_weights`, in ``eval`` mode."""
    network = _ResNet20()
    network.load_state_dict(resnet20_weights(), strict=False)
    return network.eval()
