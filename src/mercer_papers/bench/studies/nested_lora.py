"""Compare NestedLoRA with Algorithm 1 of deng2022 and with our default, on classic kernels.

    python -m mercer_papers.bench.studies.nested_lora
    python -m mercer_papers.bench.studies.nested_lora --show

The same networks, steps and batches; Adam with the same schedule, and for NestedLoRA the training of its authors' code
beside it. Each method's rate is the best on a draw of rows that is not scored, by the error of the functions: of four
rates, and of one more at a time while the best is the lowest or the highest tried. Three seeds of rows and weights are
scored. The exact answer is that of the dense solver. Finished runs are appended to
src/mercer_papers/bench/results/nested_lora.jsonl, and a second call goes on where the first one stopped; ``--show``
prints the table of the stored lines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mercer.features import NeuralEigenfunctions
from mercer.kernels import RBF, Kernel, Polynomial
from mercer_papers.rivals import NestedLoRA

RESULTS = Path(__file__).parents[1] / "results" / "nested_lora.jsonl"
ROWS, K = 1024, 5
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
FIRST = RATES[4:8]  # those that every method tries
TUNING, SEEDS = 100, (0, 1, 2)
TASKS: dict[str, tuple[Kernel, int]] = {  # a kernel, and the width of rows that are uniform in [-2, 2]
    "RBF, 1 column": (RBF(0.5), 1),
    "polynomial, 1 column": (Polynomial(4, 0.25, 1.5), 1),
    "RBF, 2 columns": (RBF(0.5), 2),
}
METHODS: dict[str, Callable[..., Any]] = {
    "Algorithm 1": partial(NeuralEigenfunctions, method="neuralef", ritz=False),
    "Algorithm 1, exact deflation": partial(NeuralEigenfunctions, method="neuralef", ritz=False, deflation="cholesky"),
    "NestedLoRA, sequential": partial(NestedLoRA, nesting="sequential"),
    "NestedLoRA, joint": partial(NestedLoRA, nesting="joint"),
    "NestedLoRA, sequential, authors' training": partial(NestedLoRA, nesting="sequential", recipe="authors"),
    "NestedLoRA, joint, authors' training": partial(NestedLoRA, nesting="joint", recipe="authors"),
    "our default": NeuralEigenfunctions,
}


def measure(task: str, method: str, lr: float | None, seed: int, steps: int) -> dict[str, Any]:
    """Errors of one fit: eigenvalues relative to the largest, and the mean squared sine to the exact eigenvectors."""
    kernel, d = TASKS[task]
    x = 4 * torch.rand(ROWS, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 2
    values, vectors = torch.linalg.eigh(kernel(x) / ROWS)
    values, vectors = values.flip(0)[:K], vectors.flip(1)[:, :K]
    rank = int((values > 1e-9 * values[0]).sum())  # a polynomial of degree 4 in one column has five

    start = time.process_time()
    arguments = {} if lr is None else {"steps": steps, "lr": lr}
    try:
        model = METHODS[method](kernel, rank, generator=seed, **arguments).fit(x)
    except FloatingPointError:
        return {"task": task, "method": method, "lr": lr, "seed": seed, "functions": 1.0, "values": 1.0, "cpu": None}
    seconds = time.process_time() - start
    psi: Tensor = torch.nn.functional.normalize(model.eigenfunctions(x), dim=0)
    cosines = (psi * vectors[:, :rank]).sum(0)
    off = (model.eigenvalues - values[:rank]).abs() / values[0]
    return {
        "task": task, "method": method, "lr": lr, "seed": seed, "functions": float((1 - cosines.square()).mean()),
        "values": float(off.mean()), "cpu": round(seconds, 2),
    }  # fmt: skip


def choose_rate(run: Callable[[float], dict[str, Any]]) -> float:
    """The rate whose run has the least error, inside the rates that were tried wherever the ladder allows."""
    low, high = RATES.index(FIRST[0]), RATES.index(FIRST[-1])
    while True:
        best = min(range(low, high + 1), key=lambda place: float(run(RATES[place])["functions"]))
        if best == low and low > 0:
            low -= 1
        elif best == high and high < len(RATES) - 1:
            high += 1
        else:
            return RATES[best]


def show(lines: list[dict[str, Any]]) -> None:
    """Print the mean of the scored seeds, with their standard deviation."""
    print(f"{'task':22} {'method':42} {'rate':>7} {'functions':>17} {'eigenvalues':>17} {'CPU s':>6}")
    for task in TASKS:
        for method in METHODS:
            scored = [line for line in lines if (line["task"], line["method"]) == (task, method)]
            scored = [line for line in scored if line["seed"] in SEEDS]
            if len(scored) < len(SEEDS):
                continue
            errors = ([line[name] for line in scored] for name in ("functions", "values"))
            cells = [f"{statistics.mean(e):.1e} ± {statistics.stdev(e):.0e}" for e in errors]
            rate = "" if scored[0]["lr"] is None else f"{scored[0]['lr']:g}"
            seconds = [line["cpu"] for line in scored if line["cpu"] is not None]
            cost = f"{statistics.mean(seconds):.1f}" if seconds else "NaN"
            print(f"{task:22} {method:42} {rate:>7} {cells[0]:>17} {cells[1]:>17} {cost:>6}")


def main() -> None:
    """Tune each method on one draw, score it on three others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--show", action="store_true", help="Train nothing.")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = (
        [json.loads(text) for text in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    )

    def run(task: str, method: str, seed: int, lr: float | None) -> dict[str, Any]:
        for line in lines:
            if (line["task"], line["method"], line["lr"], line["seed"]) == (task, method, lr, seed):
                return line
        line = measure(task, method, lr, seed, chosen.steps)
        lines.append(line)
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line

    for task in [] if chosen.show else chosen.tasks:
        for method in chosen.methods:
            rate = None
            if method != "our default":
                rate = choose_rate(partial(run, task, method, TUNING))
            for seed in SEEDS:
                run(task, method, seed, rate)
            # A scored run of a rate that was the best before more were tried.
            lines[:] = [
                line
                for line in lines
                if (line["task"], line["method"]) != (task, method) or line["seed"] == TUNING or line["lr"] == rate
            ]
    if not chosen.show:
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    show(lines)


if __name__ == "__main__":
    main()
