"""What stderr shows of a run: a bar on a terminal, one line for each finished cell elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from mercer.cli.output import say

if TYPE_CHECKING:
    from mercer_papers.cells import Cell
    from mercer_papers.results import Result


class Lines:
    """One line a cell, for logs and pipes."""

    def __init__(self) -> None:
        self._total = self._count = 0
        self._missing: set[str] = set()  # what was said to be missing

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def report_plan(self, total: int, kept: int) -> None:
        """Say what is ahead."""
        self._total, self._count = total, kept
        say(f"{total} cells, {kept} done before")

    def began(self, cell: Cell) -> None:
        """Nothing: the line comes when the cell has ended."""

    def report_end(self, result: Result) -> None:
        """One line for the cell."""
        self._count += 1
        if not _said_before(result, self._missing):
            say(f"[{self._count}/{self._total}] {describe(result)}")


class Bar:
    """A bar with the cell at work, for a terminal; cells that fail stay above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("")
        self._missing: set[str] = set()  # what was said to be missing

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def report_plan(self, total: int, kept: int) -> None:
        """Set the bar's length."""
        self._progress.update(self._task, total=total, completed=kept)

    def began(self, cell: Cell) -> None:
        """Name the cell at work."""
        name = " ".join(part for part in (cell.entry, cell.row, cell.column) if part)
        self._progress.update(self._task, description=name)

    def report_end(self, result: Result) -> None:
        """One step; a line of its own where it did not end well."""
        self._progress.advance(self._task)
        if result.status != "done" and not _said_before(result, self._missing):
            self._progress.console.print(describe(result), markup=False, highlight=False, soft_wrap=True)


def watcher() -> Bar | Lines:
    """A bar where stderr is a terminal, else lines."""
    return Bar() if sys.stderr is not None and sys.stderr.isatty() else Lines()


def _said_before(result: Result, missing: set[str]) -> bool:
    """Whether the same data or package was named before: cells without it are counted at the end, not listed."""
    if result.status != "missing":
        return False
    known = result.note in missing
    missing.add(result.note)
    return known


def describe(result: Result) -> str:
    """``entry, row, column, seed: status, number, seconds`` and the reason where there is one."""
    where = ", ".join(part for part in (result.entry, result.row, result.column) if part)
    seed = f" (seed {result.seed})" if result.seed else ""
    value = "" if result.value is None else f" {result.value:.6g}"
    held = {True: ", holds", False: ", does not hold", None: ""}[result.passed]
    reason = result.error or (result.note if result.status == "missing" else "")
    return f"{where}{seed}: {result.status}{value}{held}, {result.seconds:.1f} s" + (f": {reason}" if reason else "")
