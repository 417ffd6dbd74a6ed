"""Where rows come from: a tensor, an array, a loader, a file, a rank's share."""

from .rows import Rows
from .stored import open_rows

__all__ = ["Rows", "open_rows"]
