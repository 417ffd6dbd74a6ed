"""How time and memory of each method grow with n, d, c and k: measured, fitted, foretold."""

from __future__ import annotations

from .fitting import Fit, exponent, fit_terms
from .foretelling import Estimate, estimate
from .measuring import document, measure
from .methods import METHODS, Method

__all__ = ["METHODS", "Estimate", "Fit", "Method", "document", "estimate", "exponent", "fit_terms", "measure"]
