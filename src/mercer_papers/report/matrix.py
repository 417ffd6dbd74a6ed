"""A table as the paper prints it: its rows and columns, in each cell ours, a recorded longer run's, and theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mercer.figures import numbers

from ..catalogue import Entry, Number
from ..results import Result, Summary, summarise

_NEAR, _FAR = 0.02, 0.1  # relative differences up to which a number agrees, and is near


@dataclass(frozen=True)
class MatrixCell:
    """One place of the table; ``order`` is what its column is sorted by.

    ``tone`` says how far our number (this run's, else the recorded one) is from the paper's: ``agrees``, ``near``,
    ``far``, ``timed`` for seconds of two machines, or nothing where there is only one of them. ``claim`` is of a check.
    """

    ours: str = ""
    kept: str = ""
    theirs: str = ""
    tone: str = ""
    claim: str = ""
    order: float | None = None
    state: str = ""
    why: str = ""


@dataclass(frozen=True)
class Matrix:
    """Column names, and rows of cells by name."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[MatrixCell, ...]], ...] = ()

    @property
    def pairs(self) -> int:
        """How many cells hold a number of ours beside a published one."""
        return sum(cell.tone not in ("", "timed") for _, cells in self.rows for cell in cells)

    @property
    def has(self) -> frozenset[str]:
        """Which of ``ours``, ``kept``, ``theirs``, ``claim`` and ``timed`` the table holds."""
        cells = [cell for _, row in self.rows for cell in row]
        names = {name for name in ("ours", "kept", "theirs", "claim") if any(getattr(c, name) for c in cells)}
        return frozenset(names | {cell.tone for cell in cells if cell.tone == "timed"})


def matrix(entry: Entry, results: Sequence[Result], kept: Sequence[Result]) -> Matrix:
    """The paper's rows and columns first, in its order, then those that only we have."""
    theirs = {(number.row, number.column): number for number in entry.numbers}
    ours = {(s.row, s.column): s for s in summarise(results)}
    longer = {(s.row, s.column): s for s in summarise(kept)}
    cells: dict[tuple[str, str], list[Result]] = {}
    for result in results or kept:
        if result.row or result.column or result.status == "done":
            cells.setdefault((result.row, result.column), []).append(result)
    # a cell with no number of its own has a place where it only checks a claim, or failed in a row that has none
    covered = {row for row, _ in (*theirs, *ours, *longer)}
    lone = [
        place
        for place, results_of_cell in cells.items()
        if any(result.passed is not None for result in results_of_cell)
        or (place[0] not in covered and any(result.status == "failed" for result in results_of_cell))
    ]
    places = dict.fromkeys([*theirs, *ours, *longer, *lone])
    columns = tuple(dict.fromkeys(column for _, column in places))
    rows = []
    for row in dict.fromkeys(row for row, _ in places):
        line = []
        for column in columns:
            place = (row, column)
            number, summary, recorded = theirs.get(place), ours.get(place), longer.get(place)
            best = summary or recorded
            texts = {"tone": "", "theirs": "", "ours": "", "kept": "", "claim": "", "state": "", "why": ""}
            order = None
            if number:
                texts["theirs"] = numbers.show_published(number.value, number.deviation)
                order = number.value
            if best:
                order = best.mean
            if best and number:
                texts["tone"] = _tone(number, best)
            if summary:
                texts["ours"] = numbers.with_deviation(summary.mean, summary.deviation)
            if recorded:
                texts["kept"] = numbers.with_deviation(recorded.mean, recorded.deviation)
            # whether a claim held, once a row where a cell gives the whole row
            passed = [result.passed for result in cells.get(place, []) if result.passed is not None]
            if len(set(passed)) > 1:
                texts["claim"] = f"holds in {sum(passed)} of {len(passed)} seeds"
            elif passed:
                texts["claim"] = "holds" if passed[0] else "does not hold"
            # what went wrong, here or in the cell that gives the whole row
            results_of_cell = cells.get(place) or cells.get((row, ""), [])
            bad = next((result for result in results_of_cell if result.status != "done"), None)
            if bad is not None and place in places:
                texts["why"] = bad.error or bad.note
                if best is None and bad.status != "missing":
                    texts["state"] = bad.status
            line.append(MatrixCell(**texts, order=order))
        rows.append((row, tuple(line)))
    return Matrix(columns, tuple(rows))


def _tone(number: Number, ours: Summary) -> str:
    """Two deviations count where they are within a tenth of the number: a wider spread agrees with anything."""
    if number.column.startswith("time"):
        return "timed"
    gap, size = abs(ours.mean - number.value), abs(number.value)
    spread = 2 * math.hypot(ours.deviation or 0.0, number.deviation or 0.0)
    if spread > _FAR * size and size:
        spread = 0.0
    if gap <= max(spread, _NEAR * size):
        return "agrees"
    return "near" if gap <= _FAR * size else "far"
