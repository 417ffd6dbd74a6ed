"""Kernel machines: f = sum_i alpha_i k(x_i, .), on any kernel, exact, by landmarks, or on all rows."""

from .dual import DualFit, dual_fit, dual_path, tune_penalty
from .kernel_ridge import KernelRidge

__all__ = ["DualFit", "KernelRidge", "dual_fit", "dual_path", "tune_penalty"]
