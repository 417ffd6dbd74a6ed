"""Side by side with peers: ratios measured in one run, never a stored number."""

from __future__ import annotations

from .compare import Line, area_names, run
from .timing import Case, Peer

__all__ = ["Case", "Line", "Peer", "area_names", "run"]
