"""Heads on scikit-learn's digits behind a narrow MLP 64-16-d, five seeds: who learns, who collapses.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.heads_on_digits [--heads linear default]

The rate of each head is chosen on a held-out quarter of the training part, three seeds: no test row is seen.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import nn
from torch.nn import functional as F

from mercer.kernels import RadialSeries
from mercer.nn import CosineClassifier, KernelClassifier, SecondOrderPooling
from mercer_papers.data import load

HEADS = {
    "linear": lambda d: nn.Linear(d, 10),
    "LIN": lambda d: CosineClassifier(d, 10),
    "SOP": lambda d: SecondOrderPooling(d, 10),
    "paper (alpha = 1)": lambda d: KernelClassifier(
        d, 10, RadialSeries(init="ones", indicators="exact"), bias=False, temperature=1.0
    ),
    "default": lambda d: KernelClassifier(d, 10),
    "3 prototypes": lambda d: KernelClassifier(d, 10, prototypes=3),
    "64 shared units": lambda d: KernelClassifier(d, 10, shared=64),
}
RATES = (0.03, 0.1, 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="*", default=list(HEADS), choices=list(HEADS))
    chosen = parser.parse_args().heads
    torch.set_num_threads(1)
    digits = load("digits")
    x, y, x_test, y_test = digits.x_train.flatten(1), digits.y_train, digits.x_test.flatten(1), digits.y_test
    mean, deviation = x.mean(0), x.std()
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    cut = 3 * len(x) // 4
    for width in (8, 3):
        for name in chosen:
            make = HEADS[name]
            tuned = {lr: [accuracy(make, width, x[:cut], y[:cut], x[cut:], y[cut:], seed, lr=lr) for seed in range(3)]
                     for lr in RATES}  # fmt: skip
            lr = max(RATES, key=lambda rate: statistics.mean(tuned[rate]))
            scores = [accuracy(make, width, x, y, x_test, y_test, seed, lr=lr) for seed in range(5)]
            mean_, spread = statistics.mean(scores), statistics.stdev(scores)
            shown = f"{mean_:.2f} +- {spread:.2f}  least {min(scores):.2f}  rate {lr:g}"
            print(f"d = {width}  {name:20s} {shown}", flush=True)


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
