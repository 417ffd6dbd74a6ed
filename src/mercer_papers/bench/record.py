"""A run on disk: each case's lines as they are measured, so that an interrupted run goes on where it stopped.

The folder holds ``lines.jsonl``, one row for each session (its options, machine, versions) and one for each case, and
at the end ``bench.json``, the whole run as one document, and ``bench.svg``, its picture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mercer import checks
from mercer.storage.files import append_line, atomic_write, read_lines

from .compare import Line
from .picture import draw

LINES = "lines.jsonl"
DOCUMENT = "bench.json"
PICTURE = "bench.svg"


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row of strict JSON: a torn last row is cut off first, the new one reaches the disk before the return."""
    append_line(path, json.dumps(row, allow_nan=False, default=dict).encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file; a line torn by a kill is skipped."""
    rows = []
    for text in read_lines(path):
        try:
            row = json.loads(text)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


class Record:
    """The lines of a run in a folder, made if it is not there.

    Args:
        folder: Folder for the results; one with a run of the same options is resumed.
        options: what was asked (``repeats``, ``threads``); lines of other options are not mixed in.
        session: machine and versions, kept beside the lines.

    Raises:
        ValueError: the folder holds a run with other options.
    """

    def __init__(self, folder: str | os.PathLike[str], options: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / LINES
        rows = read_rows(self._path)
        self.sessions = [row["session"] for row in rows if "session" in row]
        before = next((row["options"] for row in rows if "options" in row), dict(options))
        if before != dict(options):
            fix = "Use the same options, or another folder."
            raise ValueError(checks.sentence("bench", f"{folder} must hold a run with {options}", before, fix))
        self.options = before
        # the cases of earlier sessions, by the fields that lines have today
        known = {one.name for one in fields(Line)}
        cases = {}
        for row in rows:
            if "lines" in row:
                lines = [{name: value for name, value in one.items() if name in known} for one in row["lines"]]
                cases[row["area"], row["case"]] = [Line(**line) for line in lines]
        # Data that was missing may be there now.
        self._cases = {name: lines for name, lines in cases.items() if lines[0].state != "missing"}
        if dict(session) not in self.sessions:
            self.sessions.append(dict(session))
            append_row(self._path, {"options": self.options, "session": dict(session)})

    def kept(self, area: str, case: str) -> list[Line]:
        """The lines of a case that an earlier session measured; none otherwise."""
        return self._cases.get((area, case), [])

    def keep(self, lines: Sequence[Line]) -> None:
        """Put one case's lines on disk."""
        first = lines[0]
        row = {"area": first.area, "case": first.case, "lines": [asdict(line) for line in lines]}
        append_row(self._path, row)
        self._cases[first.area, first.case] = list(lines)

    def finish(self, lines: Sequence[Line]) -> Path:
        """Write the document and the picture; returns the document's path."""
        document = {"options": self.options, "sessions": self.sessions, "lines": [asdict(line) for line in lines]}
        text = json.dumps(document, allow_nan=False, default=dict, indent=1) + "\n"
        # the picture says where it was measured: ``AMD EPYC, 2 cores, 23.5 GiB, Linux x86_64, torch 2.13``
        machines = []
        for session in self.sessions:
            machine, versions = session["machine"], session["versions"]
            size = f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}"
            machines.append(f"{machine['cpu']}, {size}, torch {versions['torch']}, mercer {versions['mercer']}")
        atomic_write(self.folder / PICTURE, draw(lines, "; ".join(dict.fromkeys(machines))).encode())
        atomic_write(self.folder / DOCUMENT, text.encode())
        return self.folder / DOCUMENT
