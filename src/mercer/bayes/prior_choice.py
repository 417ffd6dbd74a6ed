"""The prior precision, and the noise of a regression: what validation rows or the evidence prefer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_COARSE = torch.logspace(-4, 8, 61, dtype=torch.float64).tolist()
_STEP = _COARSE[1] / _COARSE[0]
_NOISES = torch.logspace(-1, 2, 16, dtype=torch.float64).tolist()


def least(score: Callable[[float, float], float], *, noise: float | None) -> tuple[float, float]:
    r"""The pair :math:`(1 / \sigma_0^2, \sigma^2)` of least score.

    Precisions from 1e-4 to 1e8, five to a decade, then ten between the neighbours of the best one. Noises are 0.1 to
    100 times ``noise``.

    Args:
        score: Of a precision and a noise.
        noise: Where to look for the noise; None where there is none, and the score gets 1.
    """
    noises = [1.0] if noise is None else [factor * noise for factor in _NOISES]
    precision, best = min(((p, s) for p in _COARSE for s in noises), key=lambda pair: score(*pair))
    finer = [precision * _STEP ** (i / 5 - 1) for i in range(11)]
    return min(((p, best) for p in finer), key=lambda pair: score(*pair))


def negative_evidence(
    precision: float, noise: float, *, eigenvalues: Tensor, squared_norm: float, residuals: Tensor | None
) -> float:
    r"""Minus the log marginal likelihood of Laplace, less what depends on neither number.

    .. math:: \tfrac12 \Big[ \delta \|\theta\|^2 + \sum_j \log(1 + \lambda_j / \delta) +
        \tfrac{1}{\sigma^2} \sum r^2 + N \log \sigma^2 \Big]

    Args:
        precision: :math:`\delta`.
        noise: :math:`\sigma^2`.
        eigenvalues: :math:`\lambda` of the Gauss-Newton matrix at this noise.
        squared_norm: :math:`\|\theta\|^2`.
        residuals: r of a regression; None of a classifier, whose likelihood has no such number.
    """
    value = precision * squared_norm + float((1 + eigenvalues / precision).log().sum())
    if residuals is not None:
        value += float(residuals.double().square().sum()) / noise + residuals.numel() * math.log(noise)
    return value / 2
