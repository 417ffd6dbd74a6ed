"""A user's own table in, an answer out."""

from . import effects, importance, streaming
from .columns import Column
from .diagnosis import Diagnosis, Reading, diagnose
from .estimators import TabularClassifier, TabularRegressor
from .familiarity import Familiarity
from .frames import as_pandas
from .model import TabularModel
from .preparation import Preparation
from .reading import read, read_chunks
from .scoring import boosting_is_better
from .target import Target

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
    "problem",
    "read",
    "read_chunks",
    "streaming",
]
