"""One training as the paper sets it up, and the search over a method's settings."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...metrics import accuracy
from ...optim import state_bytes
from .methods import Choice, advance, make, tries
from .networks import make_network
from .setting import SIZES, Rows, bag_of_words, rows_of

__all__ = ["Plan", "Run", "searched"]

_TOLERANCE, _PATIENCE = 1e-4, 3  # the paper's: |change of loss| < 1e-4 in 3 epochs running


@dataclass(frozen=True)
class Plan:
    """What is trained: the whole input of `searched`."""

    data: str
    method: str
    scale: str
    seed: int = 0
    batch: int = 64
    kernel: str = "RBF"
    layers: str = "last"


@dataclass(frozen=True)
class Run:
    """The best of a method's tries, by validation accuracy.

    Attributes:
        seconds: Of that try's training.
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
        """What was chosen, of how many tries."""
        other = f", second setting {self.choice.other:g}" if self.choice.other else ""
        lost = f"; {self.diverged} diverged" if self.diverged else ""
        return f"lr {self.choice.lr:g}{other}, the best of {self.tried} tries{lost}."


@functools.lru_cache(maxsize=256)
def searched(plan: Plan) -> Run:
    """Train with each of the method's settings; the best on the validation rows.

    The tables and figures of one run share these trainings, so a later cell may take no time.

    Raises:
        FloatingPointError: Every try diverged.
    """
    runs: list[Run] = []
    choices = tries(plan.method, plan.kernel, plan.scale)
    for choice in choices:
        with contextlib.suppress(FloatingPointError):
            runs.append(_train(plan, choice, rows_of(plan.data, plan.scale)))
    if not runs:
        raise FloatingPointError(f"the loss became NaN with every one of {len(choices)} settings of {plan.method}")
    best = max(runs, key=lambda run: max(run.validation))
    found = {**vars(best), "tried": len(choices), "diverged": len(choices) - len(runs)}
    return Run(**found)


def _train(plan: Plan, choice: Choice, rows: Rows) -> Run:
    model = make_network(rows.kind, rows.x, rows.classes, rows.words, plan.scale, plan.seed)
    inputs = bag_of_words if rows.kind == "text" else None
    optimizer = make(plan.method, choice, model, kernel=plan.kernel, layers=plan.layers, inputs=inputs)
    generator = torch.Generator().manual_seed(plan.seed)
    batches = torch.randperm(len(rows.x), generator=generator).split(plan.batch)  # fixed: H^-1 is kept for each
    losses: list[float] = []
    validation: list[float] = []
    best: dict[str, Tensor] = {}
    began = time.perf_counter()
    for _ in range(SIZES[plan.scale][rows.kind].epochs):
        order = torch.randperm(len(batches), generator=generator).tolist()
        losses.append(_epoch(plan.method, model, optimizer, rows, [batches[i] for i in order]))
        validation.append(_accuracy(model, rows.x_val, rows.y_val))
        if validation[-1] >= max(validation):
            best = {name: value.clone() for name, value in model.state_dict().items()}
        if _settled(losses):
            break
    seconds = time.perf_counter() - began
    held = state_bytes(optimizer) / 2**20
    model.load_state_dict(best)  # the paper's "best model"
    scores = (_accuracy(model, rows.x, rows.y), _accuracy(model, rows.x_test, rows.y_test))
    return Run(choice, *scores, seconds, held, tuple(losses), tuple(validation), 1, 0)


def _epoch(method: str, model: nn.Module, optimizer: Any, rows: Rows, batches: list[Tensor]) -> float:
    model.train()
    total = 0.0
    for batch in batches:
        x, y = rows.x[batch], rows.y[batch]
        value = advance(method, optimizer, lambda x=x, y=y: F.cross_entropy(model(x), y))  # type: ignore[misc]
        if not math.isfinite(value):
            raise FloatingPointError("loss became NaN")
        total += value * len(batch)
    return total / len(rows.x)


def _settled(losses: list[float]) -> bool:
    recent = losses[-_PATIENCE - 1 :]
    changes = [abs(a - b) for a, b in itertools.pairwise(recent)]
    return len(changes) == _PATIENCE and max(changes) < _TOLERANCE


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in x.split(512)])
    if not bool(logits.isfinite().all()):
        raise FloatingPointError("logits became NaN")
    return 100 * accuracy(logits, y)
