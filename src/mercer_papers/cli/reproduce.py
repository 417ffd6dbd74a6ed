"""``mercer reproduce``: run entries of the papers, then build the page.

Stderr shows a bar on a terminal, and elsewhere one line for each finished cell.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from mercer.cli.output import check_output, count_option, device_option, examples, is_stream, json_option, say

if TYPE_CHECKING:
    from mercer_papers.catalogue import Entry
    from mercer_papers.cells import Cell
    from mercer_papers.results import Result

WORDS = {
    "done": "done",
    "failed": "failed",
    "missing": "not run",
    "paper_scale_only": "paper scale only",
    "not_built": "not built yet",
}
_SCALES = ("smoke", "small", "paper")


@click.command(
    short_help="Run the papers' entries into one page.",
    epilog=examples(
        "mercer reproduce spectral2019/table1 --scale smoke", "mercer reproduce chen2022 --bundled --jobs 2"
    ),
)
@click.argument("ids", metavar="[ID ...]", nargs=-1)
@click.option(
    "--scale",
    type=click.Choice(_SCALES),
    help="Size of each entry: seconds, minutes, the paper's own.  [default: small]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="RUN",
    help="Resume a run with its original options.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="RUN",
    help="Folder; - puts the page on standard output and keeps nothing.  [default: runs/<time>]",
)
@click.option("--bundled", is_flag=True, help="Run only what needs no data from MERCER_DATA.")
@click.option("--seeds", type=click.IntRange(1), help="Override the number of seeds.")
@device_option("Device to train networks on: cpu, cuda, cuda:1, mps.")
@click.option(
    "--set", "changes", metavar="NAME=VALUE", multiple=True, help="Override a setting, such as rows=6000 or epochs=20."
)
@click.option("--only", metavar="TEXT", multiple=True, help="Run only cells whose `row | column` contains TEXT.")
@count_option("--jobs", 1, "Number of processes.")
@json_option
def reproduce(
    ids: tuple[str, ...],
    scale: str | None,
    resume: Path | None,
    output: Path | None,
    bundled: bool,
    seeds: int | None,
    device: str | None,
    changes: tuple[str, ...],
    only: tuple[str, ...],
    jobs: int,
    as_json: bool,
) -> None:
    """Run the papers' entries and print the path of report.html. Under torchrun the processes share the work.

    ID is an entry (spectral2019/table1) or a paper (spectral2019); default: all. `mercer list` shows them.
    """
    from mercer import distributed
    from mercer.cli.process import Interrupted
    from mercer_papers import runner
    from mercer_papers.catalogue import select

    if resume is not None and (ids or scale or output or seeds or bundled or changes or only or device):
        raise click.UsageError("--resume takes only --jobs and --json: the run keeps its own ID and options.")
    if output is not None:
        check_output(output, {}, as_json)
    stream = is_stream(output)
    if stream:
        output = Path(click.get_current_context().with_resource(tempfile.TemporaryDirectory(prefix="mercer-")))
    with distributed.joined():
        # the run's folder, made by rank 0
        if resume is None:
            settings = parse_settings(changes)
            try:
                request = runner.Request(ids, scale or "small", seeds, not bundled, settings, only, device or "cpu")
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            folder = str(runner.create(request, output)) if distributed.rank() == 0 else ""
            resume = Path(distributed.gather_json(folder)[0])
        try:
            with watcher() as watch:
                results = runner.run(resume, watch, jobs=jobs)
        except Interrupted as interrupted:
            text = "Interrupted."
            if not stream:
                text = f"Interrupted: finished cells are kept. Resume with: mercer reproduce --resume {resume}"
            click.echo(text, err=True)
            raise click.exceptions.Exit(interrupted.exit_code) from None
        except RuntimeError as error:  # the folder's lock; an entry's own errors are results
            raise click.ClickException(str(error)) from error
        if distributed.rank():
            return  # rank 0 shows what all did
    # the page; the results are safe whatever becomes of it
    try:
        from mercer_papers.report import build

        with distributed.alone():
            page = build(resume)
    except Exception as error:
        logging.getLogger("mercer").error("the page could not be built", exc_info=error)
        click.echo(f"The results are kept in {resume}. Build the page with: mercer report {resume}", err=True)
        raise click.exceptions.Exit(1) from error
    failed = sum(result.status == "failed" for result in results)
    nothing = not any(result.status == "done" for result in results)
    if failed:
        click.echo(f"{failed} of {len(results)} cells failed; -v shows their tracebacks.", err=True)
    elif nothing:
        click.echo("Nothing could be run: `mercer list` shows what can be, and why the rest cannot.", err=True)
    # a line for each entry, or all of it as JSON
    entries = select(runner.read_request(resume).ids)
    outlines = [_outline(entry, [r for r in results if r.entry == entry.id]) for entry in entries]
    if as_json:
        click.echo(json.dumps({"run": str(resume), "report": str(page), "entries": outlines}, indent=2))
    else:
        for outline in outlines:
            line = f"{outline['id']:<25}{WORDS[outline['status']]:<18}{_counts(outline)}"
            click.echo(line.rstrip(), err=stream)
        if stream:
            click.echo(page.read_text("utf-8"), nl=False)
        else:
            click.echo(page)
    raise click.exceptions.Exit(int(failed > 0 or nothing))


def parse_settings(changes: tuple[str, ...]) -> dict[str, Any]:
    """``rows=25000`` as ``{"rows": 25000}``: a number where it reads as JSON, else text."""
    settings: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not (name and equals and value):
            raise click.UsageError(f"reproduce: --set must be NAME=VALUE; got {change!r}.")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings


def _outline(entry: Entry, results: list[Result]) -> dict[str, Any]:
    """One entry of the run: how it went, and its numbers beside the published ones."""
    from mercer_papers.results import entry_status, summarise

    # ours beside theirs
    published = {(number.row, number.column): number.value for number in entry.numbers}
    numbers = [
        {
            "row": s.row,
            "column": s.column,
            "published": published.get((s.row, s.column)),
            "ours": s.mean,
            "deviation": s.deviation,
            "seeds": s.seeds,
        }
        for s in summarise(results)
    ]
    statuses = [result.status for result in results]
    passed = [result.passed for result in results if result.passed is not None]
    return {
        "id": entry.id,
        "status": entry_status(results),
        "cells": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        "passed": all(passed) if passed else None,
        "numbers": numbers,
        "errors": sorted({result.error for result in results if result.error}),
        "seconds": sum(result.seconds for result in results),
    }


def _counts(outline: dict[str, Any]) -> str:
    """``3 done, 1 without data or package; 2.5 s; the claim holds``, and the first error."""
    if outline["status"] in ("not_built", "paper_scale_only"):
        return ""
    words = {"missing": "without data or package"}
    counts = ", ".join(f"{count} {words.get(status, status)}" for status, count in outline["cells"].items())
    claim = {True: "; the claim holds", False: "; the claim does not hold", None: ""}[outline["passed"]]
    errors = "".join(f"; {error}" for error in outline["errors"][:1])
    return f"{counts}; {outline['seconds']:.1f} s{claim}{errors}"


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

    def report_start(self, cell: Cell) -> None:
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

    def report_start(self, cell: Cell) -> None:
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
    if sys.stderr is not None and sys.stderr.isatty():
        return Bar()
    return Lines()


def _said_before(result: Result, missing: set[str]) -> bool:
    """Whether the same data or package was named before: cells without it are counted at the end, not listed."""
    if result.status != "missing":
        return False
    is_known = result.note in missing
    missing.add(result.note)
    return is_known


def describe(result: Result) -> str:
    """``entry, row, column, seed: status, number, seconds`` and the reason where there is one."""
    text = ", ".join(part for part in (result.entry, result.row, result.column) if part)
    if result.seed:
        text += f" (seed {result.seed})"
    text += f": {result.status}"
    if result.value is not None:
        text += f" {result.value:.6g}"
    text += {True: ", holds", False: ", does not hold", None: ""}[result.passed]
    text += f", {result.seconds:.1f} s"
    reason = result.error
    if result.status == "missing":
        reason = reason or result.note
    if reason:
        text += f": {reason}"
    return text
