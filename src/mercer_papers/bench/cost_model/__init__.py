"""A cost model: how time and memory of each method grow with n, d, c and k, measured, fitted, predicted."""

from .cost_terms import Method, monomial
from .fitting import Fit, exponent, fit_terms
from .measuring import document, measure
from .methods import METHODS
from .prediction import MEASURED, RANKS, Estimate, estimate

__all__ = [
    "MEASURED",
    "METHODS",
    "RANKS",
    "Estimate",
    "Fit",
    "Method",
    "document",
    "estimate",
    "exponent",
    "fit_terms",
    "measure",
    "monomial",
]
