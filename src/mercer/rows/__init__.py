"""Where rows come from: a tensor, an array, a loader, a file, a rank's share."""

from .stored import open_rows

__all__ = ["open_rows"]
