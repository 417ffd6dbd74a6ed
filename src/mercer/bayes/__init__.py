"""Uncertainty for trained networks: one family, from a temperature to linearised Laplace and ensembles."""

from .ensembles import DeepEnsemble
from .familiarity import Familiarity
from .kronecker import KroneckerLaplace
from .linearized_laplace import LinearizedLaplace
from .posterior import Posterior
from .temperature_scaling import TemperatureScaling
from .training import Snapshots
from .trajectory_gp import TrajectoryGP

__all__ = [
    "DeepEnsemble",
    "Familiarity",
    "KroneckerLaplace",
    "LinearizedLaplace",
    "Posterior",
    "Snapshots",
    "TemperatureScaling",
    "TrajectoryGP",
]
