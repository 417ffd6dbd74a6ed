"""Run entries: one cell -> one pure function -> one line of ``results.jsonl``.

How to write an entry
---------------------
An entry is declared in ``published/<paper>.toml`` (title, numbers, claims, doubts, stand-ins, ``scale``). Its ``run``
table names the module of the paper's folder that runs it and holds what that module asks for; several entries may
share one. ``mercer_papers/spectral2019/spectra.py``::

    from mercer_papers.cells import Cell, Outcome

    ROWS = {"smoke": 64, "small": 2000, "paper": 10_000}

    def cells(entry: Entry, scale: str) -> list[Cell]:  # cheap: no data is read here
        return [
            Cell(entry.id, row="gamma 1, RFF 500", column="MNIST", data=["mnist"], seeds=3,
                 settings={"gamma": 1.0, "m": 500, "n": ROWS[scale]})
        ]

    def run(cell: Cell) -> Outcome:                 # pure: depends on the cell alone (and on the data's files)
        generator = torch.Generator().manual_seed(cell.seed)
        ...
        return Outcome(value=790.1, values={"low": 789.0}, note="")

    def draw(results: list[Result]) -> Figure: ...  # optional, for figures: this entry's done results -> a picture

- ``row`` and ``column`` are spelled as in the TOML: that is how ours meets theirs. One run that gives a whole row of
  a table leaves ``column=""`` and puts one number for each column in ``Outcome.values``.
- ``seeds=3`` runs seeds 0, 1, 2 (``cell.seed``); mean and sample deviation are taken over them. ``seeds=None``:
  nothing is random.
- ``data=["mnist"]`` names the sets looked for in ``MERCER_DATA`` (the names of ``mercer_papers.data.load``). One
  that is not there makes the cell *missing*, with how to get it. What ships with a dependency (digits, wine,
  breast_cancer) or is synthetic is not named. ``--bundled`` runs only the cells that name none.
- An optional package that is absent: raise ``MissingPackage`` with how to get it; the cell is *missing* too.
- A stand-in (another set, a smaller network) is a line of ``stand_ins`` in the TOML; say it in ``note`` too where it
  is of one cell.
- An entry whose TOML says ``scale = "paper"`` is *paper scale only* at the other scales; its ``cells`` is not asked.
- A loss that turns NaN: raise ``FloatingPointError("loss became NaN at step 12")``; the cell is *failed*, with that
  reason, and the run goes on. A non-finite number in the outcome fails the cell too.
- A check (``kind = "check"``) returns ``passed``. A claim of the paper that does not hold is ``passed=False``: a
  result, not an error.
- Before ``run`` the runner seeds torch's global generator from the cell, so that a library that draws from it is
  repeatable too.
- Try it: ``mercer reproduce spectral2019/table1 --scale smoke``. ``tests/papers/test_entries.py`` runs every built
  entry at smoke scale, so keep that to a second or two; the first cell is run twice and must give the same ``value``.

The run folder
--------------
``runs/<stamp>/run.json`` (``asked``: what was asked; ``planned``: cells of each entry; ``sessions``: for each start the
versions, machine, threads) and
``runs/<stamp>/results.jsonl``, one JSON object a line, appended with one write and one fsync; a torn last line is
ignored. Of two lines with one ``key`` the later holds. ``mercer_papers.read_results`` and ``summarise`` read it.
Fields of a line:

    entry, row, column, seed, scale, key     which cell (row, column "" and key = entry for the line of a whole entry)
    status      done | failed | missing | paper_scale_only | not_built
    value       number or null           values    {name: number}
    curves      {name: {"x": [], "y": []}}          arrays    {name: nested lists}
    passed      true | false | null      note      sentence for the reader: how to get the data, why not run
    error       "" or "TypeOfError: message"
    settings, data                       the cell's
    seconds, cpu_seconds                 of ``run`` alone
    started     ISO time, UTC
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import logging
import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from mercer import checks, distributed
from mercer.cli.process import Interruption, machine, versions
from mercer.storage.files import atomic_write
from mercer_papers import ranks
from mercer_papers.catalogue import Entry, select
from mercer_papers.cells import SCALES, Cell
from mercer_papers.execution import blank_result, execute, execute_all
from mercer_papers.results import RUN, Result, append, read_results, read_run

SCHEMA = 1
_log = logging.getLogger("mercer")


@dataclass(frozen=True)
class Request:
    """The request of a run; kept in ``run.json``, so that resuming needs the folder alone.

    Args:
        ids: entries and papers; none mean all.
        scale: ``"smoke"``, ``"small"`` or ``"paper"``.
        seeds: in place of the entries' own counts.
        download: False leaves out the cells that need data from ``MERCER_DATA``.
        settings: in place of the cells' own, for a run between two scales: ``{"rows": 25_000}``. A cell without that
            setting stays as it is.
        only: texts; a cell runs where one of them is part of its ``row | column``. None mean all cells.
        device: where networks are trained; entries that train none ignore it.
    """

    ids: tuple[str, ...] = ()
    scale: str = "small"
    seeds: int | None = None
    download: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    device: str = "cpu"

    def __post_init__(self) -> None:
        checks.choice("reproduce", "scale", self.scale, SCALES)
        if self.seeds is not None:
            checks.integer("reproduce", "seeds", self.seeds, 1)
        checks.device("reproduce", self.device)
        entries = select(self.ids)
        if not (self.settings or self.only):
            return
        # A setting that no cell has, or a text in no row, would change nothing without a word: refuse it.
        able = [e for e in entries if e.built and (e.scale != "paper" or self.scale == "paper")]
        cells = [cell for e in able for cell in e.load().cells(e, self.scale)]
        for text in self.only:
            if not any(text in f"{cell.row} | {cell.column}" for cell in cells):
                need, fix = "only must be a part of a cell's `row | column`", "`mercer reproduce --json` shows them."
                raise ValueError(checks.sentence("reproduce", need, repr(text), fix))
        names = sorted({name for cell in cells for name in cell.settings})
        for name in self.settings:
            checks.choice("reproduce", "a setting's name", name, names)

    def wants(self, cell: Cell) -> bool:
        """Whether ``only`` lets the cell run."""
        return not self.only or any(text in f"{cell.row} | {cell.column}" for text in self.only)


class Watcher(Protocol):
    """Told of the run's progress; the command line draws it."""

    def report_plan(self, total: int, kept: int) -> None:
        """``total`` cells in all, ``kept`` of them done by an earlier session."""

    def report_start(self, cell: Cell) -> None:
        """A cell starts."""

    def report_end(self, result: Result) -> None:
        """A line was written."""


def create(request: Request, folder: Path | None = None) -> Path:
    """A new run folder, ``runs/<stamp>`` unless named; one that holds anything is refused."""
    if folder is None:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        names = [stamp, *(f"{stamp}-{i}" for i in range(2, 10_000))]
        folder = next(Path("runs") / name for name in names if not (Path("runs") / name).exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise OSError(checks.sentence("reproduce", f"{folder} must be a folder one can write to", error)) from error
    if occupied:
        fix = f"Use --resume {folder} to go on with a run, or name another folder."
        raise FileExistsError(checks.sentence("reproduce", f"{folder} must be new or empty", "files in it", fix))
    _write_run(folder, {"schema": SCHEMA, "asked": asdict(request), "sessions": []})
    return folder


def read_request(folder: Path) -> Request:
    """The request of a run folder."""
    document = read_run(folder)
    checks.integer("reproduce", f"schema of {folder / RUN}", document.get("schema", 0), 1, SCHEMA)
    try:
        request = dict(document["asked"])
        return Request(**{**request, "ids": tuple(request["ids"]), "only": tuple(request.get("only", ()))})
    except (KeyError, TypeError) as error:
        fix = "Start a new run."
        raise ValueError(checks.sentence("reproduce", f"{folder / RUN} must say what was asked", error, fix)) from error


def run(folder: Path, watcher: Watcher, *, jobs: int = 1) -> list[Result]:
    """Do what the folder asks and has not done yet; the results of all its lines.

    Done cells stay as they are; failed and missing ones are tried again. SIGINT and SIGTERM raise `Interrupted` with
    every finished cell on disk. Two runs into one folder: the second is refused. Under ``torchrun`` the ranks share the
    cells.
    """
    if distributed.world_size() > 1:
        checks.integer("reproduce", "jobs", jobs, 1, 1, of="for each rank of torchrun runs one cell")
    checks.integer("reproduce", "jobs", jobs, 1)
    request = read_request(folder)
    with ranks.hold(folder), Interruption() as interruption:

        def keep(result: Result) -> None:
            with interruption.held():
                append(ranks.results_path(folder), result)

        lines, cells = plan(request)
        # rank 0 makes the folder ready and says which cells are left
        keys: list[str] = []
        if distributed.rank() == 0:
            ranks.collect(folder)
            earlier = {result.key: result for result in read_results(folder)}
            done = {key for key, result in earlier.items() if result.status == "done"}
            document = read_run(folder)
            # how many cells each entry has, so that an interrupted one is not called done
            document["planned"] = dict(Counter(cell.entry for cell in cells))
            session = {
                "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "jobs": jobs, "ranks": distributed.world_size(), "threads": _threads(jobs),
                "versions": versions(), "machine": machine(),
            }  # fmt: skip
            document["sessions"] = [*document.get("sessions", []), session]
            _write_run(folder, document)
            keys = [cell.key() for cell in cells if cell.key() not in done]
            for line in lines:
                if earlier.get(line.key) != line:
                    keep(line)
        keys = ranks.begin(folder, keys)
        todo = [cell for cell in cells if cell.key() in set(keys)]
        watcher.report_plan(len(cells), len(cells) - len(todo))
        # the cells, each written when it ends
        claimed = ranks.claim_cells(folder, todo)
        if jobs > 1:
            results = execute_all(list(claimed), request.scale, jobs, _threads(jobs), watcher.report_start)
        else:

            def execute_here() -> Generator[Result, None, None]:
                for cell in claimed:
                    watcher.report_start(cell)
                    yield execute(cell, request.scale)

            results = execute_here()
        with contextlib.closing(results):
            for result in results:
                keep(result)
                watcher.report_end(result)
        ranks.finish(folder, keys)
    return read_results(folder)


def plan(request: Request) -> tuple[list[Result], list[Cell]]:
    """Lines that say what cannot or shall not run, and the cells of the rest."""
    lines: list[Result] = []
    planned: list[Cell] = []
    for entry in select(request.ids):
        line = functools.partial(Result, entry=entry.id, key=entry.id, scale=request.scale)
        if not entry.built:
            lines.append(line(status="not_built", note="Not built yet."))
            continue
        if entry.scale == "paper" and request.scale != "paper":
            lines.append(line(status="paper_scale_only", note="Runs at --scale paper only."))
            continue
        try:
            cells = list(entry.load().cells(entry, request.scale))
            check_cells(entry, cells)
            cells = [cell for cell in cells if request.wants(cell)]
        except Exception as error:
            _log.warning("%s: its cells could not be listed", entry.id, exc_info=error)
            lines.append(line(status="failed", error=f"{type(error).__name__}: {error}"))
            continue
        entry_cells: list[Cell] = []
        for cell in cells:
            if cell.data and not request.download:
                note = f"Left out by --bundled: needs {', '.join(cell.data)}."
                lines.append(replace(blank_result(cell, request.scale), status="missing", note=note, started=""))
                continue
            # the settings that were asked for, once for each seed
            changes = {name: value for name, value in request.settings.items() if name in cell.settings}
            changed = replace(cell, settings={**cell.settings, **changes}, device=request.device)
            entry_cells += changed.over_seeds(request.seeds)
        # Seed 0 of every cell first: a run that is cut short still has every row of its table.
        planned += sorted(entry_cells, key=lambda cell: cell.seed)
    return lines, planned


def check_cells(entry: Entry, cells: Sequence[Cell]) -> None:
    """Refuse a slip of an entry's code: no cells, cells of another entry, or two alike."""
    if not cells:
        raise ValueError(checks.sentence(entry.id, "cells(scale) must give at least one cell", "none"))
    for cell in cells:
        if cell.entry != entry.id:
            raise ValueError(checks.sentence(entry.id, "a cell must name its own entry", repr(cell.entry)))
    if len({cell.key() for cell in cells}) != len(cells):
        raise ValueError(checks.sentence(entry.id, "cells must differ from each other", "two alike"))


def _threads(jobs: int) -> int:
    return max(1, math.floor(torch.get_num_threads() / jobs))


def _write_run(folder: Path, document: dict[str, Any]) -> None:
    atomic_write(folder / RUN, (json.dumps(document, indent=2) + "\n").encode())
