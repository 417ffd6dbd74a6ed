"""From scores to probabilities: one scale and one bias for each class, fitted to scores of rows left out."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from typing_extensions import override

from ..storage import Savable

__all__ = ["Calibration"]

_SHRINK = 1e-4  # of the logits' squares: scores that separate the classes must not make the scale infinite


class Calibration(Savable, nn.Module):
    r""":math:`p = (1 - c \epsilon) \, \mathrm{softmax}(a s + b) + \epsilon`.

    The floor :math:`\epsilon = 1 / (2 (n + c))` is what n rows can tell at best of a class they never showed there.

    Args:
        scale: a.
        bias: b, ``(c,)``.
        floor: :math:`\epsilon`.
    """

    bias: Tensor

    def __init__(self, scale: float, bias: Tensor, floor: float) -> None:
        super().__init__()
        self.scale, self.floor = scale, floor
        self.register_buffer("bias", bias)

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, *, rows: int | None = None) -> Calibration:  # (n, c), (n,)
        """The scale and biases of least log loss.

        Args:
            scores: Of rows that were left out when the scores were learned.
            labels: Their classes, ``0..c - 1``.
            rows: n of the floor, where more rows were learned from than are scored.
        """
        s, n, c = scores.double().numpy(), *scores.shape
        truth = np.eye(c)[labels.numpy()]
        size = float(np.abs(s - s.mean(0)).mean()) or 1.0
        s = s / size

        def loss(t: np.ndarray) -> tuple[float, np.ndarray]:
            z = t[0] * s + t[1:]
            z = z - z.max(1, keepdims=True)
            logp = z - np.log(np.exp(z).sum(1, keepdims=True))
            error = (np.exp(logp) - truth) / n
            gradient = np.append((error * s).sum(), error.sum(0)) + 2 * _SHRINK * t / n
            return float(-(truth * logp).sum() / n + _SHRINK * (t @ t) / n), gradient

        start = np.append(1.0, np.log(truth.mean(0).clip(1 / (n + c))))
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None), *[(None, None)] * c]).x
        return cls(float(found[0] / size), torch.from_numpy(found[1:]), 1 / (2 * ((rows or n) + c)))

    @override
    def forward(self, scores: Tensor) -> Tensor:  # (n, c) -> (n, c)
        p = torch.softmax(self.scale * scores + self.bias.to(scores), 1)
        return (1 - scores.shape[1] * self.floor) * p + self.floor
