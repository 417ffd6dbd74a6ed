"""Read a representation by its spectrum: what will be learned, how fast, how well it generalizes."""

from .analysis import analyze
from .comparison import compare, layers
from .spectrum import Spectrum

__all__ = [
    "Spectrum",
    "analyze",
    "compare",
    "layers",
]
