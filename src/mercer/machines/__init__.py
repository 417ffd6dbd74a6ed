"""Kernel machines: f = sum_i alpha_i k(x_i, .), on any kernel, exact, by landmarks, or on all rows."""

from .calibration import Calibration
from .dual import PENALTIES, DualFit, dual_fit, dual_path, tune_penalty
from .eigenpro import tiled_product
from .kernel_ridge import KernelRidge, seeded
from .landmarks import LandmarkMachine, landmark_count, landmark_machine
from .selection import Choice, candidate_kernels, choose_kernel, median_distance, narrowed, rank_kernels, table_kernels
from .stacking import MOST_ROWS, StackedMachine, StackedRidge, ridge_factor, solve_left_out
from .trees import Boosting, Trees
from .trials import Look, Trial, convex_weights, try_machines
from .views import View

__all__ = [
    "MOST_ROWS",
    "PENALTIES",
    "Boosting",
    "Calibration",
    "Choice",
    "DualFit",
    "KernelRidge",
    "LandmarkMachine",
    "Look",
    "StackedMachine",
    "StackedRidge",
    "Trees",
    "Trial",
    "View",
    "candidate_kernels",
    "choose_kernel",
    "convex_weights",
    "dual_fit",
    "dual_path",
    "landmark_count",
    "landmark_machine",
    "median_distance",
    "narrowed",
    "rank_kernels",
    "ridge_factor",
    "seeded",
    "solve_left_out",
    "table_kernels",
    "tiled_product",
    "try_machines",
    "tune_penalty",
]
