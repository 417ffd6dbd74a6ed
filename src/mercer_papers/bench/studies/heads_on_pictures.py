"""Heads on frozen picture embeddings where rows are few, where classes are rare, and before the pooling.

    MERCER_DATA=... OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.heads_on_pictures [few long_tail places]

``few``: 10 rows of each of CIFAR-100's classes. ``long_tail``: 300 rows of the first class down to 3 of the last.
``places``: 4 x 4 places of the second stage of a ResNet-20 on pictures of CIFAR-10 that it has not seen, heads of some
12,250 parameters. Rates are chosen on validation rows, other rows score, five seeds
(``mercer_papers.bench.head_fits``).
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from functools import cache

import torch
from torch import nn

from mercer.nn import KernelClassifier, SecondOrderPooling
from mercer_papers import data
from mercer_papers.bench.head_fits import HEADS, Rows, picture_embeddings, scores
from mercer_papers.data import CifarResNet

UNITS, HIDDEN = 270, 285  # of shared units and of an MLP of their size


def thinned(counts, epochs):
    """The first rows of each class of the training part, as many as ``counts`` has."""
    rows = picture_embeddings(100)
    z, y = rows.parts[0]
    kept = torch.cat([(y == label).nonzero()[:, 0][: int(count)] for label, count in enumerate(counts)])
    return dataclasses.replace(rows, parts=((z[kept], y[kept]), *rows.parts[1:]), epochs=epochs, batch=64)


@cache
def few():
    return thinned([10] * 100, 30)


@cache
def long_tail():
    return thinned([300 * 100 ** (-label / 99) for label in range(100)], 10)


@cache
@torch.no_grad()
def places():
    found = data.load("cifar10", rows=(10, 10_000))
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (found.x_test - mean[:, None, None]) / deviation[:, None, None]
    model = CifarResNet(20, 10).eval()
    model.load_state_dict(data.resnet20_weights(), strict=False)
    kept = []
    model.layer2.register_forward_hook(lambda _, __, out: kept.append(nn.functional.adaptive_avg_pool2d(out, 4)))
    for part in x.split(250):
        model(part)
    z = torch.cat(kept).flatten(2).mT  # (n, 16, 32)
    parts = [slice(0, 6000), slice(6000, 7500), slice(7500, 10_000)]
    mean, deviation = z[parts[0]].mean((0, 1)), z[parts[0]].std((0, 1))
    z = (z - mean) / deviation
    return Rows("places", tuple((z[part], found.y_test[part]) for part in parts), 10, UNITS, 5, 64)


class Pooled(nn.Module):
    """A head on the mean of the places."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, z):
        return self.head(z.mean(1))


class Placed(Pooled):
    """A head whose kernel is read at every place."""

    def forward(self, z):
        return self.head.at_places(z.mean(1), z)


class PlacedMLP(nn.Module):
    """Hidden units at every place, averaged, layer-normed, with a linear skip."""

    def __init__(self, d, c):
        super().__init__()
        self.hidden, self.norm = nn.Linear(d, HIDDEN - 20), nn.LayerNorm(HIDDEN - 20)
        self.out, self.skip = nn.Linear(HIDDEN - 20, c), nn.Linear(d, c, bias=False)

    def forward(self, z):
        return self.out(self.norm(self.hidden(z).relu().mean(1))) + self.skip(z.mean(1))


PLACES = {
    "linear, pooled": lambda d, c: Pooled(nn.Linear(d, c)),
    "default, pooled": lambda d, c: Pooled(KernelClassifier(d, c)),
    "shared, pooled": lambda d, c: Pooled(KernelClassifier(d, c, shared=UNITS)),
    "MLP, pooled": lambda d, c: Pooled(nn.Sequential(nn.Linear(d, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, c))),
    "shared, before pooling": lambda d, c: Placed(KernelClassifier(d, c, shared=UNITS)),
    "MLP, before pooling": PlacedMLP,
    "second order, before pooling": lambda d, c: Placed(SecondOrderPooling(d, c, rank=46)),
}


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ("few", "long_tail", "places"):
        heads = list(PLACES) if name == "places" else list(HEADS)
        for head in heads:
            if head in PLACES:
                HEADS[head] = lambda rows, make=PLACES[head]: make(rows.parts[0][0].shape[-1], rows.classes)
            found = scores(head, globals()[name])
            accuracy, spread = statistics.mean(found.accuracy), statistics.stdev(found.accuracy)
            shown = f"{accuracy:.2f} +- {spread:.2f}  NLL {statistics.mean(found.nll):.3f}"
            shown += f"  ECE {100 * statistics.mean(found.ece):.1f}  rate {found.rate:g}  parameters {found.parameters}"
            print(f"{name:10s} {head:30s} {shown}", flush=True)


if __name__ == "__main__":
    main()
