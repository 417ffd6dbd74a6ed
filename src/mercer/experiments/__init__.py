"""The papers' results, run again: what was published (`catalogue`), one cell at a time (`runner`)."""

from mercer.experiments.catalogue import Entry, Number, entries, entry, select
from mercer.experiments.cells import SCALES, STATUSES, Cell, Outcome
from mercer.experiments.recorded_runs import Recorded, recorded
from mercer.experiments.results import Result, Summary, entry_status, read_results, read_run, summarise

__all__ = [
    "SCALES",
    "STATUSES",
    "Cell",
    "Entry",
    "Number",
    "Outcome",
    "Recorded",
    "Result",
    "Summary",
    "entries",
    "entry",
    "entry_status",
    "read_results",
    "read_run",
    "recorded",
    "select",
    "summarise",
]
