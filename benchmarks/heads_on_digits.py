"""Heads on scikit-learn's digits behind a narrow MLP 64-16-d, five seeds: who learns, who collapses.

    OMP_NUM_THREADS=1 python benchmarks/heads_on_digits.py
    OMP_NUM_THREADS=1 python benchmarks/heads_on_digits.py --tune

``--tune`` compares the scales of the start on a held-out quarter of the training part: no test row is seen.
"""

from __future__ import annotations

import argparse
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


SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    tune = parser.parse_args().tune
    torch.set_num_threads(1)
    digits = load("digits")
    x, y, x_test, y_test = digits.x_train.flatten(1), digits.y_train, digits.x_test.flatten(1), digits.y_test
    if tune:
        cut = 3 * len(x) // 4
        x, y, x_test, y_test = x[:cut], y[:cut], x[cut:], y[cut:]
    mean, deviation = x.mean(0), x.std()
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    heads = {f"k(1) = {scale:g}": lambda d, scale=scale: started(d, scale) for scale in SCALES} if tune else HEADS
    for width in (8, 3):
        for name, make in heads.items():
            scores = [accuracy(make, width, x, y, x_test, y_test, seed) for seed in range(5)]
            mean_, spread = statistics.mean(scores), statistics.stdev(scores)
            print(f"d = {width}  {name:34s} {mean_:.2f} +- {spread:.2f}  least {min(scores):.2f}", flush=True)


def started(d, scale):
    """The default head, its series scaled to k(1) = scale at the start."""
    head = KernelClassifier(d, 10)
    with torch.no_grad():
        head.kernel.alpha *= scale / head.kernel.coefficients.sum()
    return head


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
