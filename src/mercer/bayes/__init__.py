"""Uncertainty for trained networks: linearised Laplace in k directions, a GP over the training run, rivals."""

from .kronecker import KroneckerLaplace
from .linearized_laplace import LinearizedLaplace
from .swag import SWAG
from .trajectory_gp import Snapshots, TrajectoryGP

__all__ = ["SWAG", "KroneckerLaplace", "LinearizedLaplace", "Snapshots", "TrajectoryGP"]
