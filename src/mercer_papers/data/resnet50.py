"""ResNet-50 of ImageNet (He et al., 2016), with weights from a local file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from mercer import checks
from mercer.storage.archives import read_npz

from .sources import MissingData, data_folder

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
    if path.suffix == ".npz":
        state = {name: torch.from_numpy(array.copy()) for name, array in read_npz(path, limit=2**28).items()}
    else:
        from safetensors.torch import load_file

        state = load_file(path)
    model = ResNet50(num_classes, width=width)
    body = {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("fc.")}
    wrong = sorted(name for name in own if name not in body or body[name].shape != own[name].shape)
    wrong = [name for name in wrong if not name.endswith("num_batches_tracked")]
    if wrong:
        need = f"{path.name} must hold the weights of ResNet-50 by torchvision's names"
        raise ValueError(checks.sentence("imagenet_resnet50", need, f"none that fits {wrong[0]}", _HOW))
    model.load_state_dict(body, strict=False)
    return model
