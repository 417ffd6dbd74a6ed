"""The lines of a run: append them safely, read them back, put seeds together."""

from __future__ import annotations

import errno
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

RESULTS = "results.jsonl"
RUN = "run.json"


@dataclass(frozen=True)
class Result:
    """One line of ``results.jsonl``; the fields are listed at the top of ``runner.py``."""

    entry: str
    key: str
    status: str
    scale: str
    row: str = ""
    column: str = ""
    seed: int = 0
    value: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    arrays: Mapping[str, list[Any]] = field(default_factory=dict)
    passed: bool | None = None
    note: str = ""
    error: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    started: str = ""

    def line(self) -> str:
        """The result as one line of strict JSON (no NaN)."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"


@dataclass(frozen=True)
class Summary:
    """One number of a table over its seeds; ``deviation`` is the sample deviation, None for one seed."""

    entry: str
    row: str
    column: str
    mean: float
    deviation: float | None
    seeds: int
    seconds: float
    cpu_seconds: float


def append(path: Path, result: Result) -> None:
    """Add a line with one write and one fsync, so that a kill leaves whole lines and at most one torn.

    Raises:
        OSError: the disk is full or the file cannot be written; the lines before are intact.
    """
    line = result.line().encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, line) != len(line):
                os.ftruncate(descriptor, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        reason = error.strerror or str(error)
        fix = "The lines before are intact: free space, then resume the run."
        raise OSError(error.errno, f"reproduce: {path} must take one more line; got {reason}. {fix}") from error


def mend(path: Path) -> None:
    """Cut a torn last line off, so that the next append starts a line of its own."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        text = file.read()
        whole = text.rfind(b"\n") + 1
        if whole != len(text):
            file.truncate(whole)
            os.fsync(file.fileno())


def read_results(run: Path) -> list[Result]:
    """The results of a run folder in the order of their first line; of two with one key the later holds.

    Lines that are not whole JSON objects (torn by a kill) are passed over.
    """
    latest: dict[str, Result] = {}
    path = Path(run) / RESULTS
    for line in path.read_bytes().splitlines() if path.exists() else []:
        result = _parse(line)
        if result is not None:
            latest[result.key] = result
    by_cells = {result.entry for result in latest.values() if result.key != result.entry}
    # An entry that could not run in an early session may run in a later one: then its cells speak for it.
    return [result for result in latest.values() if result.key != result.entry or result.entry not in by_cells]


def read_run(run: Path) -> dict[str, Any]:
    """The run's ``run.json``: what was asked, and the sessions' versions and machines."""
    path = Path(run) / RUN
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{run}: not a run folder, for it has no {RUN}; got {_contents(Path(run))}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: must be JSON; got {error}. Start the run again.") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: must hold a JSON object; got {type(document).__name__}. Start the run again.")
    return document


def summarise(results: Iterable[Result]) -> list[Summary]:
    """Mean and deviation over seeds of every number: a cell's ``value``, and its ``values`` by column.

    A cell with ``column=""`` is a whole row: its ``values`` are the columns. Further ``values`` of a cell that has a
    column are details, and left out.
    """
    groups: dict[tuple[str, str, str], list[tuple[float, Result]]] = {}
    for result in results:
        if result.status != "done":
            continue
        numbers = {} if result.column else dict(result.values)
        if result.value is not None:
            numbers[result.column] = result.value
        for column, number in numbers.items():
            groups.setdefault((result.entry, result.row, column), []).append((number, result))
    return [_summary(*name, group) for name, group in groups.items()]


def entry_status(results: Sequence[Result]) -> str:
    """One status for an entry's results: *failed* if any failed, else *done* if any is done, else what they are."""
    statuses = {result.status for result in results}
    order = ("failed", "done", "missing", "paper_scale_only", "not_built")
    return next((status for status in order if status in statuses), "not_built")


def _summary(entry: str, row: str, column: str, group: list[tuple[float, Result]]) -> Summary:
    numbers = [number for number, _ in group]
    return Summary(
        entry=entry,
        row=row,
        column=column,
        mean=statistics.fmean(numbers),
        deviation=statistics.stdev(numbers) if len(numbers) > 1 else None,
        seeds=len(numbers),
        seconds=sum(result.seconds for _, result in group),
        cpu_seconds=sum(result.cpu_seconds for _, result in group),
    )


def _parse(line: bytes) -> Result | None:
    try:
        document = json.loads(line)
        known = {f.name for f in fields(Result)}
        named = {name: value for name, value in document.items() if name in known}
        return Result(**{**named, "data": tuple(named.get("data", ()))})
    except (ValueError, TypeError, AttributeError):
        return None


def _contents(folder: Path) -> str:
    if not folder.is_dir():
        return "no folder of that name"
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:5]) or "an empty folder"
