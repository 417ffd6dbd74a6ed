"""Uncertainty for trained networks: linearised Laplace in k directions, a GP over the training run."""

from .linearized_laplace import LinearizedLaplace
from .trajectory_gp import Snapshots, TrajectoryGP

__all__ = ["LinearizedLaplace", "Snapshots", "TrajectoryGP"]
