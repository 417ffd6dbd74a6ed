"""Optimizers with a kernel's curvature: every one a ``torch.optim.Optimizer``."""

from .eigenpro import EigenProSGD
from .esgd import ESGD
from .function_space import FunctionSpaceSGD
from .kernel_sgd import KernelSGD, RandomPSD, kernel_inverse, reshaped, state_bytes
from .multi_batch_lbfgs import MultiBatchLBFGS

__all__ = [
    "ESGD",
    "EigenProSGD",
    "FunctionSpaceSGD",
    "KernelSGD",
    "MultiBatchLBFGS",
    "RandomPSD",
    "kernel_inverse",
    "reshaped",
    "state_bytes",
]
