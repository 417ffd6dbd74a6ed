"""Explicit maps: k(x, y) ~ phi(x) . phi(y)."""

from .base import FeatureMap
from .l2_batch_norm import L2BatchNorm
from .network_fit import distill
from .neural_eigenfunctions import NeuralEigenfunctions
from .neuralef import Training
from .nystrom import Nystrom
from .parallel_networks import ParallelNetworks
from .random_fourier import PositiveRandomFeatures, RandomFourier, phased_cosines

__all__ = [
    "FeatureMap",
    "L2BatchNorm",
    "NeuralEigenfunctions",
    "Nystrom",
    "ParallelNetworks",
    "PositiveRandomFeatures",
    "RandomFourier",
    "Training",
    "distill",
    "phased_cosines",
]
