"""FunctionSpaceSGD as it comes beside tuned optimizers of torch, on seven kinds of network.

    python -m mercer_papers.bench.studies.optim_networks --seeds 3

Every optimizer trains for the same epochs at a constant rate, batch 64 unless the task says otherwise. The rate of a
rival is the best of four on validation rows (a sixth of the training rows, seed 100); the table has test accuracies.
FunctionSpaceSGD has no rate.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.optim import FunctionSpaceSGD
from mercer.signals.layers import last_linear
from mercer_papers.data import load

Make = Callable[[nn.Module], list[torch.optim.Optimizer]]


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

RATES = {
    "SGD, momentum": (0.01, 0.03, 0.1, 0.3),
    "AdamW": (1e-3, 3e-3, 1e-2, 3e-2),
    "Muon": (3e-3, 1e-2, 3e-2, 0.1),
}


def make_optimizers(who: str, lr: float, model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers that together train a network; Muon leaves vectors, embeddings and the read-out to AdamW."""
    if who == "FunctionSpaceSGD":
        return [FunctionSpaceSGD(model.parameters(), model=model)]
    if who == "SGD, momentum":
        return [torch.optim.SGD(model.parameters(), lr, momentum=0.9)]
    if who == "AdamW":
        return [torch.optim.AdamW(model.parameters(), lr)]
    head = last_linear(model)[1].weight
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    hidden = [p for p in model.parameters() if p.ndim == 2 and all(p is not q for q in (head, *tables))]
    others = [p for p in model.parameters() if all(p is not q for q in hidden)]
    return [torch.optim.Muon(hidden, lr), torch.optim.AdamW(others, 0.1 * lr)]


def train(task: Task, make: Make, seed: int) -> tuple[float, float]:
    """Test accuracy in percent after the task's epochs, and CPU seconds."""
    torch.manual_seed(seed)
    model = task.network()
    optimizers = make(model)
    generator = torch.Generator().manual_seed(seed)
    start = time.process_time()
    for _ in range(task.epochs):
        for rows in torch.randperm(len(task.x), generator=generator).split(task.batch):
            for optimizer in optimizers:
                optimizer.zero_grad()
            F.cross_entropy(model(task.x[rows]), task.y[rows]).backward()
            for optimizer in optimizers:
                optimizer.step()
    seconds = time.process_time() - start
    model.eval()
    with torch.no_grad():
        return 100 * float((model(task.x_test).argmax(1) == task.y_test).double().mean()), seconds


def main() -> None:
    """Print for each task and optimizer the chosen rate, the test accuracies and CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="All by default.")
    parser.add_argument("--only", nargs="*", default=["FunctionSpaceSGD", *RATES], help="Optimizers.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.tasks or TASKS:
        task = replace(TASKS[name](), batch=chosen.batch)
        for who in chosen.only:
            lr = 0.0
            if who in RATES:
                check = task.on_validation()
                trials = {lr: train(check, functools.partial(make_optimizers, who, lr), 100)[0] for lr in RATES[who]}
                lr = max(trials, key=trials.__getitem__)
            results = [train(task, functools.partial(make_optimizers, who, lr), seed) for seed in range(chosen.seeds)]
            scores = ", ".join(f"{score:.1f}" for score, _ in results)
            mean = statistics.mean(score for score, _ in results)
            seconds = statistics.mean(seconds for _, seconds in results)
            rate = f" at {lr:g}" if lr else ""
            print(f"{name:20s} {who + rate:24s} {mean:.1f} ({scores}), {seconds:.1f} CPU s", flush=True)


if __name__ == "__main__":
    main()
