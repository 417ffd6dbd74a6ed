"""One training as the paper sets it up, and the search over a method's settings."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.metrics import accuracy
from mercer.optim.kernel_sgd import state_bytes

from ..data import CifarResNet
from .optimizers import KERNEL_SGD, Choice, advance, make, tries
from .sets import Rows, bag_of_words, rows_of

_TOLERANCE, _PATIENCE = 1e-4, 3  # the paper's: |change of loss| < 1e-4 in 3 epochs running
_OVERLAP = 0.2  # share of a batch of R-L-BFGS that the next one has too (Berahas et al. 2016, Section 4)


@dataclass(frozen=True)
class Plan:
    """One training to be searched: the whole input of `search`, by the names of a cell's settings."""

    data: str
    rows: int | None
    test_rows: int | None
    epochs: int
    tries: int
    method: str = KERNEL_SGD
    matrix: str = "RBF"
    layers: str = "last"
    batch: int = 64
    network: str = ""
    words: int = 0
    length: int = 0
    vectors: str = "learned"
    augment: bool = False
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Run:
    """The best of a method's tries, by validation accuracy.

    Attributes:
        seconds: Training time of that try: CPU seconds, which other work on the machine does not lengthen; on a GPU
            seconds of the clock.
        state_mb: Memory of the optimizer's state in MiB; of Kernel SGD the cached inverses.
        losses: Mean training loss by epoch.
        validation: Validation accuracy by epoch, in percent.
    """

    choice: Choice
    train: float
    test: float
    seconds: float
    state_mb: float
    losses: tuple[float, ...]
    validation: tuple[float, ...]
    tried: int
    diverged: int

    def note(self) -> str:
        """The chosen rate, and of how many tries it is the best."""
        second = f", second setting {self.choice.other:g}" if self.choice.other else ""
        lost = f"; {self.diverged} diverged" if self.diverged else ""
        return f"lr {self.choice.lr:.3g}{second}, the best of {self.tried} tries{lost}."


@functools.lru_cache(maxsize=4096)
def search(plan: Plan) -> Run:
    """Train with each of the method's settings; the best on the validation rows.

    The tables and figures of one run share these trainings, so a later cell may take no time.

    Raises:
        FloatingPointError: Every try diverged.
    """
    # every try on the same rows; one that diverges is left out
    runs: list[Run] = []
    choices = tries(plan.method, plan.matrix, plan.tries)
    sizes = (plan.rows, plan.test_rows, plan.words, plan.length)
    rows = rows_of(plan.data, *sizes, plan.vectors).to(plan.device)
    for choice in choices:
        with contextlib.suppress(FloatingPointError):
            runs.append(_train(plan, choice, rows))
    if not runs:
        raise FloatingPointError(f"the loss became NaN with every one of {len(choices)} settings of {plan.method}")
    best = max(runs, key=lambda run: max(run.validation))
    return replace(best, tried=len(choices), diverged=len(choices) - len(runs))


def _train(plan: Plan, choice: Choice, rows: Rows) -> Run:
    """Train once, as Section 4.1 has it; the model with the best validation accuracy is scored."""
    # the network, the optimizer and the fixed batches
    model = make_network(rows.kind, rows.x, rows.classes, rows.words, plan.network, plan.seed, rows.vectors)
    model.to(plan.device)
    inputs = functools.partial(bag_of_words, rows.words) if rows.kind == "text" else None
    optimizer = make(plan.method, choice, model, matrix=plan.matrix, layers=plan.layers, inputs=inputs)
    generator = torch.Generator().manual_seed(plan.seed)
    order = torch.randperm(len(rows.x), generator=generator)  # fixed: H^-1 is kept for each batch

    def loss(batch: Tensor) -> Tensor:
        x = rows.x[batch]
        if plan.augment:
            x = mirror_some(x, generator)
        return F.cross_entropy(model(x), rows.y[batch])

    # the epochs, each ended by a look at the validation rows
    losses: list[float] = []
    validation: list[float] = []
    best: dict[str, Tensor] = {}
    clock = time.process_time if plan.device == "cpu" else time.perf_counter
    start = clock()
    for _ in range(plan.epochs):
        # batches in a new order each epoch; those of R-L-BFGS share a fifth of their rows with the next
        if plan.method == "R-L-BFGS":
            batches: Iterable[tuple[Tensor, Tensor | None]] = overlapping(
                order[torch.randperm(len(order), generator=generator)], plan.batch
            )
        else:
            parts = order.split(plan.batch)
            batches = [(parts[i], None) for i in torch.randperm(len(parts), generator=generator).tolist()]
        model.train()
        total, count = 0.0, 0
        for batch, shared in batches:
            overlap = None if shared is None else functools.partial(loss, shared)
            value = advance(plan.method, optimizer, functools.partial(loss, batch), overlap=overlap)
            if not math.isfinite(value):
                raise FloatingPointError("loss became NaN")
            total += value * len(batch)
            count += len(batch)
        losses.append(total / count)
        validation.append(_accuracy(model, rows.x_val, rows.y_val))
        if validation[-1] >= max(validation):
            best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        # the paper's end: the loss has hardly changed in three epochs running
        changes = [abs(a - b) for a, b in itertools.pairwise(losses[-_PATIENCE - 1 :])]
        if len(changes) == _PATIENCE and max(changes) < _TOLERANCE:
            break
    # the scores of the best model
    seconds = clock() - start
    state_mb = state_bytes(optimizer) / 2**20
    model.load_state_dict(best)  # the paper's "best model"
    scores = (_accuracy(model, rows.x, rows.y), _accuracy(model, rows.x_test, rows.y_test))
    return Run(choice, *scores, seconds, state_mb, tuple(losses), tuple(validation), 1, 0)


def overlapping(order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of R-L-BFGS, each with the rows that the next one has too."""
    shared = max(1, round(_OVERLAP * size))
    for start in range(0, max(1, len(order) - shared), size - shared):
        batch = order[start : start + size]
        yield batch, batch[-shared:]


def mirror_some(x: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures mirrored by chance: the paper's example of the pre-processing that it leaves out."""
    is_mirrored = torch.rand(len(x), generator=generator).to(x.device) < 0.5
    return torch.where(is_mirrored[:, None, None, None], x.flip(3), x)


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in x.split(512)])
    if not bool(logits.isfinite().all()):
        raise FloatingPointError("logits became NaN")
    return 100 * accuracy(logits, y)


def mlp(d: int, c: int, *, hidden: int = 2) -> nn.Sequential:
    """Hidden layers of 100 with ReLU, and a linear read-out."""
    layers: list[nn.Module] = []
    for width_in in [d, *[100] * (hidden - 1)]:
        layers += [nn.Linear(width_in, 100), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, c))


class Lstm(nn.Module):
    """Word vectors, one LSTM of width 100, the mean of its outputs, a linear read-out.

    The vectors, of 50 numbers, start at random, or at ``vectors`` ``(words, d)``; either way they are trained.
    """

    def __init__(self, words: int, c: int, *, vectors: Tensor | None = None) -> None:
        super().__init__()
        if vectors is None:
            self.embedding = nn.Embedding(words, 50, padding_idx=0)
        else:
            self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=False, padding_idx=0)
        self.lstm = nn.LSTM(self.embedding.embedding_dim, 100, batch_first=True)
        self.linear = nn.Linear(100, c)

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, c)
        """Logits of texts as word numbers, 0 where there is none."""
        outputs, _ = self.lstm(self.embedding(tokens))
        mask = (tokens != 0).to(outputs.dtype)[..., None]
        logits: Tensor = self.linear((outputs * mask).sum(1) / mask.sum(1).clamp(min=1))
        return logits


class _Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        # the weights of the shortcut are drawn in either case
        way = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.way: nn.Module = nn.Identity()
        if stride > 1 or width_in != width:
            self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.way(x))


class ResNet18(nn.Module):
    """ResNet-18 (He et al., 2016) with a 3 x 3 first layer for 32 x 32 pictures; last width 512."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        blocks, width_in = [], 64
        for stage, width in enumerate((64, 128, 256, 512)):
            blocks += [_Block(width_in, width, 2 if stage else 1), _Block(width, width, 1)]
            width_in = width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(512, c)

    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 32, 32) -> (n, c)
        """Logits of pictures."""
        logits: Tensor = self.linear(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


def make_network(
    kind: str, x: Tensor, c: int, words: int, name: str, seed: int, vectors: Tensor | None = None
) -> nn.Module:
    """The network for a kind of data (table, image, text); ``name`` is that of an image network."""
    torch.manual_seed(seed)
    if kind == "table":
        return mlp(x.shape[1], c)
    if kind == "text":
        return Lstm(words, c, vectors=vectors)
    if name == "ResNet-18":
        return ResNet18(c)
    return CifarResNet(8, c, width=8)
