"""What the entries of the paper share: two classes on the unit sphere, their embeddings, the trained network."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from ... import data
from ...features import RandomFourier
from ...kernels import RBF, Kernel, ReLUGram
from ...linalg import unit_rows
from ...spectral import TwoLayerNet, analyze, neural_embedding, train_two_layer
from ..cells import Cell

GAMMA = 1.0
SCALE = 1e-2  # the paper's k, the deviation of the first weights
RATE = 2e-4  # the paper's eta, for the sum over all its rows
PAPER_ROWS = {"mnist": 12_665, "cifar10": 10_000, "digits": 12_665}
COLUMNS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
PLAIN = ("no kernel", "RFF 500", "RFF 1000", "RFF 3072", "RFF 10000")
NEURAL = ("no kernel", "RFF 10000", "neural, same labels", "neural, other labels")
SIZES = {  # rows to train on, rows to test on, hidden units, steps; units and epochs of a neural embedding
    "smoke": {"rows": 60, "test": 40, "width": 100, "steps": 20, "units": 50, "epochs": 3},
    "small": {"rows": 1000, "test": 500, "width": 1000, "steps": 200, "units": 1000, "epochs": 100},
    "paper": {"rows": 10_000, "test": 2000, "width": 10_000, "steps": 1000, "units": 10_000, "epochs": 100},
}


class Pair(NamedTuple):
    """Two classes: unit rows, targets +1 for the first class and -1 for the second."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def pair(name: str, rows: int | None, test: int = 0, *, last: bool = False) -> Pair:
    """The first two classes of a set (the last two where ``last``), at most ``rows`` and ``test`` of them."""
    classes = (8, 9) if last else (0, 1)
    limit = None if rows is None else (rows, max(1, test))
    found = data.load(name, classes=classes, rows=limit)
    signs = [1.0 - 2.0 * labels.double() for labels in (found.y_train, found.y_test)]
    flat = [unit_rows(x.flatten(1).double()) for x in (found.x_train, found.x_test)]
    return Pair(flat[0], signs[0], flat[1], signs[1])


def curve_cells(entry: str, sets: tuple[str, ...], embeddings: tuple[str, ...], scale: str) -> list[Cell]:
    """One cell for each set and embedding; what is trained, and how long, in the settings."""
    size = SIZES[scale]
    return [
        Cell(
            entry,
            row=embedding,
            column=COLUMNS[name],
            data=() if name == "digits" else (name,),
            seeds=1 if scale != "paper" else 3,
            settings={"set": name, "embedding": embedding, **size},
        )
        for name in sets
        for embedding in embeddings
    ]


class Trained(NamedTuple):
    """Losses by step, half the mean square; accuracy by step; the predicted loss; the laziness number."""

    loss: list[float]
    test_loss: list[float]
    accuracy: list[float]
    predicted: list[float]
    laziness: float


@functools.lru_cache(maxsize=32)  # several figures are drawn of one training
def trained(
    name: str, embedding: str, rows: int, test: int, width: int, steps: int, units: int, epochs: int, seed: int
) -> Trained:
    """Full-batch descent of the two-layer network on an embedding, and what the spectrum foretold of it.

    The rate is the paper's times (its rows / ours), because the loss is a sum over rows: eta n is then the paper's.
    """
    generator = torch.Generator().manual_seed(seed)
    both = embedded(name, embedding, rows, test, units, epochs, generator)
    lr = RATE * PAPER_ROWS[name] / len(both.x)  # on half the rows this doubles eta, as the paper does
    spectrum = analyze(ReLUGram(), both.x, both.y)
    predicted = spectrum.convergence(lr, steps).square() / (2 * len(both.x))
    x, x_test = in_their_span(both.x, both.x_test)
    network = TwoLayerNet(x.shape[1], width, scale=SCALE, generator=generator)
    run = train_two_layer(
        network, x.float(), both.y.float(), lr=lr, steps=steps, test=(x_test.float(), both.y_test.float())
    )
    assert run.test_residual is not None and run.test_accuracy is not None
    return Trained(
        loss=(run.residual.square() / (2 * len(x))).tolist(),
        test_loss=(run.test_residual.square() / (2 * len(x_test))).tolist(),
        accuracy=run.test_accuracy.tolist(),
        predicted=predicted.tolist(),
        laziness=spectrum.laziness(lr, steps, width=width, scale=SCALE),
    )


def embedded(
    name: str, embedding: str, rows: int, test: int, units: int, epochs: int, generator: torch.Generator
) -> Pair:
    """The pair in an embedding: none, ``RFF m``, or a neural one trained on other rows or on other classes."""
    whole = pair(name, rows, test)
    if embedding == "no kernel":
        return whole
    if embedding.startswith("RFF "):
        features = RandomFourier(RBF(GAMMA), int(embedding[4:]), generator=generator).fit(whole.x)
        return whole._replace(x=features(whole.x), x_test=features(whole.x_test))
    if embedding == "neural, same labels":
        half = len(whole.x) // 2
        first, whole = (whole.x[:half], whole.y[:half]), whole._replace(x=whole.x[half:], y=whole.y[half:])
    else:
        other = pair(name, rows, last=True)
        first = (other.x, other.y)
    learned = neural_embedding(first[0].float(), first[1].float(), width=units, epochs=epochs, generator=generator)
    return whole._replace(x=learned(whole.x.float()).double(), x_test=learned(whole.x_test.float()).double())


def in_their_span(x: Tensor, x_test: Tensor) -> tuple[Tensor, Tensor]:
    """The same scalar products in as few coordinates as there are rows.

    A network with normal first weights sees its rows through scalar products alone, so that its training has the same
    distribution in coordinates of the rows' span.
    """
    both = torch.cat((x, x_test))
    if both.shape[1] <= len(both):
        return x, x_test
    coordinates = torch.linalg.qr(both.mT, mode="r").R.mT
    return coordinates[: len(x)], coordinates[len(x) :]


def gram_kernel(row: str, x: Tensor, generator: torch.Generator) -> tuple[Kernel, Tensor]:
    """H of a row of table 1, with the rows it reads."""
    if row == "no kernel":
        return ReLUGram(), x
    gamma, kind = row.removeprefix("gamma ").split(", ")
    if kind == "exact":
        return ReLUGram(RBF(float(gamma))), x
    features = RandomFourier(RBF(float(gamma)), int(kind.removeprefix("RFF ")), generator=generator)
    return ReLUGram(), features.fit_transform(x)
