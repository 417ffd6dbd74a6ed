"""A long-tailed CIFAR-10 learned from scratch with each head: 1,000 pictures of the first class down to 10 of the last.

    MERCER_DATA=... OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.long_tail_from_scratch [--heads ...]

Half-width ResNet-8, 2,480 pictures, 10 epochs of SGD with flips and crops. The rate of each head is chosen by the
accuracy on 1,000 other training pictures, all classes alike; 2,000 test pictures, all classes alike, score three seeds.
About ten CPU minutes.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import nn

from mercer import metrics
from mercer.kernels import RadialSeries
from mercer.nn import CosineClassifier, KernelClassifier, kernelize
from mercer_papers.jayasumana2021.heads import backbone
from mercer_papers.jayasumana2021.trained import STAND_IN, cifar, fit, logits

MOST, RATIO, CLASSES, HELD_OUT = 1000, 100, 10, 100
RATES = (0.03, 0.1, 0.3)
HEADS = {
    "linear": nn.Linear,
    "cosine": CosineClassifier,
    "default": KernelClassifier,
    "paper's": lambda d, c: KernelClassifier(
        d, c, RadialSeries(init="ones", indicators="exact"), bias=False, temperature=1.0
    ),
    "64 shared units": lambda d, c: KernelClassifier(d, c, shared=64),
}


def parts():
    """Training pictures with a long tail, balanced held-out pictures, balanced test pictures."""
    x, y, x_test, y_test = cifar("cifar10", 12_000, 2000)
    own = [(y == label).nonzero()[:, 0] for label in range(CLASSES)]
    held_out = torch.cat([rows[:HELD_OUT] for rows in own])
    counts = [round(MOST * RATIO ** (-label / (CLASSES - 1))) for label in range(CLASSES)]
    train = torch.cat([rows[HELD_OUT : HELD_OUT + count] for rows, count in zip(own, counts, strict=True)])
    return (x[train], y[train]), (x[held_out], y[held_out]), (x_test, y_test)


def trained(name, x, y, rate, seed):
    torch.manual_seed(seed)
    model = backbone(STAND_IN, CLASSES)
    model = kernelize(model, head=HEADS[name], rectify="off") if name != "linear" else model
    fit(model, x, y, epochs=10, lr=rate, generator=torch.Generator().manual_seed(seed))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="*", default=list(HEADS), choices=list(HEADS))
    chosen = parser.parse_args().heads
    torch.set_num_threads(1)
    (x, y), (x_held, y_held), (x_test, y_test) = parts()
    print(f"{len(x)} pictures, accuracy of the three seeds, of the three rarest classes, NLL, ECE, rate")
    for name in chosen:
        held = {rate: accuracy(trained(name, x, y, rate, 99), x_held, y_held) for rate in RATES}
        rate = max(held, key=held.__getitem__)
        found = [scores(trained(name, x, y, rate, seed), x_test, y_test) for seed in range(3)]
        seeds = ", ".join(f"{each[0]:.1f}" for each in found)
        rest = [statistics.mean(column) for column in zip(*found, strict=True)]
        shown = f"{seeds} ({rest[0]:.2f})  rare {rest[1]:.1f}  NLL {rest[2]:.3f}  ECE {100 * rest[3]:.1f}"
        print(f"{name:18s} {shown}  rate {rate:g}", flush=True)


def accuracy(model, x, y):
    return 100 * metrics.accuracy(logits(model, x).softmax(1), y)


def scores(model, x, y):
    p = logits(model, x).softmax(1)
    rare = y >= CLASSES - 3
    return 100 * metrics.accuracy(p, y), 100 * metrics.accuracy(p[rare], y[rare]), metrics.nll(p, y), metrics.ece(p, y)


if __name__ == "__main__":
    main()
