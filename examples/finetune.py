"""Fine-tune a pre-trained ResNet-20 on few pictures with each head. Run: python examples/finetune.py

Needs ``MERCER_DATA`` with ``cifar10_resnet20_weights.npz`` and ``cifar100_subset.npz``; says so and stops where one is
absent. The network has learned CIFAR-10; here it learns the 100 classes of CIFAR-100 from at most 20 pictures of each.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import metrics
from mercer.nn import KernelClassifier, SecondOrderPooling, kernelize
from mercer_papers import data
from mercer_papers.data import CifarResNet

CLASSES = 100
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
HEADS = {
    "linear": lambda model, loader: model,
    "default": lambda model, loader: kernelize(model, loader=loader),
    "shared units": lambda model, loader: kernelize(model, head=lambda d, c: KernelClassifier(d, c, shared=64)),
    "before pooling": lambda model, loader: kernelize(model, place="before_pooling"),
    "second order": lambda model, loader: kernelize(
        model, place="before_pooling", head=lambda d, c: SecondOrderPooling(d, c, rank=32)
    ),
}


def pictures(rows: int, test_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = data.load("cifar100_subset", rows=(rows, test_rows))
    scale = [(x - MEAN[:, None, None]) / DEVIATION[:, None, None] for x in (found.x_train, found.x_test)]
    return scale[0], found.y_train, scale[1], found.y_test


def backbone(classes: int) -> nn.Module:
    """ResNet-20 with the weights of CIFAR-10 and a fresh last layer."""
    model = CifarResNet(20, 10)
    model.load_state_dict(data.resnet20_weights(), strict=False)
    model.linear = nn.Linear(64, classes)
    return model


def fine_tune(model: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float, seed: int) -> None:
    """AdamW, ten times the rate for the head, flips; weight decay leaves scales and biases alone."""
    head = {id(p) for name, p in model.named_parameters() if name.startswith("linear")}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in head], "lr": lr},
        {"params": [p for p in model.parameters() if id(p) in head and p.ndim > 1], "lr": 10 * lr},
        {
            "params": [p for p in model.parameters() if id(p) in head and p.ndim == 1],
            "lr": 10 * lr,
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-3)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            flipped = torch.rand(len(rows), generator=generator)[:, None, None, None] < 0.5
            batch = torch.where(flipped, x[rows].flip(3), x[rows])
            optimizer.zero_grad()
            F.cross_entropy(model(batch), y[rows]).backward()
            optimizer.step()


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(part) for part in x.split(250)]).softmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--heads", nargs="*", default=list(HEADS), choices=list(HEADS))
    options = parser.parse_args()
    try:
        x, y, x_test, y_test = pictures(options.rows, options.test_rows)
        data.resnet20_weights()
    except data.MissingData as reason:
        sys.exit(str(reason))
    print(f"{len(x)} pictures of {CLASSES} classes, {options.epochs} epochs\n")
    print(f"{'head':16s}{'accuracy %':>12s}{'NLL':>8s}{'ECE':>8s}{'CPU s':>8s}")
    loader = [(x[i : i + 250], y[i : i + 250]) for i in range(0, len(x), 250)]
    for name in options.heads:
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            model = HEADS[name](backbone(CLASSES), loader)
            model(x[:2])  # the first pass finds the places
            start = time.process_time()
            fine_tune(model, x, y, options.epochs, 1e-3, seed)
            seconds = time.process_time() - start
            p = probabilities(model, x_test)
            shown = (100 * metrics.accuracy(p, y_test), metrics.nll(p, y_test), metrics.ece(p, y_test), seconds)
            print(f"{name:16s}{shown[0]:12.1f}{shown[1]:8.3f}{shown[2]:8.3f}{shown[3]:8.1f}", flush=True)


if __name__ == "__main__":
    main()
