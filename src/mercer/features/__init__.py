"""Explicit maps: k(x, y) ~ phi(x) . phi(y)."""

from .base import FeatureMap
from .neural_eigenfunctions import NeuralEigenfunctions
from .nystrom import Nystrom
from .random_fourier import PositiveRandomFeatures, RandomFourier

__all__ = [
    "FeatureMap",
    "NeuralEigenfunctions",
    "Nystrom",
    "PositiveRandomFeatures",
    "RandomFourier",
]
