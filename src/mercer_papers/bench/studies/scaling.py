"""The tables of docs/scaling.md, from the growth that was measured.

python -m mercer_papers.bench.studies.scaling            # print them
python -m mercer_papers.bench.studies.scaling --write    # put them into docs/scaling.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from mercer_papers.bench.cost_model import estimate
from mercer_papers.cli.estimate import duration, volume

PAGE = Path(__file__).parents[4] / "docs" / "scaling.md"
BEGIN, END = "<!-- begin: python -m mercer_papers.bench.studies.scaling --write -->", "<!-- end -->"
ROWS = (10**6, 10**8, 10**9)
MACHINE = 64  # ranks of one machine, one for each core
RANKS = (1, MACHINE, 10 * MACHINE)

SUMS = {  # sums over rows: ranks share them
    "random-fourier": {"d": 100, "k": 1000},
    "nystrom": {"d": 100, "k": 1000},
    "neural-eigenfunctions": {"d": 100, "k": 20},
    "eigenpro-sgd": {"d": 1000, "c": 10, "k": 50},
    "laplace-fit": {"d": 256, "c": 10, "k": 20},
    "laplace-predict": {"d": 256, "c": 10, "k": 20},
    "kernel-network-fit": {"d": 100, "c": 10, "k": 6500},
    "kernel-network-predict": {"d": 100, "c": 10, "k": 6500},
}
SQUARES = {  # every row meets every other
    "kernel-matmul": {"d": 100, "c": 1},
    "spectral-analyze": {"d": 100, "c": 1},
    "nngp-ntk": {"d": 100, "k": 4},
}
STEPS = {  # a batch at a time: the rows only set the number of steps
    "kernel-classifier": {"n": 1024, "d": 512, "c": 1000, "k": 1},
    "function-space-sgd": {"n": 1024, "d": 512, "c": 10},
}


def by_rows(methods: dict[str, dict[str, int]]) -> list[str]:
    """CPU time and peak memory of each rank, at each number of rows."""
    lines = ["| method | rows | one core | one machine, 64 ranks | ten machines, 640 ranks |", "|---|---|---|---|---|"]
    for name, size in methods.items():
        sizes = ", ".join(f"{letter} = {value:,}" for letter, value in size.items())
        for n in ROWS:
            costs = estimate(name, n=n, **size, ranks=RANKS).costs
            cells = [f"{duration(cost.seconds)}, {volume(cost.mib)}" for cost in costs]
            lines.append(f"| `{name}`, {sizes} | {power(n)} | " + " | ".join(cells) + " |")
    return lines


def by_steps() -> list[str]:
    """One step, and one pass over the rows on one core and on one machine."""
    heads = " | ".join(f"{power(n)} rows, one machine" for n in ROWS)
    lines = [f"| method | a step, one core | {heads} |", "|---|---|" + "---|" * len(ROWS)]
    for name, size in STEPS.items():
        (cost,) = estimate(name, **size, ranks=(1,)).costs
        cells = [duration(cost.seconds * n / size["n"] / MACHINE) for n in ROWS]
        sizes = ", ".join(f"{letter} = {value:,}" for letter, value in size.items())
        lines.append(f"| `{name}`, {sizes} | {duration(cost.seconds)} | " + " | ".join(cells) + " |")
    return lines


def power(n: int) -> str:
    return f"10^{len(str(n)) - 1}"


def tables() -> str:
    """All of them, between their marks."""
    parts = [
        BEGIN,
        "**Sums over rows**",
        "\n".join(by_rows(SUMS)),
        "**Every row meets every other**",
        "\n".join(by_rows(SQUARES)),
        "**A batch at a time** (one pass over the rows; the ranks' batches are joined)",
        "\n".join(by_steps()),
        END,
    ]
    return "\n\n".join(parts)


def main() -> None:
    text = tables()
    if "--write" not in sys.argv[1:]:
        print(text)
        return
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN)], page[page.index(END) + len(END) :]
    PAGE.write_text(before + text + after)


if __name__ == "__main__":
    main()
