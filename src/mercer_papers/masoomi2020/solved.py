"""The poster's eight sets by folds, and the two solvers on them: a chain, a ridge read-out of any of its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mercer.layerwise.bandwidths import most_dependent, walk_down
from mercer.layerwise.closed_form import Chain, class_norms, fit_closed_form
from mercer.layerwise.dependence import gaussian, one_hot
from mercer.layerwise.network import Standardize
from mercer.layerwise.record import measure_gram
from mercer.layerwise.spectral import fit_spectral
from mercer.linalg.ridge import ridge_loo

from .. import data
from ..data import Dataset

SETS = ("random", "adver", "spiral", "wine", "cancer", "car", "face", "divorce")
NEEDS = {"car": ["car"], "face": ["cmu_faces"], "divorce": ["divorce"]}
FOLDS = 10
_MADE: dict[str, Callable[..., Dataset]] = {
    "random": data.random_labels,
    "adver": data.adversarial,
    "spiral": data.spiral,
}
_LOADED = {"wine": "wine", "cancer": "breast_cancer", "car": "car", "face": "cmu_faces", "divorce": "divorce"}
HELD_OUT = "W_s, leave-one-out"
RESTARTED = "W_s, up to 8 restarts"  # ours: a walk that stalls begins again from narrower bandwidths
_RIDGES = [10.0**e for e in range(-6, 3)]
DECEIVING = ("random", "adver")  # theorem 1's sets: up to 20 layers, as long as H reaches its maximum


class Fold(NamedTuple):
    """Rows ``(n, d)`` in float64 and labels ``(n,)`` of the two parts, and the number of classes."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    c: int


def fold(name: str, number: int) -> Fold:
    """Fold ``number`` of 0..9 as the test part.

    The authors standardize their test folds by the folds' own statistics; here both parts are standardized by the
    training part's.
    """
    if name in _MADE:
        parts = _MADE[name](fold=number + 1)
    else:
        parts = data.load(_LOADED[name], fold=number + 1)
    train, test = parts.x_train.flatten(1).double(), parts.x_test.flatten(1).double()
    standardize = Standardize.of(train)
    return Fold(standardize(train), parts.y_train, standardize(test), parts.y_test, len(parts.classes))


class Readout(NamedTuple):
    """Accuracy of a ridge on a layer's outputs."""

    train: float
    test: float


def solve(method: str, name: str, x: Tensor, y: Tensor, c: int, seed: int) -> Chain:
    """ISM, the authors' W_s in one walk of bandwidths, or our variants of it."""
    if method == "ISM":
        return fit_spectral(x, y, c, generator=torch.Generator().manual_seed(seed))
    if method == HELD_OUT:
        return fit_closed_form(x, y, c, rule="leave_one_out")
    restarts = 8 if method == RESTARTED else 0
    if name in DECEIVING:
        return fit_closed_form(x, y, c, rule="authors", max_layers=20, enough=0.99, restarts=restarts)
    return fit_closed_form(x, y, c, rule="authors", restarts=restarts)


def stack_layers(parts: Fold, layers: int, enough: float, halvings: int) -> list[float]:
    """H of the inputs and after every layer of W_s; none is left out.

    Each layer takes the first of ten falling bandwidths that raises H, or else the one of greatest H. The walk begins
    at the bandwidth of greatest H on the inputs, halved ``halvings`` times.
    """
    z, y, c = parts.x_train, parts.y_train, parts.c
    bandwidth = most_dependent(z, y, c) / 2**halvings
    H = [measure_gram(gaussian(bandwidth)(z), z, y, c, bandwidth).hsic]
    for _ in range(layers):
        tried: list[tuple[float, Tensor, float]] = []
        for candidate in walk_down(bandwidth, 0.1 * bandwidth, 10):
            gram = gaussian(candidate)(z)
            outputs = gram @ (one_hot(y, c) / class_norms(gram, y, c, "class"))
            after = most_dependent(outputs, y, c)
            h = measure_gram(gaussian(after)(outputs), outputs, y, c, candidate).hsic
            tried.append((h, outputs, after))
            if h > H[-1]:
                break
        # the layer that was found, or the best that was tried
        h, z, bandwidth = max(tried, key=lambda step: step[0])
        H.append(h)
        if h >= enough:
            break
    return H


def pass_through(chain: Chain, x: Tensor) -> list[Tensor]:
    """Outputs of every layer for new rows, in IDS for W_s and in RKHS for ISM."""
    outputs = []
    for layer in chain.layers:
        x = layer(x)
        outputs.append(x)
    return outputs


def read_out(train: Tensor, y: Tensor, test: Tensor, y_test: Tensor, c: int) -> Readout:
    """Ridge with closed-form leave-one-out on a layer's outputs."""
    spread = float(train.std()) or 1.0
    ridge = ridge_loo(train / spread, one_hot(y, c), _RIDGES)

    def accuracy(rows: Tensor, labels: Tensor) -> float:
        scores = rows / spread @ ridge.coefficients + ridge.intercept
        return float((scores.argmax(1) == labels).double().mean())

    return Readout(accuracy(train, y), accuracy(test, y_test))
