"""Does FunctionSpaceSGD diverge without any setting? Seeds x problems, small sizes, one line each.

    python -m mercer_papers.bench.studies.optim_divergence --seeds 20

A run diverges where a loss is not finite or the loss over the training rows ends above that of a constant guess.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.optim import FunctionSpaceSGD
from mercer_papers.bench.studies.optim_networks import Encoder, Recurrent
from mercer_papers.data import load


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, wide_in: int, wide: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(wide_in, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide))
        self.shortcut = nn.Conv2d(wide_in, wide, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        return F.relu(self.b(self.a(x)) + self.shortcut(x))


class Transformer(nn.Module):
    """One block over the rows of a picture as tokens."""

    def __init__(self, side: int, wide: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(side, wide), nn.Parameter(0.02 * torch.randn(side, wide))
        self.mix, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.first, self.second, self.third = nn.LayerNorm(wide), nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.up, self.down, self.head = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide), nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.embed(x) + self.place
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.mix(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        logits: Tensor = self.head(self.third(x).mean(1))
        return logits


def mlp(d: int) -> nn.Module:
    """Two hidden layers of 100."""
    return nn.Sequential(nn.Linear(d, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def cnn() -> nn.Module:
    """Two convolutions."""
    pool = nn.MaxPool2d(2)
    body = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), pool, nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), pool]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64, 10))


def resnet() -> nn.Module:
    """A ResNet-8 of 8 channels."""
    stem = [nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    body = [Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def pictures(x: Tensor) -> Tensor:
    """Rows of 64 as pictures of 8 x 8."""
    return x.reshape(len(x), 1, 8, 8)


PROBLEMS: dict[str, tuple[str, Callable[[Tensor], Tensor], Callable[[Tensor], nn.Module]]] = {
    "digits": ("digits", lambda x: x.flatten(1), lambda x: mlp(x.shape[1])),
    "usps": ("usps", lambda x: x.flatten(1), lambda x: mlp(x.shape[1])),
    "mnist": ("mnist", lambda x: x.flatten(1), lambda x: mlp(x.shape[1])),
    "cnn": ("digits", pictures, lambda x: cnn()),
    "resnet8": ("digits", pictures, lambda x: resnet()),
    "transformer": ("digits", lambda x: x.reshape(len(x), 8, 8), lambda x: Transformer(8)),
    "encoder": ("digits", lambda x: x.reshape(len(x), 8, 8), lambda x: Encoder(8, 8)),
    "lstm": ("digits", lambda x: x.reshape(len(x), 8, 8), lambda x: Recurrent(8)),
}


def final_loss(x: Tensor, y: Tensor, make: Callable[[Tensor], nn.Module], seed: int, epochs: int) -> float:
    """Mean loss over the last five batches of a run at the default settings."""
    torch.manual_seed(seed)
    model = make(x)
    optimizer = FunctionSpaceSGD(model.parameters(), model=model)
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // 64 * 64].split(64):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    optimizer.close()
    return sum(losses[-5:]) / 5


def main() -> None:
    """Print, for each problem, the worst loss over the seeds and how many runs diverged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name, (source, shape, make) in PROBLEMS.items():
        data = load(source, rows=None if source == "digits" else (1500, 10))
        x = shape(data.x_train)
        ends = []
        for seed in range(chosen.seeds):
            try:
                ends.append(final_loss(x, data.y_train, make, seed, chosen.epochs))
            except FloatingPointError:
                ends.append(math.inf)
        bad = sum(not end < math.log(10) for end in ends)
        print(f"{name:12s} worst {max(ends):.3f}, mean {sum(ends) / len(ends):.3f}, diverged {bad} of {len(ends)}")


if __name__ == "__main__":
    main()
