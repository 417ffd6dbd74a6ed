"""Results in, one page out."""

from __future__ import annotations

from .page import build

__all__ = ["build"]
