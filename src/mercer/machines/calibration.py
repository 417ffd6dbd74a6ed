"""From scores to probabilities: a scale or a matrix, a power and one bias for each class, fitted to rows left out."""

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
_SHRINK_MIXING = 1500.0  # the same of D's squares, over the mean rows of a class
_MIXING_ROWS = 20  # rows for each class from which on D may join
_MIXING_CLASSES = 100  # up to which it may: D has the square of that many parameters
_FOLDS = 5  # that say whether D helps
_LEAST = 0.01  # scores below it count as it in the logarithm
_LEAST_PROBABILITY = 0.001  # the same of scores that are nearly probabilities


class Calibration(SavableModule):
    r""":math:`p = (1 - c \epsilon) \, \mathrm{softmax}(a s + q \log \max(s, l) + b) + \epsilon`.

    Least squares on targets 0 and 1 gives scores that are nearly probabilities, which q = 1 keeps, where a alone would
    make rare classes too rare. The floor :math:`\epsilon = 1 / (2 (n + c))` is what n rows can tell at best of a class
    they never showed there. Of several classes, :math:`s D` joins: a score may speak for or against other classes.

    Args:
        scale: a.
        bias: b, ``(c,)``.
        floor: :math:`\epsilon`.
        power: q.
        mixing: D, ``(c, c)``; empty where each score speaks for its own class alone.
        least: l.
    """

    bias: Tensor
    mixing: Tensor

    def __init__(
        self,
        scale: float,
        bias: Tensor,
        floor: float,
        power: float = 0.0,
        mixing: Tensor | None = None,
        least: float = _LEAST,
    ) -> None:
        super().__init__()
        self.scale, self.floor, self.power, self.least = scale, floor, power, least
        self.hold(bias=bias, mixing=bias.new_zeros(0, 0) if mixing is None else mixing)

    @classmethod
    def of(
        cls,
        scores: Tensor,
        labels: Tensor,
        *,
        rows: int | None = None,
        shares: bool = False,
        mixes: bool = True,
        near: bool = False,
        weight: Tensor | None = None,
    ) -> Calibration:  # (n, c), (n,)
        r"""The scale and biases of least log loss.

        Args:
            scores: Scores of rows that were left out when they were learned.
            labels: Their classes, ``0..c - 1``.
            rows: n of the floor, where more rows were learned from than are scored.
            shares: Whether scores estimate 0 and 1. Then q is fitted too, and kept where it lowers the log loss of all
                rows by more than :math:`\frac12 \log n`, as the Bayesian information criterion asks.
            mixes: Whether D of three classes or more may join. It is kept where it lowers the log loss of five folds
                of the rows, each by D of the other four.
            near: Whether scores are nearly probabilities, as those of boosted trees. Then q is always fitted, and small
                scores count: l is 0.001 in place of 0.01.
            weight: Weights of the rows in the log loss, ``(n,)``; None for 1.
        """
        s, (n, c) = scores.double().numpy(), scores.shape
        truth, floor = np.eye(c)[labels.numpy()], 1 / (2 * ((rows or n) + c))
        w = np.ones(n) if weight is None else (weight / weight.mean()).numpy()
        least = _LEAST_PROBABILITY if near else _LEAST
        if shares and n < 2 * c:  # a class of one row: what is left out cannot tell how sure the scores are
            return cls(0.0, scores.new_zeros(c, dtype=torch.float64), floor, 1.0, None, least)
        features, (loss, fit) = [s], _fit([s], truth, w)
        if shares or near:
            both = [s, np.log(s.clip(least))]
            lower, better = _fit(both, truth, w)
            if near or n * (loss - lower) > 0.5 * math.log(n):
                features, fit = both, better
        k, mixing = len(features), None
        if mixes and 2 < c <= _MIXING_CLASSES and n >= _MIXING_ROWS * c and _mixing_helps(features, truth, w):
            _, fit = _fit(features, truth, w, mix=True)
            fit, mixing = fit[: k + c], torch.from_numpy(fit[k + c :].reshape(c, c).copy())
        power = float(fit[1]) if k > 1 else 0.0
        return cls(float(fit[0]), torch.from_numpy(fit[k:].copy()), floor, power, mixing, least)

    @override
    def forward(self, scores: Tensor) -> Tensor:  # (n, c) -> (n, c)
        logits = self.scale * scores + self.bias.to(scores)
        if len(self.mixing):
            logits = logits + scores @ self.mixing.to(scores)
        if self.power:
            logits = logits + self.power * scores.clamp_min(self.least).log()
        p = torch.softmax(logits, 1)
        return (1 - scores.shape[1] * self.floor) * p + self.floor


def _mixing_helps(features: Sequence[np.ndarray], truth: np.ndarray, weight: np.ndarray) -> bool:
    """Whether D, learned without a fold of the rows, lowers the log loss of that fold, in the mean of the folds."""
    (n, c), k = truth.shape, len(features)
    fold = np.arange(n) % _FOLDS
    gain = 0.0
    for number in range(_FOLDS):
        learned, scored = fold != number, fold == number
        some = [f[learned] for f in features], truth[learned], weight[learned] / weight[learned].mean()
        asked = np.stack([f[scored] for f in features])  # (k, r, c)
        for mix, sign in ((False, 1.0), (True, -1.0)):
            _, t = _fit(*some, mix=mix)
            z = np.tensordot(t[:k], asked, 1) + t[k : k + c]
            if mix:
                z = z + asked[0] @ t[k + c :].reshape(c, c)
            gain += sign * float(weight[scored] @ (np.logaddexp.reduce(z, axis=1) - (truth[scored] * z).sum(1)))
    return gain > 0


def _fit(
    features: Sequence[np.ndarray], truth: np.ndarray, weight: np.ndarray, *, mix: bool = False
) -> tuple[float, np.ndarray]:
    """The mean log loss, and non-negative weights of the features ``(n, c)``, then the biases, then D where asked for.

    ``weight`` are the rows' weights ``(n,)``, of mean 1.
    """
    (n, c), k = truth.shape, len(features)
    sizes = [float(np.abs(f - f.mean(0)).mean()) or 1.0 for f in features]
    unit = np.stack([f / size for f, size in zip(features, sizes, strict=True)])  # (k, n, c)
    scores = unit[0]
    shrink = np.append(np.full(k + c, _SHRINK), np.full(c * c * mix, _SHRINK_MIXING * c / n))

    def loss(t: np.ndarray) -> tuple[float, np.ndarray]:
        z = np.tensordot(t[:k], unit, 1) + t[k : k + c]
        if mix:
            z = z + scores @ t[k + c :].reshape(c, c)
        z = z - z.max(1, keepdims=True)
        logp = z - np.log(np.exp(z).sum(1, keepdims=True))
        error = weight[:, None] * (np.exp(logp) - truth) / n
        gradient = np.append((unit * error).sum((1, 2)), error.sum(0))
        if mix:
            gradient = np.append(gradient, (scores.T @ error).ravel())
        gradient = gradient + 2 * shrink * t / n
        return float(-(weight @ (truth * logp)).sum() / n + shrink @ np.square(t) / n), gradient

    start = np.append(np.ones(k), np.log((weight @ truth / n).clip(1 / (n + c))))
    start = np.append(start, np.zeros(c * c * mix))
    bounds = [(0, None)] * k + [(None, None)] * (len(start) - k)
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    values = np.append(best.x[:k] / sizes, best.x[k : k + c])
    return float(best.fun), np.append(values, best.x[k + c :] / sizes[0])
