"""The ResNets of CIFAR-10, with the one whose weights are published, and ResNet-50 of ImageNet, from a local file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from mercer import checks
from mercer.storage.archives import read_npz

from ..data_files import MissingData, data_folder
from .loaders import resnet20_weights

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours


class _ResidualBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(width_in, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = _convolution(width, width, 1)
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
        first: takes the place of the first convolution, as KERVO does.
        width: channels of the first stage.

    >>> sum(p.numel() for p in CifarResNet(56).parameters())
    853018
    """

    def __init__(
        self, depth: int = 20, num_classes: int = 10, *, first: nn.Module | None = None, width: int = 16
    ) -> None:
        super().__init__()
        blocks, remainder = divmod(depth - 2, 6)
        if remainder or blocks < 1:
            raise ValueError(checks.sentence("CifarResNet", "depth must be 6 n + 2 for n >= 1", depth))
        self.embedding_size = 4 * width
        self.conv1 = first or _convolution(3, width, 1)
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
    first = _ResidualBlock(width_in, width, stride)
    return nn.Sequential(first, *(_ResidualBlock(width, width, 1) for _ in range(blocks - 1)))


def published_resnet20() -> CifarResNet:
    """ResNet-20 with the published weights of CIFAR-10, for pictures as `normalised` gives them."""
    model = CifarResNet(20)
    model.load_state_dict(resnet20_weights(), strict=False)
    return model


def normalised(x: Tensor) -> Tensor:  # (n, 3, h, w)
    """Colours less ImageNet's means, over their deviations."""
    mean, deviation = (torch.tensor(v, device=x.device).reshape(1, 3, 1, 1) for v in (_MEAN, _DEVIATION))
    return (x - mean) / deviation


FILES = ("resnet50.npz", "resnet50.safetensors")
_HOW = (
    f"Put {FILES[0]} or {FILES[1]}, the state of torchvision's resnet50 by its own names (a .pth file is pickled and "
    "never read), into the folder MERCER_DATA names."
)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions and the way around them; the names are those of the published weights."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU()  # a module of its own, so that kernelize can take the last one off
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or width_in != 4 * width:
            way = nn.Conv2d(width_in, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(way, nn.BatchNorm2d(4 * width))

    @override
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


class ResNet50(nn.Module):
    """ResNet-50 for pictures of 224 x 224; its embedding has 32 x ``width`` = 2,048 numbers.

    >>> sum(p.numel() for p in ResNet50().parameters())
    25557032
    """

    def __init__(self, num_classes: int = 1000, *, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages, width_in = [], width
        for stage, blocks in enumerate((3, 4, 6, 3)):
            layers = []
            for block in range(blocks):
                layers.append(Bottleneck(width_in, width * 2**stage, 2 if stage and not block else 1))
                width_in = 4 * width * 2**stage
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.pool: nn.Module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(32 * width, num_classes)

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 224, 224) -> (n, c)
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(self.pool(self.layer4(self.layer3(self.layer2(self.layer1(x))))))
        return logits


def imagenet_resnet50(num_classes: int, *, folder: str | Path | None = None, width: int = 64) -> ResNet50:
    """ResNet-50 with ImageNet's weights and a fresh last layer.

    Raises:
        MissingData: No file with the weights is there.
        ValueError: The file's names or shapes are not those of ResNet-50.
    """
    base = data_folder(folder)
    path = next((base / name for name in FILES if base is not None and (base / name).is_file()), None)
    if path is None:
        raise MissingData(_HOW)
    # the state, by torchvision's names
    if path.suffix == ".npz":
        state = {name: torch.from_numpy(array.copy()) for name, array in read_npz(path, limit=2**28).items()}
    else:
        from safetensors.torch import load_file

        state = load_file(path)
    # all of it but the last layer goes into the model
    model = ResNet50(num_classes, width=width)
    body = {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}
    expected = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("fc.")}
    wrong = sorted(name for name in expected if name not in body or body[name].shape != expected[name].shape)
    wrong = [name for name in wrong if not name.endswith("num_batches_tracked")]
    if wrong:
        need = f"{path.name} must hold the weights of ResNet-50 by torchvision's names"
        raise ValueError(checks.sentence("imagenet_resnet50", need, f"none that fits {wrong[0]}", _HOW))
    model.load_state_dict(body, strict=False)
    return model
