"""Keep a run with the package: ``python tools/record_run.py RUN NAME``.

Copies ``run.json`` and the done lines of ``results.jsonl`` into ``src/mercer/experiments/recorded/NAME``, without
curves and arrays, which the verdicts and tables do not read. Nothing else is changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "src" / "mercer" / "experiments" / "recorded"


def main(run: Path, name: str) -> None:
    """Write the two files."""
    folder = RECORDED / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    latest = {line["key"]: {**line, "curves": {}, "arrays": {}} for line in lines if line["status"] == "done"}
    text = "".join(json.dumps(line) + "\n" for line in latest.values())
    (folder / "results.jsonl").write_text(text, encoding="utf-8")
    (folder / "run.json").write_text((run / "run.json").read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
