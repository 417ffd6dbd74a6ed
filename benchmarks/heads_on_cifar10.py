"""Heads of jayasumana2021 on CIFAR-10 with ResNet-8 at one budget: one JSON line for each head and seed, resumable.

    MERCER_DATA=... OMP_NUM_THREADS=1 python benchmarks/heads_on_cifar10.py --rows 25000 --epochs 15 --seeds 2 \
        --out benchmarks/results/jayasumana2021-cifar10.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from mercer.experiments.jayasumana2021.heads import HEADS, build
from mercer.experiments.jayasumana2021.pictures import accuracy, cifar, fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--heads", nargs="*", default=list(HEADS))
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    x, y, x_test, y_test = cifar("cifar10", asked.rows, 10_000)
    done = set()
    if asked.out.exists():
        done = {_key(json.loads(line)) for line in asked.out.read_text().splitlines()}
    for seed in range(asked.seeds):
        for head in asked.heads:
            budget = {"head": head, "seed": seed, "rows": asked.rows, "epochs": asked.epochs, "lr": asked.lr}
            if _key(budget) in done:
                continue
            torch.manual_seed(seed)
            model = build("ResNet-8", head, 10)
            started = time.process_time()
            generator = torch.Generator().manual_seed(seed)
            losses = fit(model, x, y, epochs=asked.epochs, generator=generator, lr=asked.lr)
            score = accuracy(model, x_test, y_test)
            line = {
                **budget,
                "backbone": "ResNet-8",
                "accuracy": round(score, 2),
                "losses": [round(loss, 4) for loss in losses],
                "cpu_seconds": round(time.process_time() - started),
            }
            with asked.out.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
            print(line, flush=True)


def _key(line: dict[str, object]) -> tuple[object, ...]:
    return tuple(line[name] for name in ("head", "seed", "rows", "epochs", "lr"))


if __name__ == "__main__":
    main()
