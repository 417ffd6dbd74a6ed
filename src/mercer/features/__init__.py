"""Explicit maps: k(x, y) ~ phi(x) . phi(y)."""

from .base import FeatureMap
from .nystrom import Nystrom
from .random_fourier import PositiveRandomFeatures, RandomFourier

__all__ = ["FeatureMap", "Nystrom", "PositiveRandomFeatures", "RandomFourier"]
