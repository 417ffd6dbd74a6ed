"""Heads on scikit-learn's digits behind a narrow MLP 64-16-d, five seeds: who learns, who collapses.

OMP_NUM_THREADS=1 python benchmarks/heads_on_digits.py
"""

from __future__ import annotations

import statistics

import torch
from torch import nn
from torch.nn import functional as F

from mercer.data import load
from mercer.kernels import RadialSeries
from mercer.nn import CosineClassifier, KernelClassifier, SecondOrderPooling

HEADS = {
    "linear": lambda d: nn.Linear(d, 10),
    "LIN": lambda d: CosineClassifier(d, 10),
    "SOP": lambda d: SecondOrderPooling(d, 10),
    "paper (alpha = 1)": lambda d: KernelClassifier(d, 10, RadialSeries(init="ones", indicators="exact")),
    "default": lambda d: KernelClassifier(d, 10),
    "recommended (3 prototypes, bias)": lambda d: KernelClassifier(d, 10, prototypes=3, bias=True),
}


def main() -> None:
    torch.set_num_threads(1)
    digits = load("digits")
    x, x_test = digits.x_train.flatten(1), digits.x_test.flatten(1)
    mean, deviation = x.mean(0), x.std()
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    for width in (8, 3):
        for name, make in HEADS.items():
            scores = [accuracy(make, width, x, digits.y_train, x_test, digits.y_test, seed) for seed in range(5)]
            mean_, spread = statistics.mean(scores), statistics.stdev(scores)
            print(f"d = {width}  {name:34s} {mean_:.2f} +- {spread:.2f}  least {min(scores):.2f}", flush=True)


def accuracy(make, width, x, y, x_test, y_test, seed, epochs=30, batch=64, lr=0.1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, width), make(width))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return 100 * (model(x_test).argmax(1) == y_test).double().mean().item()


if __name__ == "__main__":
    main()
