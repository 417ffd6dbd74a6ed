"""A user's own table in, an answer out."""

from .columns import Column
from .preparation import Preparation
from .reading import read, read_chunks
from .target import Target

__all__ = ["Column", "Preparation", "Target", "read", "read_chunks"]
