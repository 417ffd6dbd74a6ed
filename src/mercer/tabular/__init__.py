"""A user's own table in, an answer out."""

from . import effects, importance, streaming
from .columns import Column, Preparation, Target
from .diagnosis import Diagnosis, Reading, diagnose
from .estimators import TabularClassifier, TabularRegressor
from .familiarity import Familiarity
from .frames import as_pandas
from .model import TabularModel
from .reading import read, read_chunks
from .scoring import boosting_is_better

__all__ = [
    "Column",
    "Diagnosis",
    "Familiarity",
    "Preparation",
    "Reading",
    "TabularClassifier",
    "TabularModel",
    "TabularRegressor",
    "Target",
    "as_pandas",
    "boosting_is_better",
    "diagnose",
    "diagnosis",
    "effects",
    "importance",
    "read",
    "read_chunks",
    "streaming",
]
