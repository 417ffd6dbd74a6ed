"""Two classes on the unit sphere, and their embeddings: none, random Fourier features, or a network's first layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mercer.features import RandomFourier
from mercer.kernels import RBF
from mercer.linalg.distances import unit_rows

from .. import data
from ..rivals import neural_embedding

COLUMNS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
SIZES: dict[str, dict[str, int]] = {  # rows, hidden units, steps; units and epochs of a neural embedding
    "smoke": {"rows": 60, "test_rows": 40, "width": 100, "steps": 20, "units": 50, "epochs": 3},
    "small": {"rows": 1000, "test_rows": 500, "width": 1000, "steps": 200, "units": 1000, "epochs": 100},
    "paper": {"rows": 10_000, "test_rows": 2000, "width": 10_000, "steps": 1000, "units": 10_000, "epochs": 100},
}


def required_data(name: str) -> tuple[str, ...]:
    """The data that the runner must find in MERCER_DATA for a set; digits come with scikit-learn."""
    if name == "digits":
        return ()
    return (name,)


class Pair(NamedTuple):
    """Two classes: unit rows, targets +1 for the first class and -1 for the second."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def second_half(self) -> Pair:
        """The training rows that a neural embedding of the same labels is not trained on."""
        half = len(self.x) // 2
        return self._replace(x=self.x[half:], y=self.y[half:])


def pair(name: str, rows: int | None, test_rows: int = 0, *, last: bool = False) -> Pair:
    """The first two classes of a set (the last two where ``last``), at most so many rows of them."""
    classes = (8, 9) if last else (0, 1)
    limit = None if rows is None else (rows, max(1, test_rows))
    dataset = data.load(name, classes=classes, rows=limit)
    signs = [1.0 - 2.0 * labels.double() for labels in (dataset.y_train, dataset.y_test)]
    flat = [unit_rows(x.flatten(1).double()) for x in (dataset.x_train, dataset.x_test)]
    return Pair(flat[0], signs[0], flat[1], signs[1])


def embed_pair(settings: Mapping[str, Any], generator: torch.Generator) -> Pair:
    """The pair that a cell names, in its embedding.

    ``trained_on`` of a neural embedding is ``"same"`` (the first half; the second is left to analyse), ``"other"``
    (the last two classes) or ``"nothing"``, the control: a first layer as it was drawn.
    """
    s = settings
    every = used = pair(s["set"], s["rows"], s["test_rows"])
    if s.get("half"):
        used = every.second_half()
    if s["kind"] == "none":
        return used
    if s["kind"] == "rff":
        features = RandomFourier(RBF(s["gamma"]), s["m"], generator=generator).fit(used.x)
        return used._replace(x=features(used.x), x_test=features(used.x_test))
    # a first layer, trained on rows that are not analysed
    first, epochs = every, s["epochs"]
    if s["trained_on"] == "same":
        half = len(every.x) // 2
        first, used = every._replace(x=every.x[:half], y=every.y[:half]), every.second_half()
    elif s["trained_on"] == "other":
        first = pair(s["set"], s["rows"], last=True)
    else:
        epochs = 0
    learned = neural_embedding(first.x.float(), first.y.float(), width=s["units"], epochs=epochs, generator=generator)
    return used._replace(x=learned(used.x.float()).double(), x_test=learned(used.x_test.float()).double())
