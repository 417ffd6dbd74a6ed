"""The papers' results, run again: what was published (`catalogue`), one cell at a time (`runner`)."""

from mercer.experiments.catalogue import Entry, Number, entries, entry, select
from mercer.experiments.cells import SCALES, Cell, Outcome
from mercer.experiments.claims import Claim, Comparison
from mercer.experiments.recorded_runs import Recorded, recorded
from mercer.experiments.results import Result, Summary, entry_status, read_results, read_run, summarise
from mercer.experiments.verdict import VERDICTS, Verdict, judge, recorded_verdict

__all__ = [
    "SCALES",
    "VERDICTS",
    "Cell",
    "Claim",
    "Comparison",
    "Entry",
    "Number",
    "Outcome",
    "Recorded",
    "Result",
    "Summary",
    "Verdict",
    "entries",
    "entry",
    "entry_status",
    "execution",
    "judge",
    "read_results",
    "read_run",
    "recorded",
    "recorded_verdict",
    "runner",
    "select",
    "summarise",
]
