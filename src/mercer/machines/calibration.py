"""From scores to probabilities: a scale, a power and one bias for each class, fitted to scores of rows left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from typing_extensions import override

from ..storage.savable import SavableModule

_SHRINK = 1e-4  # of the logits' squares: scores that separate the classes must not make the scale infinite
_LEAST = 0.01  # scores below it count as it in the logarithm


class Calibration(SavableModule):
    r""":math:`p = (1 - c \epsilon) \, \mathrm{softmax}(a s + q \log \max(s, 0.01) + b) + \epsilon`.

    Least squares on targets 0 and 1 gives scores that are nearly probabilities, which q = 1 keeps, where a alone would
    make rare classes too rare. The floor :math:`\epsilon = 1 / (2 (n + c))` is what n rows can tell at best of a class
    they never showed there.

    Args:
        scale: a.
        bias: b, ``(c,)``.
        floor: :math:`\epsilon`.
        power: q.
    """

    bias: Tensor

    def __init__(self, scale: float, bias: Tensor, floor: float, power: float = 0.0) -> None:
        super().__init__()
        self.scale, self.floor, self.power = scale, floor, power
        self.hold(bias=bias)

    @classmethod
    def of(
        cls,
        scores: Tensor,
        labels: Tensor,
        *,
        rows: int | None = None,
        shares: bool = False,
        weight: Tensor | None = None,
    ) -> Calibration:  # (n, c), (n,)
        r"""The scale and biases of least log loss.

        Args:
            scores: Scores of rows that were left out when they were learned.
            labels: Their classes, ``0..c - 1``.
            rows: n of the floor, where more rows were learned from than are scored.
            shares: Whether scores estimate 0 and 1. Then q is fitted too, and kept where it lowers the log loss of all
                rows by more than :math:`\frac12 \log n`, as the Bayesian information criterion asks.
            weight: Weights of the rows in the log loss, ``(n,)``; None for 1.
        """
        s, (n, c) = scores.double().numpy(), scores.shape
        truth, floor = np.eye(c)[labels.numpy()], 1 / (2 * ((rows or n) + c))
        w = np.ones(n) if weight is None else (weight / weight.mean()).numpy()
        loss, found = _fitted([s], truth, w)
        if shares:
            lower, both = _fitted([s, np.log(s.clip(_LEAST))], truth, w)
            if n * (loss - lower) > 0.5 * math.log(n):
                return cls(float(both[0]), torch.from_numpy(both[2:]), floor, float(both[1]))
        return cls(float(found[0]), torch.from_numpy(found[1:]), floor)

    @override
    def forward(self, scores: Tensor) -> Tensor:  # (n, c) -> (n, c)
        logits = self.scale * scores + self.bias.to(scores)
        if self.power:
            logits = logits + self.power * scores.clamp_min(_LEAST).log()
        p = torch.softmax(logits, 1)
        return (1 - scores.shape[1] * self.floor) * p + self.floor


def _fitted(features: Sequence[np.ndarray], truth: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean log loss, and non-negative weights of the features ``(n, c)`` followed by the biases.

    ``weight`` are the rows' weights ``(n,)``, of mean 1.
    """
    (n, c), k = truth.shape, len(features)
    sizes = [float(np.abs(f - f.mean(0)).mean()) or 1.0 for f in features]
    unit = np.stack([f / size for f, size in zip(features, sizes, strict=True)])  # (k, n, c)

    def loss(t: np.ndarray) -> tuple[float, np.ndarray]:
        z = np.tensordot(t[:k], unit, 1) + t[k:]
        z = z - z.max(1, keepdims=True)
        logp = z - np.log(np.exp(z).sum(1, keepdims=True))
        error = weight[:, None] * (np.exp(logp) - truth) / n
        gradient = np.append((unit * error).sum((1, 2)), error.sum(0)) + 2 * _SHRINK * t / n
        return float(-(weight @ (truth * logp)).sum() / n + _SHRINK * (t @ t) / n), gradient

    start = np.append(np.ones(k), np.log((weight @ truth / n).clip(1 / (n + c))))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * k + [(None, None)] * c)
    return float(found.fun), np.append(found.x[:k] / sizes, found.x[k:])
