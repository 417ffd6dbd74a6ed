"""One temperature that makes leave-one-out scores into probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["inverse_temperature"]

_LOW, _HIGH = 0.1, 60.0  # scores are regressions on 0 and 1; a separable set would ask for infinity
_STEPS = 40


def inverse_temperature(scores: Tensor, labels: Tensor) -> float:
    r"""The :math:`\beta` of least :math:`-\frac1n \sum_i \log \mathrm{softmax}(\beta s_i)_{y_i}`.

    It is convex in :math:`\beta`. One positive number keeps the order of the scores, so the most
    probable class is the predicted one.

    Args:
        scores: Leave-one-out scores, ``(n, c)``.
        labels: Classes ``0..c - 1``.
    """

    def value(log_beta: float) -> float:
        return float(torch.nn.functional.cross_entropy(math.exp(log_beta) * scores, labels))

    low, high = math.log(_LOW), math.log(_HIGH)
    for _ in range(_STEPS):
        a, b = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, b) if value(a) <= value(b) else (a, high)
    return math.exp((low + high) / 2)
