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
        threads = f", {self.kept.threads} thread{'s' if self.kept.threads != 1 else ''}" if self.kept.threads else ""
        return numbers.machine(self.kept.machine) + threads

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
    found = []
    for entry in entries:
        lines = grouped.get(entry.id, [])
        # the line of a whole entry (its key is its id) says why nothing ran; cells that ran since outdate it
        cells = [result for result in lines if result.key != result.entry]
        found.append(_section(entry, cells or lines, (planned or {}).get(entry.id, 0)))
    return found


def unknown_entries(entries: Iterable[Entry], results: Iterable[Result]) -> list[Entry]:
    """Entries of a run that the catalogue does not have (a run of another version): shown by their id alone."""
    known = {entry.id for entry in entries}
    strange = dict.fromkeys(result.entry for result in results if result.entry not in known)
    return [Entry(id=name, paper=name.split("/", 1)[0], kind="result", title=name, source="") for name in strange]


def _section(entry: Entry, results: list[Result], planned: int) -> Section:
    runs = find_recorded(entry.id)
    kept = max(runs, key=lambda run: len(run.results)) if runs else None
    longer = list(kept.results) if kept else []
    ran = any(result.status in ("done", "failed") for result in results)
    ended = f"The run ended after {len(results)} of {planned} cells; --resume goes on with it."
    return Section(
        entry=entry,
        state=STATES[_state(entry, results, planned)],
        verdict=recorded_verdict(entry, results),
        anchor="entry-" + "".join(c if c.isalnum() else "-" for c in entry.id),
        matrix=matrix(entry, results if ran else [], longer) if ran or longer else Matrix(),
        details=tuple(_details(results)),
        notes=tuple(dict.fromkeys(result.note for result in results if result.status == "done" and result.note)),
        reasons=(*_reasons(results), *([ended] if len(results) < planned else [])),
        seconds=sum(result.seconds for result in results),
        cpu_seconds=sum(result.cpu_seconds for result in results),
        kept=kept,
        results=tuple(results),
    )


def _state(entry: Entry, results: list[Result], planned: int) -> str:
    if not results:
        return "not_run" if entry.built else "not_built"
    seen = {result.status for result in results}
    if "failed" in seen:
        return "failed"
    if seen == {"missing"} and all(result.note.startswith(_LEFT_OUT) for result in results):
        return "left_out"
    if "missing" in seen:
        package = all(not result.data for result in results if result.status == "missing" and result.row)
        return "in_part" if "done" in seen else "package" if package and any(r.row for r in results) else "missing"
    if "done" in seen and len(results) < planned:
        return "in_part"
    return next((status for status in ("done", "paper_scale_only") if status in seen), "not_built")


def _reasons(results: Iterable[Result]) -> Iterable[str]:
    """Why cells were not done, each reason once."""
    found = (result.error or result.note for result in results if result.status not in ("done", "not_built"))
    reasons = list(dict.fromkeys(reason for reason in found if reason))
    sets = [reason.removeprefix(_LEFT_OUT).rstrip(".") for reason in reasons if reason.startswith(_LEFT_OUT)]
    left_out = [f"{_LEFT_OUT}{', '.join(sets)}."] if sets else []
    return [*left_out, *(reason for reason in reasons if not reason.startswith(_LEFT_OUT))]


def _details(results: Iterable[Result]) -> Iterable[Detail]:
    """The further ``values`` of cells that have a column, over their seeds."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for result in results:
        if result.status == "done" and result.column:
            for name, value in result.values.items():
                groups.setdefault((result.row, result.column, name), []).append(value)
    for (row, column, name), values in groups.items():
        yield Detail(row, column, name, numbers.with_deviation(*numbers.mean_and_deviation(values)))
