"""Side by side with peers: ratios measured in one run, never a stored number."""

from .compare import Line, area_names, run
from .record import Record
from .timing import Case, Peer

__all__ = [
    "Case",
    "Line",
    "Peer",
    "Record",
    "area_names",
    "cost_model",
    "run",
]
