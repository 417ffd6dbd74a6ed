"""Rewrite the stored numbers: ``python -m tests.golden.record [CASE ...]``; ``--compare`` only prints what moved.

No test calls this. A case keeps its tolerances and their reason, which are written by hand; a new one starts at 1e-6.
"""

import json
import sys
import time
from pathlib import Path

import torch

from .cases import CASES

VALUES = Path(__file__).parent / "values"


def stored(name: str) -> dict:
    """What is on disk: ``rtol``, ``atol``, maybe ``why``, and ``values``, a list for each output."""
    path = VALUES / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"rtol": 1e-6, "atol": 1e-8, "values": {}}


def moved(known: dict, values: dict[str, list[float]]) -> tuple[float, list[str]]:
    """The largest difference in tolerances, and a line for each output that moved by more than one."""
    lines, worst = [], 0.0
    for output in sorted(known["values"].keys() | values.keys()):
        old, new = known["values"].get(output), values.get(output)
        if old is None or new is None or len(old) != len(new):
            lines.append(f"{output}: {old} -> {new}")
            worst = float("inf")
            continue
        differences = {
            i: abs(b - a) / (known["atol"] + known["rtol"] * abs(a))
            for i, (a, b) in enumerate(zip(old, new, strict=True))
        }
        differences = {i: d if d == d else float("inf") for i, d in differences.items()}  # a NaN is no agreement
        i = max(differences, key=differences.__getitem__)
        worst = max(worst, differences[i])
        if differences[i] > 1:
            count = sum(d > 1 for d in differences.values())
            lines.append(
                f"{output}[{i}]: {old[i]:.10g} -> {new[i]:.10g}, {differences[i]:.3g} tolerances; "
                f"{count} of {len(old)} numbers moved"
            )
    return worst, lines


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    compare = "--compare" in arguments
    names = [argument for argument in arguments if argument != "--compare"] or list(CASES)
    for name in names:
        start = time.process_time()
        values = CASES[name]()
        seconds = time.process_time() - start
        known = stored(name)
        worst, lines = moved(known, values)
        print(f"{name}: {seconds:.1f} s, {worst:.2g} tolerances", *lines, sep="\n    ")  # noqa: T201
        if not compare:
            write(name, known | {"values": values})


def write(name: str, known: dict) -> None:
    """One line an output, ten significant digits."""
    rows = [
        f"  {json.dumps(output)}: [{', '.join(f'{value:.10g}' for value in row)}]"
        for output, row in known["values"].items()
    ]
    lines = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in known.items() if key != "values"]
    text = "{\n" + "".join(lines) + ' "values": {\n' + ",\n".join(rows) + "\n }\n}\n"
    (VALUES / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
