"""The prior precision, and with it a temperature or noise: what validation rows or the evidence prefer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from ..rows.rows import Rows
from .likelihood import Gaussian, Likelihood, Link, Softmax, mean_over_ranks

_PRECISIONS = torch.logspace(-4, 8, 37, dtype=torch.float64).tolist()
_STEP = math.log(_PRECISIONS[1] / _PRECISIONS[0])
_NOISES = torch.logspace(-1, 2, 7, dtype=torch.float64).tolist()
_PRICE = 0.005  # of the log-loss, for uncertainty far away,
_NOTHING = 0.001  # and of a temperature's log-loss
_SHARES = tuple(2 ** (-i / 3) for i in range(8))  # of the temperature alone: variance lowers the confidence, too
_STEPS = tuple(2 ** (i / 9) for i in (-1, 0, 1))
_log = logging.getLogger("mercer")

SpreadAt = Callable[[Likelihood], Callable[[float], Tensor]]


def by_validation(
    spread_at: SpreadAt, density: Likelihood, f: Tensor, y: Tensor, link: Link, *, temperature: bool
) -> tuple[float, Likelihood]:
    """The precision and the likelihood that do best on validation rows; of a classifier's ties, the least precision.

    Args:
        spread_at: Of a likelihood, a function from a precision to the covariance of the rows' outputs.
        density: Where to start from.
        f: Outputs of the validation rows ``(n, c)``.
        y: Their targets.
        link: To probabilities.
        temperature: Whether a classifier's temperature is chosen with the precision.
    """
    if isinstance(density, Gaussian):
        spread = spread_at(density)

        def noisy(precision: float, noise: float) -> float:
            # The curvature is proportional to 1 / noise: 1 / (l / r + p) = r / (l + r p).
            ratio = noise / density.scale
            return mean_over_ranks(density.at(noise).loss(f, ratio * spread(ratio * precision), y, link))

        precision, noise = best_precision_and_noise(noisy, density.scale)
        return precision, density.at(noise)

    # A classifier: every precision with every temperature. The curvature is computed anew at a few temperatures only.
    factors: tuple[float, ...] = (1.0,)
    steps: tuple[float, ...] = (1.0,)
    if temperature:
        factors, steps = _SHARES, _STEPS
    trials = []
    for factor in factors:
        start = density.at(factor * density.scale)
        spread = spread_at(start)
        for precision in _PRECISIONS:
            covariance = spread(precision)
            for step in steps:  # the curvature changes little within them
                close = start.at(step * start.scale)
                trials.append(Trial(precision, close.scale, mean_over_ranks(close.loss(f, covariance, y, link))))
    best = least_as_good(trials)
    return best.precision, density.at(best.scale)


class Trial(NamedTuple):
    """A precision, a temperature, and their log-loss on the validation rows."""

    precision: float
    scale: float
    loss: float


def least_as_good(trials: Sequence[Trial]) -> Trial:
    """The least precision whose log-loss is within 0.5 % of the best, at the temperature that suits it.

    Validation rows lie near the data. Where they are easy, every precision from some value on does as well, up to no
    posterior at all; the least of them keeps most of the uncertainty far away. It must not be worse by over 0.1 % than
    no posterior, the largest precision, unless the best is.
    """
    # The loss that is good enough: 0.5 % above the best, but no more than 0.1 % above no posterior at all.
    best = min(trial.loss for trial in trials)
    largest = max(trial.precision for trial in trials)
    alone = min(trial.loss for trial in trials if trial.precision == largest)
    enough = min((1 + _PRICE) * best, max(best, (1 + _NOTHING) * alone))
    precision = min(trial.precision for trial in trials if trial.loss <= enough)
    return min((trial for trial in trials if trial.precision == precision), key=lambda trial: trial.loss)


def compare_with_temperature(f: Tensor, y: Tensor, losses: Tensor) -> dict[str, float]:
    """Compare the log-loss of the network, of the best temperature alone and of a posterior; log where they tie."""
    t = best_temperature(lambda t: mean_over_ranks(-Softmax(t).log_density(f, y)))
    alone = -Softmax(t).log_density(f, y)
    losses_by_name = {
        "network": mean_over_ranks(-Softmax().log_density(f, y)),
        "temperature": mean_over_ranks(alone),
        "posterior": mean_over_ranks(losses),
    }

    # The mean gain over the temperature alone, row by row, and its standard error.
    gains = Rows((alone - losses).double())
    gain = float(gains.mean(torch.sum))
    variance = float(gains.mean(lambda d: (d - gain).square().sum()))
    error = math.sqrt(variance / max(gains.n - 1, 1))
    if gain < 2 * error:
        _log.warning(
            "LinearizedLaplace: a temperature of %.3g does as well on the validation rows: log-loss %.4f, with the "
            "posterior %.4f (standard error of the difference %.4f). TemperatureScaling(model) is simpler.",
            t, losses_by_name["temperature"], losses_by_name["posterior"], error,
        )  # fmt: skip
    return losses_by_name


def by_evidence(
    values: Tensor, density: Likelihood, squared_norm: float, residuals: Tensor | None
) -> tuple[float, Likelihood]:
    """The precision, and a regression's noise, of most evidence.

    Args:
        values: Eigenvalues of the Gauss-Newton matrix for ``density``.
        density: Where to start from.
        squared_norm: Squared norm of the weights.
        residuals: Residuals of a regression; None for a classifier.
    """

    def score(precision: float, noise: float) -> float:
        eigenvalues = values
        if residuals is not None:  # the curvature is proportional to 1 / noise
            eigenvalues = values * (density.scale / noise)
        return negative_evidence(
            precision, noise, eigenvalues=eigenvalues, squared_norm=squared_norm, residuals=residuals
        )

    if residuals is None:
        return best_precision(lambda p: score(p, 1.0))[0], density
    precision, noise = best_precision_and_noise(score, density.scale)
    return precision, density.at(noise)


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


def best_precision(score: Callable[[float], float]) -> tuple[float, float]:
    """The prior precision of least score and that score: 1e-4 to 1e8, three to a decade, then refined by Brent."""
    start = min(_PRECISIONS, key=score)
    center = math.log(start)
    result = minimize_scalar(
        lambda p: score(math.exp(p)), bounds=(center - _STEP, center + _STEP), method="bounded", options={"xatol": 1e-2}
    )
    refined, loss, start_loss = math.exp(result.x), float(result.fun), score(start)
    if loss < start_loss:
        return refined, loss
    return start, start_loss


def best_precision_and_noise(score: Callable[[float, float], float], noise: float) -> tuple[float, float]:
    r"""The pair :math:`(1 / \sigma_0^2, \sigma^2)` of least score: a grid, then Nelder and Mead in their logarithms.

    Args:
        score: Loss as a function of a precision and a noise.
        noise: Noises from 0.1 to 100 times this are tried.
    """
    # The grid finds the right valley; the simplex goes down in it.
    start = min(((p, s * noise) for p in _PRECISIONS for s in _NOISES), key=lambda pair: score(*pair))
    result = minimize(
        lambda logs: score(math.exp(logs[0]), math.exp(logs[1])),
        [math.log(value) for value in start],
        method="Nelder-Mead",
        bounds=[(math.log(1e-4), math.log(1e8)), (math.log(1e-3 * noise), math.log(1e3 * noise))],
        options={"xatol": 1e-3, "fatol": 1e-9, "maxfev": 120},
    )
    if result.fun < score(*start):
        return math.exp(result.x[0]), math.exp(result.x[1])
    return start


def best_temperature(score: Callable[[float], float], start: float = 1.0, reach: float = 20.0) -> float:
    """The temperature of least score, within a factor of ``reach`` of ``start``; the loss has one dip."""
    center, width = math.log(start), math.log(reach)
    result = minimize_scalar(
        lambda t: score(math.exp(t)), bounds=(center - width, center + width), method="bounded", options={"xatol": 1e-3}
    )
    return math.exp(result.x)
