"""Kernel machines: f = sum_i alpha_i k(x_i, .), on any kernel, exact, by landmarks, or on all rows."""

from .kernel_ridge import KernelRidge
from .stacking import StackedRidge

__all__ = [
    "KernelRidge",
    "StackedRidge",
]
