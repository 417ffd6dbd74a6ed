"""Keep a run with the package, or run a kept one again.

``python tools/record_run.py RUN NAME [ENTRY ...] [--seeds N]`` copies ``run.json`` and the done lines of
``results.jsonl`` into ``src/mercer_papers/recorded/NAME``, without curves and arrays, which the verdicts and tables do
not read. Nothing else is changed. Of a run that was stopped, name the entries and the number of seeds that are
complete: the command beside it asks for whole seeds.

``python tools/record_run.py --repeat SECONDS [NAME ...]`` repeats a share of kept runs, all unless named: by the run's
own command the first seed of its cells, the cheapest first, until so many CPU seconds are spent on a run. The outcome
is written beside the run (``repeat.json``, `recorded_runs.compare_repeat`); a run whose cheapest cell costs more says
so. Runs without a ``repeat.json`` come first, then the cheaper ones.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

import mercer
from mercer_papers.cells import Cell
from mercer_papers.cli.reproduce import parse_settings, reproduce
from mercer_papers.execution import execute
from mercer_papers.recorded_runs import RECORDED, REPEAT, compare_repeat, find_changes, find_recorded, read_recorded
from mercer_papers.runner import Request, plan


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


def repeat(name: str, budget: float) -> None:
    """Run the cheapest cells of a kept run again, by its command, and write how far they are from the kept lines."""
    kept = [line for line in read_recorded(RECORDED / name)[1] if line.status == "done"]
    # today's cells of the stored commands, by the command line's own parser
    cells: dict[tuple[str, str, str], list[Cell]] = {}
    for entry in dict.fromkeys(line.entry for line in kept):
        (run,) = (run for run in find_recorded(entry) if run.folder == name)
        asked = reproduce.make_context("reproduce", shlex.split(run.command)[2:]).params
        request = Request(
            asked["ids"], asked["scale"], 1, not asked["bundled"], parse_settings(asked["changes"]), asked["only"]
        )
        for cell in plan(request)[1]:
            cells.setdefault((cell.entry, cell.row, cell.column), []).append(cell)
    # A line that cost nothing took its numbers from another's run, so the clock decides and not the sum of the costs.
    lines, began = [], time.process_time()
    for line in sorted((line for line in kept if line.seed == 0), key=lambda line: line.cpu_seconds):
        if time.process_time() - began + line.cpu_seconds > budget:
            break
        # several cells may share a row and a column (the variants of chen2022's Table 1): the likest one is meant
        alike = cells.get((line.entry, line.row, line.column), [])
        if not alike:
            lines.append({"key": line.key, "status": "no such cell", "settings": [], "again": {}})
            continue
        cell = min(alike, key=lambda cell: len(find_changes(line, cell)))
        again = execute(cell, line.scale)
        numbers = dict(again.values)
        if again.value is not None:
            numbers[""] = again.value
        changes = find_changes(line, cell)
        lines.append({"key": line.key, "status": again.status, "settings": changes, "again": numbers})
        if again.status != "done":
            sys.stdout.write(f"{name}: {line.entry} {line.row} | {line.column}: {again.error or again.note}\n")
    summary = {"version": mercer.__version__, "budget": budget, **compare_repeat(kept, lines), "lines": lines}
    (RECORDED / name / REPEAT).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{name}: {json.dumps({k: v for k, v in summary.items() if k != 'lines'})}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="RUN NAME [ENTRY ...], or runs to repeat")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--repeat", type=float, metavar="SECONDS")
    given = parser.parse_args()
    if given.repeat is None:
        folder, name, *chosen = given.names
        keep(Path(folder), name, chosen, given.seeds)
    else:
        names = given.names or [path.parent.name for path in RECORDED.glob("*/run.json")]
        cost = {name: sum(line.cpu_seconds for line in read_recorded(RECORDED / name)[1]) for name in names}
        for name in sorted(names, key=lambda name: ((RECORDED / name / REPEAT).exists(), cost[name])):
            repeat(name, given.repeat)
