"""Longer runs kept with the package: folders of ``mercer reproduce`` that took hours, so that every page can show them.

``recorded/<name>/`` holds the ``run.json`` and ``results.jsonl`` of one run, as the run left them. To add one, run
``mercer reproduce ID --set rows=25000 ... -o RUN`` and then ``python tools/record_run.py RUN NAME``; nothing in them is
written by hand.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mercer_papers.results import RESULTS, RUN, Result

RECORDED = Path(__file__).parent / "recorded"


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
        used = {name for result in self.results for name in result.settings}
        changes = {name: value for name, value in self.asked.get("settings", {}).items() if name in used}
        words += [f"--set {n}={v if isinstance(v, str) else json.dumps(v)}" for n, v in changes.items()]
        named = list(dict.fromkeys(f"{result.row} | {result.column}" for result in self.results))
        only = [text for text in self.asked.get("only", ()) if any(text in name for name in named)]
        if len(named) <= len(only) and all(result.column for result in self.results):
            only = named  # whole names, for an entry may have got more rows since
        words += [f'--only "{text}"' if " " in text else f"--only {text}" for text in only]
        words += [] if self.asked.get("download", True) else ["--bundled"]
        seeds = 1 + max(result.seed for result in self.results)
        return " ".join([*words, f"--seeds {seeds}"] if seeds > 1 or self.asked.get("seeds") else words)


def find_recorded(entry: str) -> list[Recorded]:
    """The kept runs that hold done cells of this entry, by the name of their folder."""
    found = [_part(folder, entry) for folder in _folders(RECORDED)]
    return [part for part in found if part.results]


@functools.cache
def _folders(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(path.parent for path in root.glob("*/run.json")))


@functools.cache
def _read(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """Part of the package, so read as it is: the checks of a stranger's folder would import torch for `mercer list`."""
    lines = map(json.loads, (folder / RESULTS).read_text(encoding="utf-8").splitlines())
    results = [Result(**{**line, "data": tuple(line["data"])}) for line in lines]
    return json.loads((folder / RUN).read_text(encoding="utf-8")), results


def _part(folder: Path, entry: str) -> Recorded:
    run, results = _read(folder)
    session = run["sessions"][-1]
    own = tuple(result for result in results if result.entry == entry and result.status == "done")
    version = session.get("versions", {}).get("mercer", "")
    return Recorded(run["asked"], session["machine"], session.get("threads"), own, folder.name, version)
