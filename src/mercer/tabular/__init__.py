"""A user's own table in, an answer out."""

from .columns import Column
from .diagnosis import Diagnosis, Reading, diagnose
from .familiarity import Familiarity
from .model import TabularModel
from .preparation import Preparation
from .reading import read, read_chunks
from .target import Target

__all__ = [
    "Column",
    "Diagnosis",
    "Familiarity",
    "Preparation",
    "Reading",
    "TabularModel",
    "Target",
    "diagnose",
    "read",
    "read_chunks",
]
