"""Kernel machines: f = sum_i alpha_i k(x_i, .), on any kernel, exact, by landmarks, or on all rows."""

from .calibration import Calibration
from .dual import PENALTIES, DualFit, dual_fit, dual_path, tune_penalty
from .kernel_ridge import KernelRidge, seeded
from .landmarks import LandmarkMachine
from .selection import Choice, candidate_kernels, choose_kernel, median_distance, rank_kernels
from .stacking import MOST_ROWS, StackedMachine, StackedRidge
from .views import View

__all__ = [
    "MOST_ROWS",
    "PENALTIES",
    "Calibration",
    "Choice",
    "DualFit",
    "KernelRidge",
    "LandmarkMachine",
    "StackedMachine",
    "StackedRidge",
    "View",
    "candidate_kernels",
    "choose_kernel",
    "dual_fit",
    "dual_path",
    "median_distance",
    "rank_kernels",
    "seeded",
    "tune_penalty",
]
