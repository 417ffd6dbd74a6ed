"""The poster's eight sets, one fold at a time, standardised by the training rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ... import data
from ...data import Dataset
from ...layerwise import Standardize

SETS = ("random", "adver", "spiral", "wine", "cancer", "car", "face", "divorce")
NEEDS = {"car": ["car"], "face": ["cmu_faces"], "divorce": ["divorce"]}
FOLDS = 10
_MADE: dict[str, Callable[..., Dataset]] = {
    "random": data.random_labels,
    "adver": data.adversarial,
    "spiral": data.spiral,
}
_LOADED = {"wine": "wine", "cancer": "breast_cancer", "car": "car", "face": "cmu_faces", "divorce": "divorce"}


class Fold(NamedTuple):
    """Rows ``(n, d)`` in float64 and labels ``(n,)`` of the two parts, and the number of classes."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    c: int


def fold(name: str, number: int) -> Fold:
    """Fold ``number`` of 0..9 as the test part.

    The authors standardise their test folds by the folds' own statistics; here both parts are standardised by the
    training part's.
    """
    parts = _MADE[name](fold=number + 1) if name in _MADE else data.load(_LOADED[name], fold=number + 1)
    train, test = parts.x_train.flatten(1).double(), parts.x_test.flatten(1).double()
    standardize = Standardize.of(train)
    return Fold(standardize(train), parts.y_train, standardize(test), parts.y_test, len(parts.classes))
