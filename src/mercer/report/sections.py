"""From the lines of a run to what the page shows: the state of every entry, its table, its doubts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..experiments import Entry, Number, Recorded, Result, Summary, recorded, summarise
from . import numbers

__all__ = ["STATES", "Detail", "Line", "Longer", "Section", "State", "sections", "unknown_entries"]


_MANY_WAITING = 8
_LEFT_OUT = "Left out by --no-download: needs "


@dataclass(frozen=True)
class State:
    """A state of an entry: its name on the page, and what that means."""

    key: str
    label: str
    mark: str
    meaning: str


STATES = {
    state.key: state
    for state in (
        State("done", "done", "\N{CHECK MARK}", "every cell ran"),
        State(
            "partly",
            "in part",
            "\N{CIRCLE WITH LEFT HALF BLACK}",
            "some cells ran; the others want data, or --resume",
        ),
        State("failed", "failed", "\N{MULTIPLICATION SIGN}", "at least one cell ended with an error"),
        State("missing", "missing data", "\N{WHITE CIRCLE}", "its data is not here; how to get it is said"),
        State(
            "paper_scale_only",
            "paper scale only",
            "\N{UPWARDS ARROW}",
            "needs the paper's own scale and a GPU",
        ),
        State("not_built", "not built yet", "\N{MIDDLE DOT}", "the code for this entry is not written"),
        State("not_run", "not in this run", "\N{EN DASH}", "built, but not asked for, or not reached"),
    )
}


@dataclass(frozen=True)
class Line:
    """A line of an entry's table: the published number beside ours.

    ``*_order`` are what a column is sorted by; None comes last.
    """

    row: str
    column: str
    published: str = ""
    published_order: float | None = None
    ours: str = ""
    ours_order: float | None = None
    difference: str = ""
    share: str = ""
    gap_order: float | None = None
    difference_order: float | None = None
    verdict: str = ""
    claim: str = ""
    seeds: int = 0
    seconds: str = ""
    seconds_order: float | None = None
    state: str = "done"
    why: str = ""


@dataclass(frozen=True)
class Detail:
    """A further number of a cell, beyond the one the paper printed."""

    row: str
    column: str
    name: str
    value: str


@dataclass(frozen=True)
class Longer:
    """A longer run of the entry that is kept with the package, not part of the run on the page."""

    command: str
    machine: str
    seconds: float
    cpu_seconds: float
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Section:
    """One entry on the page."""

    entry: Entry
    state: State
    anchor: str
    lines: tuple[Line, ...] = ()
    details: tuple[Detail, ...] = ()
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    longer: tuple[Longer, ...] = ()
    results: tuple[Result, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """The id without the paper."""
        return self.entry.id.split("/", 1)[-1]

    @property
    def shown(self) -> bool:
        """Whether there is more to say than the state and its reason."""
        return any(result.status in ("done", "failed") for result in self.results)

    @property
    def folded(self) -> tuple[Line, ...]:
        """Published lines that did not run, where they are so many that they would bury what did."""
        waiting = tuple(line for line in self.lines if not line.ours and line.state in ("missing", "not_run"))
        return waiting if len(waiting) > _MANY_WAITING else ()

    @property
    def open_lines(self) -> tuple[Line, ...]:
        """The lines of the entry's main table."""
        folded = self.folded
        return tuple(line for line in self.lines if line not in folded)

    @property
    def named_columns(self) -> bool:
        """Whether a column of the table has a name to show."""
        return any(line.column for line in self.lines)

    @property
    def compares(self) -> bool:
        """Whether the paper printed a number for a line of the table."""
        return any(line.published for line in self.lines)

    @property
    def judged(self) -> bool:
        """Whether a line says if ours is better than the published number."""
        return any(line.verdict for line in self.lines)

    @property
    def claims(self) -> bool:
        """Whether a line says if the paper's claim holds."""
        return any(line.claim for line in self.lines)


def sections(
    entries: Iterable[Entry], results: Sequence[Result], planned: Mapping[str, int] | None = None
) -> list[Section]:
    """One section for each entry, in the catalogue's order; ``planned`` says how many cells each was to have."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        grouped.setdefault(result.entry, []).append(result)
    cells = planned or {}
    return [_section(entry, _current(grouped.get(entry.id, [])), cells.get(entry.id, 0)) for entry in entries]


def unknown_entries(entries: Iterable[Entry], results: Iterable[Result]) -> list[Entry]:
    """Entries of a run that the catalogue does not have (a run of another version): shown by their id alone."""
    known = {entry.id for entry in entries}
    strange = dict.fromkeys(result.entry for result in results if result.entry not in known)
    return [Entry(id=name, paper=name.split("/", 1)[0], kind="result", title=name, source="") for name in strange]


def _current(results: list[Result]) -> list[Result]:
    """The line of a whole entry (its key is its id) says why nothing ran; cells that ran since outdate it."""
    cells = [result for result in results if result.key != result.entry]
    return cells or results


def _section(entry: Entry, results: list[Result], planned: int) -> Section:
    cells = [result for result in results if result.status in ("done", "failed")]
    return Section(
        entry=entry,
        state=STATES[_state(entry, results, planned)],
        anchor="entry-" + "".join(c if c.isalnum() else "-" for c in entry.id),
        lines=tuple(_lines(entry, results)) if cells else (),
        details=tuple(_details(results)),
        notes=tuple(dict.fromkeys(result.note for result in results if result.status == "done" and result.note)),
        reasons=(*_reasons(results), *_interrupted(results, planned)),
        seconds=sum(result.seconds for result in results),
        cpu_seconds=sum(result.cpu_seconds for result in results),
        longer=tuple(_longer(entry, kept) for kept in recorded(entry.id)) if cells else (),
        results=tuple(results),
    )


def _longer(entry: Entry, kept: Recorded) -> Longer:
    threads = f", {kept.threads} thread{'s' if kept.threads != 1 else ''}" if kept.threads else ""
    return Longer(
        command=kept.command,
        machine=numbers.machine(kept.machine) + threads,
        seconds=sum(result.seconds for result in kept.results),
        cpu_seconds=sum(result.cpu_seconds for result in kept.results),
        lines=tuple(line for line in _lines(entry, list(kept.results)) if line.ours),
    )


def _state(entry: Entry, results: list[Result], planned: int) -> str:
    if not results:
        return "not_run" if entry.built else "not_built"
    seen = {result.status for result in results}
    if "failed" in seen:
        return "failed"
    if "missing" in seen:
        return "partly" if "done" in seen else "missing"
    if "done" in seen and len(results) < planned:
        return "partly"
    return next((status for status in ("done", "paper_scale_only") if status in seen), "not_built")


def _reasons(results: Iterable[Result]) -> Iterable[str]:
    """Why cells were not done, each reason once."""
    found = (result.error or result.note for result in results if result.status not in ("done", "not_built"))
    reasons = list(dict.fromkeys(reason for reason in found if reason))
    sets = [reason.removeprefix(_LEFT_OUT).rstrip(".") for reason in reasons if reason.startswith(_LEFT_OUT)]
    left_out = [f"{_LEFT_OUT}{', '.join(sets)}."] if sets else []
    return [*left_out, *(reason for reason in reasons if not reason.startswith(_LEFT_OUT))]


def _interrupted(results: list[Result], planned: int) -> list[str]:
    done = len(results)
    return [f"The run ended after {done} of {planned} cells; --resume goes on with it."] if done < planned else []


def _lines(entry: Entry, results: list[Result]) -> Iterable[Line]:
    """Published numbers first, in the paper's order, then what only we have."""
    ours = {(summary.row, summary.column): summary for summary in summarise(results)}
    theirs = {(number.row, number.column): number for number in entry.numbers}
    cells: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.row or result.column or result.status == "done":
            cells.setdefault((result.row, result.column), []).append(result)
    places = dict.fromkeys([*theirs, *ours, *(p for p in cells if _adds_a_line(p, cells[p], theirs, ours))])
    for place in places:
        own = cells.get(place) or cells.get((place[0], ""), [])
        yield _line(entry, place, theirs.get(place), ours.get(place), own)


def _adds_a_line(
    place: tuple[str, str],
    cell: list[Result],
    theirs: dict[tuple[str, str], Number],
    ours: dict[tuple[str, str], Summary],
) -> bool:
    """A cell with no number of its own still has a line: it failed, is missing, or only checks a claim."""
    covered = any(row == place[0] for row, _ in [*theirs, *ours])
    return any(result.passed is not None for result in cell) or not (covered or _only_curves(cell))


def _only_curves(cell: list[Result]) -> bool:
    return all(result.status == "done" for result in cell)


def _line(
    entry: Entry, place: tuple[str, str], number: Number | None, summary: Summary | None, cell: list[Result]
) -> Line:
    gap, share, gap_order, order, verdict = "", "", None, None, ""
    if number is not None and summary is not None:
        gap, share = numbers.difference(summary.mean, number.value)
        gap_order = summary.mean - number.value
        order = gap_order / abs(number.value) if number.value else gap_order
        spread = math.hypot(summary.deviation or 0.0, number.deviation or 0.0) or None
        if all(result.scale == "paper" for result in cell):  # on other data, better is not better
            verdict = numbers.verdict(summary.mean, number.value, entry.better, spread)
    bad = next((result for result in cell if result.status != "done"), None)
    seconds = summary.seconds if summary else sum(result.seconds for result in cell)
    return Line(
        row=place[0],
        column=place[1],
        published=numbers.printed(number.value, number.deviation) if number else "",
        published_order=number.value if number else None,
        ours=numbers.with_deviation(summary.mean, summary.deviation) if summary else "",
        ours_order=summary.mean if summary else None,
        difference=gap,
        share=share,
        gap_order=gap_order,
        difference_order=order,
        verdict=verdict,
        claim=_claim(cell),
        seeds=summary.seeds if summary else len([result for result in cell if result.status == "done"]),
        seconds=numbers.duration(seconds) if cell else "",
        seconds_order=seconds if cell else None,
        state=bad.status if bad is not None and summary is None else ("done" if cell else "not_run"),
        why=(bad.error or bad.note) if bad is not None else "",
    )


def _claim(cell: list[Result]) -> str:
    held = Counter(result.passed for result in cell if result.passed is not None)
    if not held:
        return ""
    if held[True] and held[False]:
        return f"holds in {held[True]} of {held.total()} seeds"
    return "holds" if held[True] else "does not hold"


def _details(results: Iterable[Result]) -> Iterable[Detail]:
    """The further ``values`` of cells that have a column, or a number of their own, over their seeds."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for result in results:
        if result.status == "done" and result.column:
            for name, value in result.values.items():
                groups.setdefault((result.row, result.column, name), []).append(value)
    for (row, column, name), values in groups.items():
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else None
        yield Detail(row, column, name, numbers.with_deviation(mean, spread))
