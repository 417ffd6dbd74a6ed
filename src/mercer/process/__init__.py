"""The process that runs the work: its signals, its threads, its machine. Command line and experiments share it."""

from .machine import machine, versions
from .signals import Interrupted, Interruption
from .threads import threads_set

__all__ = ["Interrupted", "Interruption", "machine", "threads_set", "versions"]
