"""Results in, one page out."""

from .page import build

__all__ = ["build"]
