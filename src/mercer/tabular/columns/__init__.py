"""What each column is, and how it becomes numbers."""

from .column import Column
from .encoders import Dates, Levels, Numbers, Truths
from .preparation import Preparation, Prepared
from .target import TASKS, Target, find_target, present
from .target_means import TargetMeans
from .values import Array

__all__ = [
    "TASKS",
    "Array",
    "Column",
    "Dates",
    "Levels",
    "Numbers",
    "Preparation",
    "Prepared",
    "Target",
    "TargetMeans",
    "Truths",
    "find_target",
    "present",
]
