"""Does FunctionSpaceSGD diverge as it comes? Twenty seeds of eight networks, two short epochs each.

    OMP_NUM_THREADS=1 python -m mercer_papers.bench.studies.optim_divergence [--seeds 20]
    python -m mercer_papers.bench.studies.optim_divergence --show

A run diverges where a loss is not finite, or where the mean loss of its last five batches is above log 10, that of a
guess. Finished runs are appended to src/mercer_papers/bench/results/optim_divergence.jsonl; a second call goes on where
the first one stopped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mercer.optim import FunctionSpaceSGD
from mercer_papers.bench.record import append_row, read_rows
from mercer_papers.bench.studies.optim_networks import Encoder, Recurrent, Task, cnn, mlp
from mercer_papers.data import CifarResNet, load

RESULTS = Path(__file__).parents[1] / "results" / "optim_divergence.jsonl"
ROWS = 1500
EPOCHS = 2

# Name: the data, the shape of a row, the network.
NETWORKS: dict[str, tuple[str, tuple[int, ...], Callable[[], nn.Module]]] = {
    "MLP, digits": ("digits", (64,), lambda: mlp(64, 100, 100, 10)),
    "MLP, usps": ("usps", (256,), lambda: mlp(256, 100, 100, 10)),
    "MLP, mnist": ("mnist", (784,), lambda: mlp(784, 100, 100, 10)),
    "CNN": ("digits", (1, 8, 8), lambda: cnn(8)),
    "ResNet-8": ("digits", (1, 8, 8), lambda: CifarResNet(8, first=nn.Conv2d(1, 8, 3, padding=1, bias=False), width=8)),
    "transformer": ("digits", (8, 8), lambda: Encoder(8, 8)),
    "transformer, mnist": ("mnist", (28, 28), lambda: Encoder(28, 28)),
    "LSTM": ("digits", (8, 8), lambda: Recurrent(8)),
}


def load_task(name: str) -> Task:
    """The first training rows, in the network's shape."""
    source, shape, network = NETWORKS[name]
    data = load(source, rows=None if source == "digits" else (ROWS, 10))
    x, x_test = (part.reshape(len(part), *shape) for part in (data.x_train, data.x_test))
    return Task(network, x[:ROWS], data.y_train[:ROWS], x_test, data.y_test, EPOCHS)


def final_loss(task: Task, seed: int) -> float:
    """Mean loss of the last five batches at the default settings; infinite where a loss or a step is not finite."""
    torch.manual_seed(seed)
    model = task.network()
    optimizer = FunctionSpaceSGD(model.parameters(), model=model)
    losses: list[float] = []
    for _ in range(task.epochs):
        for rows in torch.randperm(len(task.x)).split(task.batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(task.x[rows]), task.y[rows])
            loss.backward()
            try:
                optimizer.step()
            except FloatingPointError:
                return math.inf
            losses.append(float(loss.detach()))
    if not all(map(math.isfinite, losses)):
        return math.inf
    return sum(losses[-5:]) / 5


def show(lines: Iterable[dict[str, Any]]) -> None:
    """Print, for each network, the worst and the mean loss over the seeds and how many runs diverged."""
    lines = list(lines)
    for name in dict.fromkeys(line["network"] for line in lines):
        losses = [float(line["loss"]) for line in lines if line["network"] == name]
        diverged = sum(not loss < math.log(10) for loss in losses)
        mean = sum(losses) / len(losses)
        print(f"{name:20s} diverged {diverged} of {len(losses)}; last loss {mean:.3f}, the worst {max(losses):.3f}")


def main() -> None:
    """Run what is not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--show", action="store_true", help="Print the stored runs and run nothing.")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    stored = {(line["network"], line["seed"]) for line in read_rows(RESULTS)}
    for name in [] if chosen.show else NETWORKS:
        task = load_task(name)
        for seed in range(chosen.seeds):
            if (name, seed) not in stored:
                loss = final_loss(task, seed)
                append_row(RESULTS, {"network": name, "seed": seed, "loss": str(loss) if math.isinf(loss) else loss})
    show(read_rows(RESULTS))


if __name__ == "__main__":
    main()
