"""The prior precision, and with it a temperature or noise: what validation rows or the evidence prefer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from ..rows import Rows
from .directions import Curvature, covariance, eigenpairs
from .likelihood import Gaussian, Likelihood, Link, Softmax, mean_over_ranks

_PRECISIONS = torch.logspace(-4, 8, 37, dtype=torch.float64).tolist()
_STEP = math.log(_PRECISIONS[1] / _PRECISIONS[0])
_NOISES = torch.logspace(-1, 2, 7, dtype=torch.float64).tolist()
_PRICE = 0.005  # of the log-loss, for uncertainty far away,
_NOTHING = 0.001  # and of a temperature's log-loss
_SHARES = tuple(2 ** (-i / 3) for i in range(8))  # of the temperature alone: variance lowers the confidence, too
_STEPS = tuple(2 ** (i / 9) for i in (-1, 0, 1))
_log = logging.getLogger("mercer")


class ValidationRows(NamedTuple):
    """Validation rows as the posterior sees them: outputs, targets, Psi ``(n, c, k)``, what lies outside."""

    f: Tensor
    y: Tensor
    psi: Tensor
    outside: Tensor

    def loss(self, density: Likelihood, values: Tensor, vectors: Tensor, precision: float, link: Link) -> Tensor:
        """Loss of each row ``(n,)``, with these eigenpairs of the Gauss-Newton matrix."""
        turned = self.psi @ vectors.to(self.psi.dtype)
        return density.loss(self.f, covariance(turned, self.outside, values, precision), self.y, link)


def by_validation(
    curvature: Curvature, density: Likelihood, rows: ValidationRows, link: Link, *, temperature: bool
) -> tuple[float, Likelihood]:
    """The precision and the likelihood that do best on validation rows; of a classifier's ties, the least precision.

    Args:
        curvature: The Gauss-Newton matrix, for any likelihood.
        density: Where to start from.
        rows: Validation rows.
        link: To probabilities.
        temperature: Whether a classifier's temperature is chosen with the precision.
    """
    if isinstance(density, Gaussian):
        values, vectors = eigenpairs(curvature.at(density))

        def noisy(precision: float, noise: float) -> float:
            scaled = values * (density.scale / noise)
            return mean_over_ranks(rows.loss(density.at(noise), scaled, vectors, precision, link))

        chosen, noise = best_precision_and_noise(noisy, density.scale)
        return chosen, density.at(noise)
    shares, steps = (_SHARES, _STEPS) if temperature else ((1.0,), (1.0,))
    trials = [t for share in shares for t in _tried(curvature, density.at(share * density.scale), rows, link, steps)]
    best = least_as_good(trials)
    return best.precision, density.at(best.scale)


class Trial(NamedTuple):
    """A precision, a temperature, and their log-loss on the validation rows."""

    precision: float
    scale: float
    loss: float


def _tried(
    curvature: Curvature, density: Likelihood, rows: ValidationRows, link: Link, steps: Sequence[float]
) -> Iterator[Trial]:
    """Precisions from 1e-4 to 1e8 and temperatures by steps, with the curvature at this temperature."""
    values, vectors = eigenpairs(curvature.at(density))
    turned = rows.psi @ vectors.to(rows.psi.dtype)
    squares = turned.square() if rows.outside.ndim == 2 else None  # made once: most of the cost
    for precision in _PRECISIONS:
        if squares is None:
            spread = covariance(turned, rows.outside, values, precision)
        else:
            spread = squares @ (1 / (values + precision)).to(squares.dtype) + rows.outside / precision
        for step in steps:  # the curvature changes little within them
            near = density.at(step * density.scale)
            yield Trial(precision, near.scale, mean_over_ranks(near.loss(rows.f, spread, rows.y, link)))


def least_as_good(trials: Sequence[Trial]) -> Trial:
    """The least precision whose log-loss is within 0.5 % of the best, at the temperature that suits it.

    Validation rows lie near the data. Where they are easy, every precision from some value on does as well, up to no
    posterior at all; the least of them keeps most of the uncertainty far away. It must not be worse by over 0.1 % than
    no posterior, the largest precision, unless the best is.
    """
    best = min(trial.loss for trial in trials)
    largest = max(trial.precision for trial in trials)
    alone = min(trial.loss for trial in trials if trial.precision == largest)
    enough = min((1 + _PRICE) * best, max(best, (1 + _NOTHING) * alone))
    least = min(trial.precision for trial in trials if trial.loss <= enough)
    return min((trial for trial in trials if trial.precision == least), key=lambda trial: trial.loss)


def compare_with_temperature(rows: ValidationRows, losses: Tensor) -> dict[str, float]:
    """Log-loss of the network, of the best temperature alone and of a posterior; the log says where they tie."""
    t = best_temperature(lambda t: mean_over_ranks(-Softmax(t).log_density(rows.f, rows.y)))
    alone = -Softmax(t).log_density(rows.f, rows.y)
    found = {
        "network": mean_over_ranks(-Softmax().log_density(rows.f, rows.y)),
        "temperature": mean_over_ranks(alone),
        "posterior": mean_over_ranks(losses),
    }
    gain, error = _paired_difference(alone, losses)
    if gain < 2 * error:
        _log.warning(
            "LinearizedLaplace: a temperature of %.3g does as well on the validation rows: log-loss %.4f, with the "
            "posterior %.4f (standard error of the difference %.4f). TemperatureScaling(model) is simpler.",
            t, found["temperature"], found["posterior"], error,
        )  # fmt: skip
    return found


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
        scaled = values if residuals is None else values * (density.scale / noise)
        return negative_evidence(precision, noise, eigenvalues=scaled, squared_norm=squared_norm, residuals=residuals)

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


def _paired_difference(a: Tensor, b: Tensor) -> tuple[float, float]:  # (n,), (n,)
    """Mean of a - b over the rows of all ranks, and its standard error."""
    differences = Rows((a - b).double())
    mean = float(differences.mean(torch.sum))
    variance = float(differences.mean(lambda d: (d - mean).square().sum()))
    return mean, math.sqrt(variance / max(differences.n - 1, 1))


def best_precision(score: Callable[[float], float]) -> tuple[float, float]:
    """The prior precision of least score and that score: 1e-4 to 1e8, three to a decade, then refined by Brent."""
    start = min(_PRECISIONS, key=score)
    middle = math.log(start)
    found = minimize_scalar(
        lambda p: score(math.exp(p)), bounds=(middle - _STEP, middle + _STEP), method="bounded", options={"xatol": 1e-2}
    )
    refined, least = math.exp(found.x), float(found.fun)
    own = score(start)
    return (refined, least) if least < own else (start, own)


def best_precision_and_noise(score: Callable[[float, float], float], noise: float) -> tuple[float, float]:
    r"""The pair :math:`(1 / \sigma_0^2, \sigma^2)` of least score: a grid, then Nelder and Mead in their logarithms.

    Args:
        score: Loss as a function of a precision and a noise.
        noise: Noises from 0.1 to 100 times this are tried.
    """
    start = min(((p, s * noise) for p in _PRECISIONS for s in _NOISES), key=lambda pair: score(*pair))
    return _refined(score, start, (1e-3 * noise, 1e3 * noise))


def _refined(
    score: Callable[[float, float], float], start: tuple[float, float], reach: tuple[float, float], near: float = 1e-3
) -> tuple[float, float]:
    """Nelder and Mead in the logarithms of both."""
    found = minimize(
        lambda logs: score(math.exp(logs[0]), math.exp(logs[1])),
        [math.log(value) for value in start],
        method="Nelder-Mead",
        bounds=[(math.log(1e-4), math.log(1e8)), (math.log(reach[0]), math.log(reach[1]))],
        options={"xatol": near, "fatol": 1e-6 * near, "maxfev": 120},
    )
    refined = (math.exp(found.x[0]), math.exp(found.x[1]))
    return refined if found.fun < score(*start) else start


def best_temperature(score: Callable[[float], float], middle: float = 1.0, reach: float = 20.0) -> float:
    """The temperature of least score, within a factor of ``reach`` of ``middle``; the loss has one dip."""
    centre, width = math.log(middle), math.log(reach)
    found = minimize_scalar(
        lambda t: score(math.exp(t)), bounds=(centre - width, centre + width), method="bounded", options={"xatol": 1e-3}
    )
    return math.exp(found.x)
