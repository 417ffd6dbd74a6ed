r"""Costs as sums of terms with coefficients of at least 0, and the exponent along one letter.

The coefficients solve :math:`\min_{a \ge 0} \sum_i \big(\sum_j a_j t_j(s_i) / y_i - 1\big)^2`: relative errors, so
that the small sizes count as much as the large. The band is honest about predictions: the largest factor by which the
fit is off at any measured size, and by which a fit without the largest size of a letter misses that size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .cost_terms import Method, monomial


@dataclass(frozen=True)
class Fit:
    """A fitted cost.

    Args:
        terms: coefficients by term; those that came out 0 are left out.
        factor: the cost lies within a factor of so much, within the sizes measured.
    """

    terms: Mapping[str, float]
    factor: float

    def at(self, values: Mapping[str, float]) -> float:
        """The cost at a size."""
        return sum(coefficient * monomial(term, values) for term, coefficient in self.terms.items())


def fit_terms(
    method: Method, sizes: Sequence[Mapping[str, int]], costs: Sequence[float], terms: Sequence[str], least: float
) -> Fit:
    """The coefficients of ``terms`` for costs at sizes.

    Args:
        method: whose sizes they are.
        sizes: measured.
        costs: measured.
        terms: of the sum; a constant is added.
        least: costs below this count as this much, for the instrument sees no less.
    """
    whole = _solve(method, sizes, costs, terms, least)
    factor = max(_off(whole.at(method.values(size)), cost, least) for size, cost in zip(sizes, costs, strict=True))
    for letter in method.axes:
        largest = max(range(len(sizes)), key=lambda i, letter=letter: sizes[i][letter])  # type: ignore[misc]
        rest = [i for i in range(len(sizes)) if i != largest]
        partial = _solve(method, [sizes[i] for i in rest], [costs[i] for i in rest], terms, least)
        factor = max(factor, _off(partial.at(method.values(sizes[largest])), costs[largest], least))
    return Fit(whole.terms, factor)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Power p and constant a of a x^p by least squares on the logarithms."""
    power, intercept = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(power), math.exp(intercept)


def _solve(
    method: Method, sizes: Sequence[Mapping[str, int]], costs: Sequence[float], terms: Sequence[str], least: float
) -> Fit:
    from scipy.optimize import nnls

    names = ["1", *terms]
    table = np.array([[monomial(term, method.values(size)) for term in names] for size in sizes])
    table /= np.maximum(np.asarray(costs), least)[:, None]
    scale = table.max(0)
    coefficients = nnls(table / scale, np.ones(len(sizes)))[0] / scale
    return Fit({term: float(a) for term, a in zip(names, coefficients, strict=True) if a > 0}, math.inf)


def _off(predicted: float, measured: float, least: float) -> float:
    ratio = max(predicted, least) / max(measured, least)
    return max(ratio, 1 / ratio)
