"""From the lines of a run to what the page shows: state, verdict, table, doubts of every entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mercer.figures import numbers

from ..catalogue import Entry
from ..recorded_runs import Recorded, find_recorded
from ..results import Result
from ..verdict import Verdict, recorded_verdict
from .matrix import Matrix, matrix

_LEFT_OUT = "Left out by --bundled: needs "
VERDICT_MARKS = {
    "reproduces": "\N{CHECK MARK}",
    "reproduces in a smaller setting": "\N{CIRCLED DOT OPERATOR}",
    "mixed": "\N{CIRCLE WITH LEFT HALF BLACK}",
    "does not": "\N{MULTIPLICATION SIGN}",
    "not tested": "?",
}


@dataclass(frozen=True)
class State:
    """Whether an entry ran: its name on the page, and what that means."""

    key: str
    label: str
    mark: str
    meaning: str


STATES = {
    state.key: state
    for state in (
        State("done", "ran", "\N{CHECK MARK}", "every cell ran"),
        State("in_part", "ran in part", "\N{CIRCLE WITH LEFT HALF BLACK}", "the rest need data or --resume"),
        State("failed", "failed", "\N{MULTIPLICATION SIGN}", "at least one cell ended with an error"),
        State("missing", "data missing", "\N{WHITE CIRCLE}", "its data is not here; the entry says how to get it"),
        State("left_out", "left out", "\N{WHITE CIRCLE}", "needs data, and --bundled asked for what needs none"),
        State("package", "package missing", "\N{WHITE CIRCLE}", "an optional package is not installed"),
        State("paper_scale_only", "paper scale only", "\N{UPWARDS ARROW}", "needs the paper's own scale and a GPU"),
        State("not_built", "not built yet", "\N{MIDDLE DOT}", "the code for this entry is not written"),
        State("not_run", "not in this run", "\N{EN DASH}", "built, but not asked for, or not reached"),
    )
}


@dataclass(frozen=True)
class Detail:
    """A further number of a cell, beyond the one the paper printed."""

    row: str
    column: str
    name: str
    value: str


@dataclass(frozen=True)
class Section:
    """One entry on the page. ``kept`` is the recorded run shown beside this one, None where there is none."""

    entry: Entry
    state: State
    verdict: Verdict
    anchor: str
    matrix: Matrix = field(default_factory=Matrix)
    details: tuple[Detail, ...] = ()
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    kept: Recorded | None = None
    results: tuple[Result, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """The id without the paper."""
        return self.entry.id.split("/", 1)[-1]

    @property
    def ran(self) -> bool:
        """Whether this run has something of it to show."""
        return any(result.status in ("done", "failed") for result in self.results)

    @property
    def shown(self) -> bool:
        """Whether there is more to say than the state and its reason."""
        return self.ran or self.kept is not None

    @property
    def mark(self) -> str:
        """The verdict's sign."""
        return VERDICT_MARKS[self.verdict.word]

    @property
    def tone(self) -> str:
        """The verdict as a CSS class."""
        return self.verdict.word.replace(" ", "_")

    @property
    def kept_machine(self) -> str:
        """Where the recorded run was made."""
        if self.kept is None:
            return ""
        machine, threads = numbers.machine(self.kept.machine), self.kept.threads
        if threads == 1:
            return f"{machine}, 1 thread"
        if threads:
            return f"{machine}, {threads} threads"
        return machine

    @property
    def kept_cpu(self) -> float:
        """CPU seconds of the recorded run."""
        return sum(result.cpu_seconds for result in self.kept.results) if self.kept else 0.0


def sections(
    entries: Iterable[Entry], results: Sequence[Result], planned: Mapping[str, int] | None = None
) -> list[Section]:
    """One section for each entry, in the catalogue's order; ``planned`` says how many cells each was to have."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        grouped.setdefault(result.entry, []).append(result)
    built = []
    for entry in entries:
        lines = grouped.get(entry.id, [])
        # the line of a whole entry (its key is its id) says why nothing ran; cells that ran since outdate it
        lines = [result for result in lines if result.key != result.entry] or lines
        ran = any(result.status in ("done", "failed") for result in lines)
        # the longest recorded run stands beside this one
        recorded = max(find_recorded(entry.id), key=lambda run: len(run.results), default=None)
        longer = recorded.results if recorded else ()
        # why cells were not done, each reason once, sets that were left out in one sentence
        texts = (result.error or result.note for result in lines if result.status not in ("done", "not_built"))
        reasons = list(dict.fromkeys(reason for reason in texts if reason))
        left_out = [reason.removeprefix(_LEFT_OUT).rstrip(".") for reason in reasons if reason.startswith(_LEFT_OUT)]
        reasons = [reason for reason in reasons if not reason.startswith(_LEFT_OUT)]
        if left_out:
            reasons.insert(0, f"{_LEFT_OUT}{', '.join(left_out)}.")
        expected = (planned or {}).get(entry.id, 0)
        if len(lines) < expected:
            reasons.append(f"The run ended after {len(lines)} of {expected} cells; --resume goes on with it.")
        # the further values of cells that have a column, over their seeds
        further: dict[tuple[str, str, str], list[float]] = {}
        for result in lines:
            if result.status == "done" and result.column:
                for name, value in result.values.items():
                    further.setdefault((result.row, result.column, name), []).append(value)
        details = [
            Detail(*place, numbers.with_deviation(*numbers.mean_and_deviation(values)))
            for place, values in further.items()
        ]
        table = Matrix()
        if ran or longer:
            table = matrix(entry, lines if ran else [], longer)
        section = Section(
            entry=entry,
            state=STATES[_state(entry, lines, expected)],
            verdict=recorded_verdict(entry, lines),
            anchor="entry-" + "".join(c if c.isalnum() else "-" for c in entry.id),
            matrix=table,
            details=tuple(details),
            notes=tuple(dict.fromkeys(result.note for result in lines if result.status == "done" and result.note)),
            reasons=tuple(reasons),
            seconds=sum(result.seconds for result in lines),
            cpu_seconds=sum(result.cpu_seconds for result in lines),
            kept=recorded,
            results=tuple(lines),
        )
        built.append(section)
    return built


def unknown_entries(entries: Iterable[Entry], results: Iterable[Result]) -> list[Entry]:
    """Entries of a run that the catalogue does not have (a run of another version): shown by their id alone."""
    ids = {entry.id for entry in entries}
    strange = dict.fromkeys(result.entry for result in results if result.entry not in ids)
    return [Entry(id=name, paper=name.split("/", 1)[0], kind="result", title=name, source="") for name in strange]


def _state(entry: Entry, results: list[Result], planned: int) -> str:
    if not results:
        return "not_run" if entry.built else "not_built"
    statuses = {result.status for result in results}
    if "failed" in statuses:
        return "failed"
    if statuses == {"missing"} and all(result.note.startswith(_LEFT_OUT) for result in results):
        return "left_out"
    if "missing" in statuses and "done" in statuses:
        return "in_part"
    if "missing" in statuses:
        # a cell that needs no data lacks a package
        cells = [result for result in results if result.status == "missing" and result.row]
        if cells and not any(result.data for result in cells):
            return "package"
        return "missing"
    if "done" in statuses and len(results) < planned:
        return "in_part"
    return next((status for status in ("done", "paper_scale_only") if status in statuses), "not_built")
