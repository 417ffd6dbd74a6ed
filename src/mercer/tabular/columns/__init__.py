"""What each column is, and how it becomes numbers."""

from .column import Column
from .encoders import Dates, Levels, Numbers, Texts, Truths
from .preparation import Preparation, Prepared, name_by_text
from .target import TASKS, Target, find_target, present
from .target_means import TargetMeans
from .values import Array, Writing, date_format, dates, is_text, numbers, words

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
    "Texts",
    "Truths",
    "Writing",
    "date_format",
    "dates",
    "find_target",
    "is_text",
    "name_by_text",
    "numbers",
    "present",
    "words",
]
