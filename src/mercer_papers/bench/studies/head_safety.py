"""The default head beside nn.Linear at rates from small to too large: does it collapse, does it ever end behind?

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.head_safety [sphere mlp3 mlp8 cnn transformer] [--seeds 4]

Each head runs at every rate of SGD (momentum 0.9) and AdamW with every seed. A line shows the mean test accuracy at
each rate, the worst seed at the best rate, and the least gain over linear, seed by seed, where each head has the rate
that is best for it on average. All runs of one head train side by side (torch.func), one CPU minute or less for a
line; the data sets come with the library.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from mercer.nn import KernelClassifier
from mercer_papers.data import load, sphere

RATES = {"SGD": (0.05, 0.1, 0.2, 0.5, 1.0), "AdamW": (1e-4, 1e-3, 3e-3, 1e-2)}
EPOCHS = {"sphere": 15, "mlp3": 30, "mlp8": 30, "cnn": 15, "transformer": 15}
DECAY = {"SGD": 1e-4, "AdamW": 1e-2}

Rows = tuple[Tensor, Tensor, Tensor, Tensor]  # training rows and labels, test rows and labels


class Transformer(nn.Module):
    """Two encoder layers over the eight lines of a digit, and their mean."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(8, 32), nn.Parameter(0.02 * torch.randn(8, 32))
        self.packed = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.joined = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.hidden = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2))
        self.head = head

    def forward(self, x: Tensor) -> Tensor:  # (n, 64) -> (n, c)
        """Logits; attention is written out, because torch.func does not see through the fused one."""
        h = self.embed(x.unflatten(1, (8, 8))) + self.places
        for layer in range(2):
            parts = [part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.packed[layer](h).chunk(3, -1)]
            weights = (parts[0] @ parts[1].mT / math.sqrt(8)).softmax(-1)
            attended = self.joined[layer]((weights @ parts[2]).transpose(1, 2).flatten(2))
            h = self.norms[2 * layer](h + attended)
            h = self.norms[2 * layer + 1](h + self.hidden[layer](h))
        logits: Tensor = self.head(h.mean(1))
        return logits


def make_model(task: str, kernel: bool) -> nn.Module:
    """A fresh network with the kernelised or the linear head."""

    def head(d: int, c: int = 10) -> nn.Module:
        if not kernel:
            return nn.Linear(d, c)
        return KernelClassifier(d, c, prototypes=10 if task == "sphere" else 1)

    if task == "sphere":
        return head(3, 2)
    if task.startswith("mlp"):
        d = int(task[3:])
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, d), head(d))
    if task == "cnn":
        blocks = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
        return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(16))
    return Transformer(head(32))


def load_task(task: str, seeds: Sequence[int]) -> list[Rows]:
    """Rows for each seed: another draw of the sphere, or the digits, standardised."""
    if task == "sphere":
        drawn = [sphere(1500, 2500, seed=1 + seed) for seed in seeds]
        return [(each.x_train, each.y_train, each.x_test, each.y_test) for each in drawn]
    digits = load("digits")
    x, x_test = digits.x_train.flatten(1), digits.x_test.flatten(1)
    mean, deviation = x.mean(0), x.std()
    rows = ((x - mean) / deviation, digits.y_train, (x_test - mean) / deviation, digits.y_test)
    return [rows for _ in seeds]


def train(
    make: Callable[[], nn.Module], rows: Sequence[Rows], rates: Sequence[float], optimizer: str, epochs: int,
    batch: int = 64,
) -> Tensor:  # fmt: skip
    """Test accuracy in percent, ``(seeds, rates)``: cosine rate, short warm-up, all runs in one stacked model."""
    runs = [(seed, rate) for seed in range(len(rows)) for rate in rates]
    models = []
    for seed, _ in runs:  # one start for each seed, whatever the rate
        torch.manual_seed(seed)
        models.append(make())
    stacked, buffers = stack_module_state(models)
    parameters = {name: p.detach().clone() for name, p in stacked.items()}
    base = models[0]

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, (p, b), (x,)), y)

    gradients = vmap(grad(loss))
    first = {name: torch.zeros_like(p) for name, p in parameters.items()}
    second = {name: torch.zeros_like(p) for name, p in parameters.items()}
    base_rate = torch.tensor([rate for _, rate in runs])
    generators = [torch.Generator().manual_seed(1000 + seed) for seed in range(len(rows))]
    n = len(rows[0][0])
    steps, step = epochs * (n // batch), 0
    for _ in range(epochs):
        orders = [torch.randperm(n, generator=generator) for generator in generators]
        for start in range(0, n - batch + 1, batch):
            chosen = [(rows[seed], orders[seed][start : start + batch]) for seed, _ in runs]
            x = torch.stack([each[0][index] for each, index in chosen])
            y = torch.stack([each[1][index] for each, index in chosen])
            slopes, step = gradients(parameters, buffers, x, y), step + 1
            share = 0.5 * (1 + math.cos(math.pi * step / steps)) * min(1.0, 20 * step / steps)
            for name, p in parameters.items():
                rate, slope = (base_rate * share).view(-1, *[1] * (p.ndim - 1)), slopes[name]
                if optimizer == "SGD":
                    first[name].mul_(0.9).add_(slope + DECAY["SGD"] * p)
                    p.sub_(rate * first[name])
                else:
                    first[name].lerp_(slope, 0.1)
                    second[name].lerp_(slope * slope, 1e-3)
                    length = (second[name] / (1 - 0.999**step)).sqrt() + 1e-8
                    p.mul_(1 - rate * DECAY["AdamW"]).sub_(rate * first[name] / (1 - 0.9**step) / length)
    accuracies = []
    with torch.no_grad():
        for run, (seed, _) in enumerate(runs):
            own = ({k: p[run] for k, p in parameters.items()}, {k: b[run] for k, b in buffers.items()})
            guess = functional_call(base, own, (rows[seed][2],)).argmax(1)
            accuracies.append(100 * (guess == rows[seed][3]).double().mean())
    return torch.stack(accuracies).view(len(rows), len(rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(EPOCHS), help="all by default")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--optimizers", nargs="*", default=list(RATES), choices=list(RATES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for task in arguments.tasks:
        rows = load_task(task, range(arguments.seeds))
        for optimizer in arguments.optimizers:
            best: dict[str, Tensor] = {}
            for name in ("linear", "default"):
                make = partial(make_model, task, name == "default")
                scores = train(make, rows, RATES[optimizer], optimizer, EPOCHS[task])
                best[name] = scores[:, scores.mean(0).argmax()]
                shown = "  ".join(f"{rate:g}: {score:.1f}" for rate, score in
                                  zip(RATES[optimizer], scores.mean(0).tolist(), strict=True))  # fmt: skip
                gain = (best[name] - best["linear"]).min().item()
                print(f"{task:11s} {optimizer:5s} {name:7s} {shown}   best {best[name].mean():.1f}, worst seed "
                      f"{best[name].min():.1f}, least gain {gain:+.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
