"""A user's own table in, an answer out."""

from .columns import Column
from .familiarity import Familiarity
from .model import TabularModel
from .preparation import Preparation
from .reading import read, read_chunks
from .target import Target

__all__ = ["Column", "Familiarity", "Preparation", "TabularModel", "Target", "read", "read_chunks"]
