"""Heads that read every place of a map before pooling, beside efficient probing: accuracy, NLL, ECE and CPU seconds.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.heads_before_pooling [cifar100_subset mnist]

Frozen ResNet-20 of CIFAR-10; 1,500 pictures to train, 500 to choose the rate by, 1,000 to score, three seeds. The fits
are those of `mercer bench head`; the lines in src/mercer_papers/bench/results/heads_before_pooling.jsonl are quoted by
docs/which-head.md. CPU seconds are of one fit, everything but the maps, on a machine that others may use.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import torch

from mercer_papers.bench.head_fits import PLACED, picture_maps, rates_of, scores
from mercer_papers.bench.record import append_row

RESULTS = Path(__file__).parents[1] / "results" / "heads_before_pooling.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["cifar100_subset", "mnist"])
    parser.add_argument("--heads", nargs="*", default=list(PLACED), choices=list(PLACED))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.sets:
        rows = partial(picture_maps, name)
        seeds = rows().seeds  # makes the maps, too
        for head in arguments.heads:
            start = time.process_time()
            found = scores(head, rows)
            seconds = (time.process_time() - start) / (len(rates_of(head)) + seeds)
            line = {
                "set": name,
                "head": head,
                "seeds": seeds,
                "accuracy": round(statistics.mean(found.accuracy), 2),
                "deviation": round(statistics.stdev(found.accuracy), 2),
                "nll": round(statistics.mean(found.nll), 3),
                "ece": round(statistics.mean(found.ece), 3),
                "rate": found.rate,
                "parameters": found.parameters,
                "cpu": round(seconds, 2),
            }
            append_row(arguments.results, line)
            print(line, flush=True)


if __name__ == "__main__":
    main()
