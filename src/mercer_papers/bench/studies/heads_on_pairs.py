"""Heads on pairs of sentences, RTE and MRPC: frozen MiniLM embeddings u, v read as (|u - v|, u v).

    MERCER_DATA=... OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.heads_on_pairs [rte mrpc]

About two CPU minutes to embed and one to fit. Rates are chosen on validation rows, other rows score, five seeds
(``mercer_papers.bench.head_fits``); only rows of the training parts are read.
"""

from __future__ import annotations

import statistics
import sys
from functools import cache, partial

import torch

from mercer_papers import data
from mercer_papers.bench.head_fits import HEADS, Rows, encoded, in_parts, scores

SIZES = {"rte": (1490, 400, 600), "mrpc": (2400, 500, 700)}


@cache
def pairs(name: str) -> Rows:
    found, count = data.load(name), sum(SIZES[name])
    u, v = (encoded([found.x_train[i][side] for i in range(count)]) for side in (0, 1))
    z = torch.cat(((u - v).abs(), u * v), 1)
    return Rows(name, in_parts(z, found.y_train[:count], SIZES[name]), 2, 16, 15, 64)


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or SIZES:
        for head in HEADS:
            found = scores(head, partial(pairs, name))
            accuracy, spread = statistics.mean(found.accuracy), statistics.stdev(found.accuracy)
            shown = f"{accuracy:.2f} +- {spread:.2f}  NLL {statistics.mean(found.nll):.3f}"
            shown += f"  ECE {100 * statistics.mean(found.ece):.1f}  rate {found.rate:g}  parameters {found.parameters}"
            print(f"{name:5s} {head:26s} {shown}", flush=True)


if __name__ == "__main__":
    main()
