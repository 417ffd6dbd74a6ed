"""Find the rate at which each optimizer is fastest to its target.

    python -m mercer_papers.bench.studies.optim_rates

The target is that of ``mercer bench optim``, on a sixth of the training rows that is held out; one seed. The results
stand in ``RATES`` of mercer_papers.bench.optim.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace

import torch

from mercer_papers.bench.optim import RATES, TASKS, Task, reach

FACTOR = 2.0
SEED = 100  # none of the seeds that the bench scores


def epochs(task: Task, who: str, lr: float, limit: float) -> float:
    """Epochs to the target, infinite where it was not reached in so many."""
    if limit < math.inf:
        task = replace(task, most=min(task.most, math.ceil(limit)))
    start = time.process_time()
    try:
        count = reach(task, who, lr, SEED)
    except (FloatingPointError, RuntimeError) as error:
        print(f"  {who} at {lr:g}: {error}", flush=True)
        return math.inf
    seconds = time.process_time() - start
    print(f"  {who} at {lr:g}: {count:.2f} epochs, {seconds:.1f} CPU s", flush=True)
    if count > task.most:
        return math.inf
    return count


def best_rate(task: Task, who: str, start: float) -> tuple[float, float]:
    """Walk down and up from the start while it gets faster."""
    best, fewest = start, epochs(task, who, start, math.inf)
    for by in (1 / FACTOR, FACTOR):
        lr = best * by
        while (count := epochs(task, who, lr, fewest)) < fewest:
            best, fewest, lr = lr, count, lr * by
    return best, fewest


def main() -> None:
    """Print the best rate of each optimizer on each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=["digits", "mnist 128", "mnist 1024", "CNN"], metavar="TASK")
    parser.add_argument("--only", nargs="*", default=None, help="Optimizers, all by default.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.tasks:
        task = TASKS[name]().on_validation()
        for who, start in RATES[name].items():
            if arguments.only is None or who in arguments.only:
                lr, fewest = best_rate(task, who, start)
                print(f"{name}, {who}: {lr:g}, {fewest:.2f} epochs", flush=True)


if __name__ == "__main__":
    main()
