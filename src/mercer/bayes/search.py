"""Minima over a prior precision, a noise and a temperature: coarse grids in the logarithm, then refined."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy.optimize import minimize, minimize_scalar

_PRECISIONS = torch.logspace(-4, 8, 37, dtype=torch.float64).tolist()
_STEP = math.log(_PRECISIONS[1] / _PRECISIONS[0])
_NOISES = torch.logspace(-1, 2, 7, dtype=torch.float64).tolist()


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
        score: Of a precision and a noise.
        noise: Noises from 0.1 to 100 times this are tried.
    """
    start = min(((p, s * noise) for p in _PRECISIONS for s in _NOISES), key=lambda pair: score(*pair))
    return _refined(score, start, (1e-3 * noise, 1e3 * noise))


def best_precision_and_scale(
    score: Callable[[float, float], float], precision: float | None, scale: float
) -> tuple[float, float]:
    """The precision and the temperature of least score, refined together from these, or from the best precision."""
    start = min(_PRECISIONS, key=lambda p: score(p, scale)) if precision is None else precision
    return _refined(score, (start, scale), (scale / 4, scale * 4), 1e-2)


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
