"""FunctionSpaceSGD as it comes beside tuned optimizers, on seven kinds of network.

    python -m mercer_papers.bench.studies.optim_networks --seeds 3
    python -m mercer_papers.bench.studies.optim_networks --show

Every optimizer trains for the same epochs, batch 64. A rival has its usual schedule (5 % warm-up, then linear decay
to 0; schedule-free AdamW the warm-up alone) and the best of at least four rates on validation rows (a sixth of the
training rows, seed 100): where the best is the least or the largest, the next one is tried, too. FunctionSpaceSGD has
no rate and no schedule; "FunctionSpaceSGD, decay" has the rivals' schedule. The table has test accuracies, and CPU
seconds until the accuracy is within a point of the best rival's last one: steps to there (looked up three times an
epoch) times the CPU time of a step (the least of several rounds in which all optimizers take turns).

Finished runs are appended to src/mercer_papers/bench/results/optim_networks.jsonl, and a second call goes on where the
first one stopped; ``--show`` prints the table of the stored lines. SOAP and schedule-free AdamW need
``pytorch-optimizer`` and ``schedulefree``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.optim import FunctionSpaceSGD
from mercer.signals.layers import last_linear
from mercer_papers.bench.record import append_row, read_rows
from mercer_papers.data import load

RESULTS = Path(__file__).parents[1] / "results" / "optim_networks.jsonl"
LOOKS = 3  # looks at the test rows in an epoch
TIMED = 60  # steps of a round
WARM_UP = 0.05  # share of the steps

Line = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A network, its rows and the epochs it is trained for."""

    network: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    epochs: int
    batch: int = 64

    def on_validation(self) -> Task:
        """The same with a sixth of the training rows in place of the test rows."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))
        check, train = order.split([len(order) // 6, len(order) - len(order) // 6])
        return replace(self, x=self.x[train], y=self.y[train], x_test=self.x[check], y_test=self.y[check])


class Encoder(nn.Module):
    """A ``nn.TransformerEncoder`` of two blocks; tokens are vectors, or numbers of an embedding's rows."""

    def __init__(self, length: int, width_in: int, *, words: int = 0, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0) if words else nn.Linear(width_in, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.blocks(self.embed(x) + self.places).mean(1))
        return logits


class Recurrent(nn.Module):
    """An LSTM over the rows of a picture, read out at the last one."""

    def __init__(self, width_in: int, width: int = 64) -> None:
        super().__init__()
        self.cells = nn.LSTM(width_in, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.cells(x)[0][:, -1])
        return logits


def mlp(*widths: int) -> nn.Module:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for width_in, width in itertools.pairwise(widths[1:]):
        layers += [nn.ReLU(), nn.Linear(width_in, width)]
    return nn.Sequential(*layers)


def cnn(side: int) -> nn.Module:
    """Two convolutions and a hidden layer."""
    body = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    body += [nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(side * side, 64), nn.ReLU(), nn.Linear(64, 10))


def pictures(
    name: str, rows: tuple[int, int] | None, shape: tuple[int, ...], network: Callable[[], nn.Module], epochs: int
) -> Callable[[], Task]:
    """A task of classifying pictures, in this shape."""

    def make() -> Task:
        data = load(name, rows=rows)
        x, x_test = (part.reshape(len(part), *shape) for part in (data.x_train, data.x_test))
        return Task(network, x, data.y_train, x_test, data.y_test, epochs)

    return make


def words(rows: int, length: int, count: int, epochs: int) -> Callable[[], Task]:
    """Sentences of SST-2 as numbers of their words, the most frequent ones; two classes."""

    def make() -> Task:
        data = load("sst2", rows=(rows, 800))
        texts = [text.lower().split() for text in data.x_train]
        frequent = Counter(word for text in texts for word in text).most_common(count)
        numbers = {word: i + 1 for i, (word, _) in enumerate(frequent)}

        def tokens(sentences: list[list[str]]) -> Tensor:  # (n, length); 0 is the end, or a rare word
            lists = [[numbers.get(word, 0) for word in sentence][:length] for sentence in sentences]
            return torch.tensor([row + [0] * (length - len(row)) for row in lists])

        x, x_test = tokens(texts), tokens([text.lower().split() for text in data.x_test])
        network = functools.partial(Encoder, length, 0, words=count + 1, classes=2)
        return Task(network, x, data.y_train, x_test, data.y_test, epochs)

    return make


TASKS: dict[str, Callable[[], Task]] = {
    "MLP, digits": pictures("digits", None, (64,), lambda: mlp(64, 100, 100, 10), 4),
    "MLP, mnist": pictures("mnist", (4000, 2000), (784,), lambda: mlp(784, 128, 64, 10), 4),
    "CNN, usps": pictures("usps", (3000, 2000), (1, 16, 16), lambda: cnn(16), 3),
    "transformer, digits": pictures("digits", None, (8, 8), lambda: Encoder(8, 8), 8),
    "transformer, mnist": pictures("mnist", (3000, 2000), (28, 28), lambda: Encoder(28, 28), 4),
    "transformer, words": words(3000, 16, 2000, 4),
    "LSTM, mnist": pictures("mnist", (3000, 2000), (28, 28), lambda: Recurrent(28), 4),
}

RATES = {  # each a third of the next, about
    "SGD, momentum": (0.01, 0.03, 0.1, 0.3),
    "AdamW": (1e-3, 3e-3, 1e-2, 3e-2),
    "Muon": (3e-3, 1e-2, 3e-2, 0.1),
    "SOAP": (1e-3, 3e-3, 1e-2, 3e-2),
    "schedule-free": (1e-3, 3e-3, 1e-2, 3e-2),
}
OURS = ("FunctionSpaceSGD", "FunctionSpaceSGD, decay")


def make_optimizers(who: str, lr: float, model: nn.Module, steps: int) -> list[torch.optim.Optimizer]:
    """The optimizers that together train a network; Muon leaves vectors, embeddings and the read-out to AdamW."""
    if who in OURS:
        return [FunctionSpaceSGD(model.parameters(), model=model)]
    if who == "SGD, momentum":
        return [torch.optim.SGD(model.parameters(), lr, momentum=0.9)]
    if who == "AdamW":
        return [torch.optim.AdamW(model.parameters(), lr)]
    if who == "SOAP":
        from pytorch_optimizer import SOAP

        return [SOAP(model.parameters(), lr=lr)]
    if who == "schedule-free":
        from schedulefree import AdamWScheduleFree

        return [AdamWScheduleFree(model.parameters(), lr=lr, warmup_steps=math.ceil(WARM_UP * steps))]
    head = last_linear(model)[1].weight
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    hidden = [p for p in model.parameters() if p.ndim == 2 and all(p is not q for q in (head, *tables))]
    others = [p for p in model.parameters() if all(p is not q for q in hidden)]
    return [torch.optim.Muon(hidden, lr), torch.optim.AdamW(others, 0.1 * lr)]


def accuracy(model: nn.Module, optimizers: Sequence[Any], task: Task) -> float:
    """Test accuracy in percent; schedule-free optimizers put their mean into the parameters meanwhile."""
    averaging = [optimizer for optimizer in optimizers if hasattr(optimizer, "eval")]
    for each in (model, *averaging):
        each.eval()
    with torch.no_grad():
        score = 100 * float((model(task.x_test).argmax(1) == task.y_test).double().mean())
    for each in (model, *averaging):
        each.train()
    return score


def train(task: Task, who: str, lr: float = 0.0, seed: int = 0, *, looks: int = 0, most: int | None = None) -> Line:
    """A run: ``steps`` and the ``accuracy`` there, the last after the task's epochs; CPU ``seconds`` of the steps.

    Args:
        task: What is learned.
        who: Name of the optimizer.
        lr: Its rate, where it has one.
        seed: Of the start and the order of rows.
        looks: Accuracies in an epoch, beside the last.
        most: End after so many steps, with no accuracy.
    """
    torch.manual_seed(seed)
    model = task.network()
    batches = math.ceil(len(task.x) / task.batch)
    steps = task.epochs * batches
    optimizers: list[Any] = make_optimizers(who, lr, model, steps)
    if who not in ("FunctionSpaceSGD", "schedule-free"):
        warm = max(1, math.ceil(WARM_UP * steps))

        def share(step: int) -> float:
            return min((step + 1) / warm, (steps - step) / (steps - warm))

        schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, share) for optimizer in optimizers]
    else:
        schedules = []
    for optimizer in optimizers:
        if hasattr(optimizer, "train"):
            optimizer.train()
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(len(task.x), generator=generator) for _ in range(task.epochs)])
    epochs = [part.split(task.batch) for part in order.split(len(task.x))]
    line: Line = {"steps": [], "accuracy": []}
    seconds = 0.0
    for step, rows in enumerate(itertools.islice(itertools.chain(*epochs), most), 1):
        start = time.process_time()
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(task.x[rows]), task.y[rows]).backward()
        for each in (*optimizers, *schedules):
            each.step()
        seconds += time.process_time() - start
        if step == steps or (looks and step * looks // batches > (step - 1) * looks // batches):
            line["steps"].append(step)
            line["accuracy"].append(round(accuracy(model, optimizers, task), 2))
    return {**line, "seconds": seconds}


def choose_rate(task: Task, who: str) -> tuple[float, dict[str, float]]:
    """The rate with the best accuracy on validation rows, and all accuracies; no end of the rates is the best."""
    check = task.on_validation()
    rates, scores = list(RATES[who]), {}
    while True:
        for lr in rates:
            if lr not in scores:
                try:
                    scores[lr] = train(check, who, lr, 100)["accuracy"][-1]
                except (RuntimeError, FloatingPointError):  # a run that is no longer finite
                    scores[lr] = 0.0
        best = max(scores, key=scores.__getitem__)
        if best == max(scores):
            rates.append(3 * best)
        elif best == min(scores):
            rates.append(best / 3)
        else:
            return best, {f"{lr:g}": score for lr, score in sorted(scores.items())}


def show(lines: Sequence[Line]) -> None:
    """Print for each task and optimizer the rate, test accuracies, the cost of a step and CPU seconds to the target."""
    for task in dict.fromkeys(line["task"] for line in lines):
        runs: dict[str, list[Line]] = {}
        costs: dict[str, float] = {}
        for line in lines:
            if line["task"] == task and "who" in line:
                runs.setdefault(line["who"], []).append(line)
            elif line["task"] == task:
                costs |= line["costs"]
        finals = {who: statistics.mean(run["accuracy"][-1] for run in each) for who, each in runs.items()}
        target = max([final for who, final in finals.items() if who not in OURS], default=math.inf) - 1
        print(f"{task}: CPU seconds to {target:.1f} %")
        for who, each in runs.items():
            scores = ", ".join(f"{run['accuracy'][-1]:.1f}" for run in each)
            counts = []
            for run in each:
                reached = [s for s, score in zip(run["steps"], run["accuracy"], strict=True) if score >= target]
                counts.append(min(reached, default=math.inf))
            cost = costs.get(who, math.nan)
            name = who if who in OURS else f"{who} at {each[0]['lr']:g}"
            times = f"{1000 * cost:6.2f} ms a step, {cost / costs.get('SGD, momentum', math.nan):.2f} of SGD's"
            print(f"  {name:24s} {finals[who]:.1f} ({scores}); {times}; {statistics.mean(counts) * cost:.2f} CPU s")


def main() -> None:
    """Train what is not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="All by default.")
    parser.add_argument("--only", nargs="*", default=[*OURS, *RATES], help="Optimizers.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="Measure the cost of steps in so many rounds, too.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="Train nothing.")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    lines = read_rows(chosen.results)
    for name in [] if chosen.show else chosen.tasks or TASKS:
        task = TASKS[name]()
        for who in chosen.only:
            stored = {line["seed"]: line for line in lines if (line["task"], line.get("who")) == (name, who)}
            missing = [seed for seed in range(chosen.seeds) if seed not in stored]
            choice: Line = {}
            if missing and who in RATES:
                line = next(iter(stored.values()), None)
                lr, scores = (line["lr"], line["validation"]) if line else choose_rate(task, who)
                choice = {"lr": lr, "validation": scores}
            for seed in missing:
                line = {"task": name, "who": who, "seed": seed, **choice}
                line |= train(task, who, choice.get("lr", 0.0), seed, looks=LOOKS)
                append_row(chosen.results, line)
                lines.append(line)
        # All take turns, so that other work on the machine hits all alike; the least of the rounds counts.
        costs = dict.fromkeys(chosen.only, math.inf)
        for _ in range(chosen.rounds):
            for who in costs:
                costs[who] = min(costs[who], train(task, who, 1e-3, most=TIMED)["seconds"] / TIMED)
        if chosen.rounds:
            append_row(chosen.results, {"task": name, "costs": costs})
            lines.append({"task": name, "costs": costs})
        show([line for line in lines if line["task"] == name])
    if chosen.show:
        show([line for line in lines if not chosen.tasks or line["task"] in chosen.tasks])


if __name__ == "__main__":
    main()
