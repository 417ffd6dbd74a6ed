"""Keep a run with the package, or run a kept one again.

``python tools/record_run.py RUN NAME [ENTRY ...] [--seeds N]`` copies ``run.json`` and the done lines of
``results.jsonl`` into ``src/mercer_papers/recorded/NAME``, without curves and arrays, which the verdicts and tables do
not read. Nothing else is changed. Of a run that was stopped, name the entries and the number of seeds that are
complete: the command beside it asks for whole seeds.

``python tools/record_run.py --repeat FOLDER NAME [ENTRY ...]`` runs the commands of the kept run NAME into FOLDER and
says how far the numbers are from the kept ones (times are left out).
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from mercer_papers.catalogue import entries
from mercer_papers.recorded_runs import RECORDED, find_recorded
from mercer_papers.results import Result, read_results


def keep(run: Path, name: str, chosen: list[str], seeds: int | None) -> None:
    """Write the two files."""
    folder = RECORDED / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line["status"] == "done" and (not chosen or line["entry"] in chosen)]
    kept = [line for line in kept if seeds is None or line["seed"] < seeds]
    latest = {line["key"]: {**line, "curves": {}, "arrays": {}} for line in kept}
    text = "".join(json.dumps(line) + "\n" for line in latest.values())
    (folder / "results.jsonl").write_text(text, encoding="utf-8")
    (folder / "run.json").write_text((run / "run.json").read_text(encoding="utf-8"), encoding="utf-8")


def repeat(folder: Path, name: str, chosen: list[str]) -> None:
    """Run again by the commands of the pages and compare."""
    for entry in (entry for entry in entries() if not chosen or entry.id in chosen):
        for run in (run for run in find_recorded(entry.id) if run.folder == name):
            output = folder / entry.id.replace("/", "-")
            subprocess.run([*shlex.split(run.command), "-o", str(output)], check=True)
            again = {(line.row, line.column, line.seed): _numbers(line) for line in read_results(output)}
            gaps = []
            for line in run.results:
                new = again.get((line.row, line.column, line.seed), {})
                for key, number in _numbers(line).items():
                    gap = abs(new.get(key, float("nan")) - number)
                    gaps.append((gap / max(abs(number), 1e-9), f"{line.row} {line.column} {key}".strip()))
            worst, where = max(gaps)
            equal = sum(gap == 0 for gap, _ in gaps)
            sys.stdout.write(f"{entry.id}: {equal} of {len(gaps)} numbers equal, most apart by {worst:.2g} ({where})\n")


def _numbers(line: Result) -> dict[str, float]:
    numbers = {name: value for name, value in line.values.items() if not name.startswith("time")}
    return numbers if line.value is None else {**numbers, "": line.value}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder; with --repeat a new one")
    parser.add_argument("name")
    parser.add_argument("entries", nargs="*")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--repeat", action="store_true")
    given = parser.parse_args()
    if given.repeat:
        repeat(given.run, given.name, given.entries)
    else:
        keep(given.run, given.name, given.entries, given.seeds)
