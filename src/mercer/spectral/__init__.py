"""Read a representation by its spectrum: what will be learned, how fast, how well it generalises."""

from .analysis import analyze
from .spectrum import Spectrum

__all__ = ["Spectrum", "analyze"]
