"""A user's own table in, an answer out."""

from .diagnosis import diagnose
from .estimators import TabularClassifier, TabularRegressor
from .model import TabularModel
from .reading import read

__all__ = [
    "TabularClassifier",
    "TabularModel",
    "TabularRegressor",
    "diagnose",
    "read",
]
