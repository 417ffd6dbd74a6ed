"""The lines of a run: append them safely, read them back, put seeds together."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

RESULTS = "results.jsonl"
RUN = "run.json"
_LONGEST = 2**24  # bytes of a run.json
_RESULT_SHAPE: dict[Any, Any] = {
    "entry": str,
    "key": str,
    "status": {"done", "failed", "missing", "paper_scale_only", "not_built"},
    "scale": str,
    "row?": str,
    "column?": str,
    "seed?": int,
    "value?": (float, None),
    "values?": {str: float},
    "curves?": {str: {str: [float]}},
    "arrays?": {str: [object]},
    "passed?": (bool, None),
    "note?": str,
    "error?": str,
    "settings?": {str: object},
    "data?": [str],
    "seconds?": float,
    "cpu_seconds?": float,
    "started?": str,
    "...": object,  # fields of a later version
}
_RUN_SHAPE: dict[Any, Any] = {
    "schema?": int,
    "asked?": {
        "ids?": [str],
        "scale?": str,
        "seeds?": (int, None),
        "settings?": {str: object},
        "only?": [str],
        "...": object,
    },
    "sessions?": [
        {"started?": str, "versions?": {str: str}, "machine?": {str: object}, "threads?": (int, None), "...": object}
    ],
    "planned?": {str: int},
    "...": object,
}


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
    """Add a line with one write and one fsync, so that a kill leaves whole lines and at most one torn."""
    from mercer.storage.files import append_line

    append_line(path, result.line().rstrip("\n").encode())


def read_results(run: Path) -> list[Result]:
    """The results of a run folder in the order of their first line; of two with one key the later holds.

    Lines that are not whole JSON objects (torn by a kill) are skipped.

    Raises:
        ValueError: A whole line has not the fields of a result, or not their types; the sentence names it.
    """
    from mercer.storage.files import read_lines
    from mercer.storage.schema import check_schema

    names = {f.name for f in fields(Result)}
    latest: dict[str, Result] = {}
    path = Path(run) / RESULTS
    for number, line in enumerate(read_lines(path), 1):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        check_schema("reproduce", f"{path} line {number}", document, _RESULT_SHAPE)
        named = {name: value for name, value in document.items() if name in names}
        latest[named["key"]] = Result(**{**named, "data": tuple(named.get("data", ()))})
    by_cells = {result.entry for result in latest.values() if result.key != result.entry}
    # An entry that could not run in an early session may run in a later one: then its cells speak for it.
    return [result for result in latest.values() if result.key != result.entry or result.entry not in by_cells]


def read_run(run: Path) -> dict[str, Any]:
    """The run's ``run.json``: what was asked, and the sessions' versions and machines."""
    from mercer.storage.files import open_to_read
    from mercer.storage.schema import check_schema

    path = Path(run) / RUN
    if not path.exists():
        contents = "no folder of that name"
        if Path(run).is_dir():
            names = sorted(file.name for file in Path(run).iterdir())
            contents = ", ".join(names[:5]) or "an empty folder"
        raise FileNotFoundError(f"{run}: not a run folder, for it has no {RUN}; got {contents}.")
    try:
        with open_to_read(path) as file:
            document = json.loads(file.read(_LONGEST))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: must be JSON; got {error}. Start the run again.") from None
    checked: dict[str, Any] = check_schema("reproduce", str(path), document, _RUN_SHAPE)
    return checked


def summarise(results: Iterable[Result]) -> list[Summary]:
    """Mean and deviation over seeds of every number: a cell's ``value``, and its ``values`` by column.

    A cell with ``column=""`` is a whole row: its ``values`` are the columns. Further ``values`` of a cell that has a
    column are details, and left out.
    """
    groups: dict[tuple[str, str, str], list[tuple[float, Result]]] = {}
    for result in results:
        if result.status != "done":
            continue
        numbers: dict[str, float] = {}
        if not result.column:
            numbers |= result.values
        if result.value is not None:
            numbers[result.column] = result.value
        for column, number in numbers.items():
            groups.setdefault((result.entry, result.row, column), []).append((number, result))
    # mean and deviation of each
    summaries = []
    for name, group in groups.items():
        values = [number for number, _ in group]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        seconds, cpu = (sum(getattr(result, kind) for _, result in group) for kind in ("seconds", "cpu_seconds"))
        summaries.append(Summary(*name, statistics.fmean(values), deviation, len(values), seconds, cpu))
    return summaries


def entry_status(results: Sequence[Result]) -> str:
    """One status for an entry's results: *failed* if any failed, else *done* if any is done, else what they are."""
    statuses = {result.status for result in results}
    order = ("failed", "done", "missing", "paper_scale_only", "not_built")
    return next((status for status in order if status in statuses), "not_built")
