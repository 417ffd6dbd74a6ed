"""Longer runs kept with the package: folders of ``mercer reproduce`` that took hours, so that every page can show them.

``recorded/<name>/`` holds the ``run.json`` and ``results.jsonl`` of one run, as the run left them. To add one, run
``mercer reproduce ID --set rows=25000 ... -o RUN`` and then ``python tools/record_run.py RUN NAME``; nothing in them is
written by hand.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mercer_papers.cells import Cell
from mercer_papers.results import RESULTS, RUN, Result

RECORDED = Path(__file__).parent / "recorded"
REPEAT = "repeat.json"
ROUNDING = 1e-6  # relative gap of numbers that are called equal
# Settings that cells got after runs were kept, with the value that means what was done before.
LATER = {"rates": [], "schedules": ["cosine"]}
IN_THE_ROW = ("task", "score", "head")  # settings that were read from the row's name before


@dataclass(frozen=True)
class Recorded:
    """The part of one kept run that is of one entry.

    Args:
        asked: what was asked of ``mercer reproduce``, as in ``run.json``.
        machine: where it ran.
        threads: of each process.
        results: the entry's lines.
        folder: the run's name in ``recorded``.
        version: of Mercer that ran it; a later one may give other numbers for the rows that are ours.
    """

    asked: Mapping[str, Any]
    machine: Mapping[str, Any]
    threads: int | None
    results: tuple[Result, ...]
    folder: str = ""
    version: str = ""

    @property
    def command(self) -> str:
        """The command that gives these results again, whatever the default number of seeds is by now."""
        entries = dict.fromkeys(result.entry for result in self.results)
        words = ["mercer reproduce", *entries, f"--scale {self.asked['scale']}"]
        # the settings that these cells have
        used = {name for result in self.results for name in result.settings}
        for name, value in self.asked.get("settings", {}).items():
            if name in used:
                text = value if isinstance(value, str) else json.dumps(value)
                words.append(_option("--set", f"{name}={text}"))
        # which cells; whole names where they were all named, because an entry may have got more rows since
        named = list(dict.fromkeys(f"{result.row} | {result.column}" for result in self.results))
        only = [text for text in self.asked.get("only", ()) if any(text in name for name in named)]
        if len(named) <= len(only) and all(result.column for result in self.results):
            only = named
        words += [_option("--only", text) for text in only]
        if not self.asked.get("download", True):
            words.append("--bundled")
        seeds = 1 + max(result.seed for result in self.results)
        if seeds > 1 or self.asked.get("seeds"):
            words.append(f"--seeds {seeds}")
        return " ".join(words)


def _option(name: str, text: str) -> str:
    """An option of a command line, in quotation marks where the text has blanks."""
    return f'{name} "{text}"' if " " in text else f"{name} {text}"


def find_recorded(entry: str) -> list[Recorded]:
    """The kept runs that hold done cells of this entry, by the name of their folder."""
    parts = []
    for folder in _folders(RECORDED):
        run, results = read_recorded(folder)
        lines = tuple(result for result in results if result.entry == entry and result.status == "done")
        if lines:
            session = run["sessions"][-1]
            version = session.get("versions", {}).get("mercer", "")
            threads = session.get("threads")
            parts.append(Recorded(run["asked"], session["machine"], threads, lines, folder.name, version))
    return parts


def find_repeat(name: str) -> dict[str, Any]:
    """The outcome of running a share of the kept run again, as `compare_repeat` has it, with the version."""
    repeat: dict[str, Any] = json.loads((RECORDED / name / REPEAT).read_text(encoding="utf-8"))
    return repeat


def describe_repeat(name: str) -> str:
    """One clause for the pages: which share of the kept run was run again, by which version, and how near it came."""
    repeat = find_repeat(name)
    if not repeat["repeated"]:
        return f"not repeated: one seed costs {repeat['cpu_seconds_left'] / 60:.0f} CPU minutes"
    apart = f"apart by at most {100 * repeat['gap']:.1g} %"
    words = {"equal": repeat["equal"], "within the seeds' spread": repeat["within"], apart: len(repeat["apart"])}
    outcome = ", ".join(f"{count} {word}" for word, count in words.items() if count)
    return f"repeated by {repeat['version']}: {repeat['repeated']} of {repeat['cells']} cells of one seed, {outcome}"


def find_changes(kept: Result, cell: Cell) -> list[str]:
    """The settings in which a cell of today differs from a kept line; one that is only written down now is none."""
    changes = []
    if tuple(kept.data) != tuple(cell.data):
        changes.append("data")
    for name in sorted({**kept.settings, **cell.settings}):
        before, now = kept.settings.get(name, LATER.get(name)), cell.settings.get(name)
        same = before == now
        if name == "shows" and isinstance(before, list):  # of one training more numbers may be shown by now
            same = set(before) <= set(now or ())
        elif name in IN_THE_ROW and name not in kept.settings:
            same = str(now) in kept.row
        if not same:
            changes.append(name)
    return changes


def compare_repeat(kept: Sequence[Result], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far repeated cells are from the kept lines with their keys; times are left out.

    A cell is *equal* where all its numbers are, to rounding. Else training amplified rounding, or its method changed
    since, and the seeds tell what a gap means: *within* their spread where no number is further from its kept one than
    two draws of one distribution are in 99 of 100 cases (Student's t of the kept seeds), *apart* beyond, or with one
    seed. ``gap`` is the largest relative gap, ``deviations`` the largest in standard deviations of the seeds.
    """
    from scipy.stats import t as student

    # the kept numbers of every cell, over its seeds
    seeds: dict[tuple[str, str, str, str], list[float]] = {}
    for line in kept:
        for name, number in _numbers(line.values, line.value, line.row):
            seeds.setdefault((line.entry, line.row, line.column, name), []).append(number)
    # each repeated cell: its worst number decides
    by_key = {line.key: line for line in kept}
    words, gaps, spreads, apart = [], [0.0], [0.0], []
    for repeat in lines:
        first = by_key[repeat["key"]]
        word = "equal" if repeat["status"] == "done" else "apart"
        for name, number in _numbers(first.values, first.value, first.row):
            again = repeat["again"].get(name)
            if again is None:
                word = "apart"
                continue
            gap = abs(again - number)
            if gap <= ROUNDING * max(abs(number), ROUNDING):
                continue
            gaps.append(gap / max(abs(number), ROUNDING))
            # what two draws of the kept seeds' distribution are apart
            values = seeds[first.entry, first.row, first.column, name]
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            allowed = 0.0
            if deviation:
                allowed = 2**0.5 * deviation * student.ppf(0.995, len(values) - 1)
                spreads.append(gap / deviation)
            if word != "apart":
                word = "within" if gap <= allowed else "apart"
        words.append(word)
        if word == "apart":
            apart.append(f"{first.entry}: {first.row} | {first.column}")
    repeated = {repeat["key"] for repeat in lines}
    not_repeated = [line for line in kept if line.seed == 0 and line.key not in repeated]
    return {
        "cells": len(lines) + len(not_repeated),
        "repeated": len(lines),
        "equal": words.count("equal"),
        "within": words.count("within"),
        "apart": apart,
        "other_settings": sum(bool(repeat["settings"]) for repeat in lines),
        "gap": max(gaps),
        "deviations": max(spreads),
        "rounding": ROUNDING,
        "cpu_seconds_left": sum(line.cpu_seconds for line in not_repeated),
        "cpu_seconds": sum(line.cpu_seconds for line in kept),
    }


def _numbers(values: Mapping[str, float], value: float | None, row: str) -> list[tuple[str, float]]:
    """The numbers of a line that are not times."""
    if "time" in row:
        return []
    numbers = [(name, number) for name, number in values.items() if not name.startswith("time")]
    if value is not None:
        numbers.append(("", value))
    return numbers


@functools.cache
def _folders(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(path.parent for path in root.glob("*/run.json")))


@functools.cache
def read_recorded(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """The request, and the lines.

    Part of the package, so read as it is: the checks of a stranger's folder would import torch for `mercer list`.
    """
    lines = map(json.loads, (folder / RESULTS).read_text(encoding="utf-8").splitlines())
    results = [Result(**{**line, "data": tuple(line["data"])}) for line in lines]
    return json.loads((folder / RUN).read_text(encoding="utf-8")), results
