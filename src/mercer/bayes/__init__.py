"""Uncertainty for trained networks: linearised Laplace in k directions, a GP over the training run, a rival."""

from .kronecker import KroneckerLaplace
from .linearized_laplace import LinearizedLaplace
from .trajectory_gp import Snapshots, TrajectoryGP

__all__ = ["KroneckerLaplace", "LinearizedLaplace", "Snapshots", "TrajectoryGP"]
