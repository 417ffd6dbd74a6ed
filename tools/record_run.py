"""Keep a run with the package: ``python tools/record_run.py RUN NAME [ENTRY ...] [--seeds N]``.

Copies ``run.json`` and the done lines of ``results.jsonl`` into ``src/mercer_papers/recorded/NAME``, without
curves and arrays, which the verdicts and tables do not read. Nothing else is changed. Of a run that was stopped, name
the entries and the number of seeds that are complete: the command beside it asks for whole seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "src" / "mercer_papers" / "recorded"


def main(run: Path, name: str, entries: list[str], seeds: int | None) -> None:
    """Write the two files."""
    folder = RECORDED / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line["status"] == "done" and (not entries or line["entry"] in entries)]
    kept = [line for line in kept if seeds is None or line["seed"] < seeds]
    latest = {line["key"]: {**line, "curves": {}, "arrays": {}} for line in kept}
    text = "".join(json.dumps(line) + "\n" for line in latest.values())
    (folder / "results.jsonl").write_text(text, encoding="utf-8")
    (folder / "run.json").write_text((run / "run.json").read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("entries", nargs="*")
    parser.add_argument("--seeds", type=int)
    given = parser.parse_args()
    main(given.run, given.name, given.entries, given.seeds)
