"""Explicit maps: k(x, y) ~ phi(x) . phi(y)."""

from .base import FeatureMap
from .l2_batch_norm import L2BatchNorm
from .nystrom import Nystrom
from .random_fourier import PositiveRandomFeatures, RandomFourier

__all__ = ["FeatureMap", "L2BatchNorm", "Nystrom", "PositiveRandomFeatures", "RandomFourier"]
