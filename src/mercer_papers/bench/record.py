"""A run on disk: each case's lines as they are measured, so that an interrupted run goes on where it stopped.

The folder holds ``lines.jsonl``, one row for each session (its options, machine, versions) and one for each case, and
at the end ``bench.json``, the whole run as one document, and ``bench.svg``, its picture.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from mercer import checks
from mercer.figures.theme import LIGHT, canvas, svg
from mercer.storage.files import append_line, atomic_write, read_lines

from .compare import Line
from .timing import OURS

LINES = "lines.jsonl"
DOCUMENT = "bench.json"
PICTURE = "bench.svg"
_COSTS = ("cpu", "wall", "memory")
_WORDS = {"cpu": "CPU", "wall": "time", "memory": "memory"}
_CHEAPER, _DEARER = LIGHT.series[0], LIGHT.series[1]
_ROW = 0.245  # inches


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row of strict JSON: a torn last row is cut off first, the new one reaches the disk before the return."""
    append_line(path, json.dumps(row, allow_nan=False, default=dict).encode())


def replace_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of rows anew, at once: a kill leaves the old file or the new one."""
    atomic_write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


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


@dataclass(frozen=True)
class Speed:
    """The cost of a named peer over ours."""

    area: str
    label: str
    ratio: float

    @property
    def cheaper(self) -> bool:
        """Whether ours costs no more."""
        return self.ratio >= 1


def speeds(lines: Sequence[Line]) -> list[Speed]:
    """Every peer whose time or memory is compared: the measures that have a goal, whether it is met or not."""
    return [
        Speed(line.area, f"{line.case} · {_WORDS[measure]} of {line.who}", line.ratios[measure])
        for line in lines
        for measure in _COSTS
        if line.who != OURS and measure in line.met
    ]


def draw(lines: Sequence[Line], machine: str = "") -> str:
    """The picture as SVG, right on light and on dark screens; ``machine`` is printed under it."""
    shown = speeds(lines)
    figure, (ax,) = canvas(width=11.0, height=1.6 + _ROW * (len(shown) + len({one.area for one in shown})))
    row = 0.0
    ticks: list[tuple[float, str]] = []
    for area, group in groupby(shown, key=lambda one: one.area):
        ax.annotate(area, (0, row), (-6, 0), ("axes fraction", "data"), "offset points", ha="right", va="center",
                    fontsize=9.5, fontweight="bold", color=LIGHT.ink)  # fmt: skip
        for one in group:
            row += 1
            ticks.append((row, one.label))
            # the ratio as a dot, filled where ours is cheaper, and its way from 1
            colour, face = (_CHEAPER, _CHEAPER) if one.cheaper else (_DEARER, "none")
            ax.plot([1.0, one.ratio], [row, row], color=colour, linewidth=2.2, alpha=0.45, solid_capstyle="butt")
            ax.plot([one.ratio], [row], "o", color=colour, markersize=6.5, markerfacecolor=face, markeredgewidth=1.6)
            ax.annotate(_number(one.ratio), (1, row), (4, 0), ("axes fraction", "data"), "offset points", ha="left",
                        va="center", fontsize=8.5, color=colour)  # fmt: skip
        row += 1
    # a logarithmic axis with few ticks, and what the dots mean
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    places = [10.0**e * m for e in range(-4, 6) for m in (1, 3) if low <= 10.0**e * m <= high]
    ax.set_xticks(places, [_number(place) for place in places])
    ax.minorticks_off()
    ax.set_yticks([place for place, _ in ticks], [text for _, text in ticks], fontsize=8.5)
    ax.set_ylim(row - 0.3, -0.7)
    ax.grid(False, axis="y")
    ax.axvline(1.0, color=LIGHT.soft, linewidth=1.2)
    ax.set_xlabel("the peer's cost over Mercer's")
    ax.set_title("● Mercer is cheaper  ·  ○ the peer is cheaper", loc="left", fontsize=9.5, color=LIGHT.ink)
    if machine:
        figure.supxlabel(machine, fontsize=8.5, color=LIGHT.soft)
    return svg(figure)


def _number(value: float) -> str:
    return f"{value:,.0f}x" if value >= 100 else f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}x"
