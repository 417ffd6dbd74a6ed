"""The optimizers compared, each with as many tries of its settings as any other."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ... import checks
from ...kernels import RBF, Linear, Polynomial
from ...modules import last_linear
from ...optim import ESGD, FunctionSpaceSGD, KernelSGD, MultiBatchLBFGS, RandomPSD
from ..cells import MissingPackage

__all__ = ["FIRST_ORDER", "KERNELS", "LAST_LAYER", "SECOND_ORDER", "TRIES", "Choice", "advance", "make", "tries"]

SECOND_ORDER = ("ours", "AdaH", "ESGD", "L-BFGS", "R-L-BFGS")
FIRST_ORDER = ("ours", "SGD", "SGD+M")
LAST_LAYER = "SGD, own last-layer rate"  # our control: is it more than a larger rate of the last layer?
FUNCTION_SPACE = "FunctionSpaceSGD"  # ours, where the dimensions fit
KERNELS = ("RBF", "linear", "polynomial", "random PSD")
TRIES = {"smoke": 1, "small": 4, "paper": 16}

_GRID = (1e-1, 1e-2, 1e-3, 1e-4)  # the paper's, for lr and for gamma
_DEGREES = (2, 3, 1)
_MOMENTUM, _HISTORY = 0.9, 10


@dataclass(frozen=True)
class Choice:
    """One try: a rate, and the one other number a method has (gamma, degree, factor of the last layer)."""

    lr: float
    other: float = 0.0


def tries(method: str, kernel: str, scale: str) -> list[Choice]:
    """As many choices for every method; the likeliest first."""
    count = TRIES[scale]
    if method == "ours" and kernel == "RBF":
        return _pairs(_GRID, (1e-2, 1e-1, 1e-3, 1e-4), count)
    if method == "ours" and kernel == "polynomial":
        return _pairs(_GRID, _DEGREES, count)
    if method == LAST_LAYER:
        return _pairs(_GRID, (10.0, 1.0, 0.1, 100.0), count)
    if method == FUNCTION_SPACE:
        return [Choice(lr) for lr in _spread(1.0, 1e-3, count, first=0.3)]
    return [Choice(lr) for lr in _spread(1e-1, 1e-4, count, first=1e-3 if method == "ESGD" else 1e-1)]


def _pairs(rates: Sequence[float], others: Sequence[float], count: int) -> list[Choice]:
    every = [Choice(lr, other) for lr, other in itertools.product(rates, others)]
    every.sort(key=lambda c: rates.index(c.lr) + others.index(c.other))  # the likeliest of both first
    return every[:count]


def _spread(high: float, low: float, count: int, *, first: float) -> list[float]:
    if count == 1:
        return [first]
    return [float(v) for v in torch.logspace(0, 1, count, base=low / high, dtype=torch.float64) * high]


def make(
    method: str,
    choice: Choice,
    model: nn.Module,
    *,
    kernel: str = "RBF",
    layers: str = "last",
    inputs: Callable[[Tensor], Tensor] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of a method's row."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    lr = choice.lr
    if method == "ours":
        gram = _gram(kernel, choice)
        return KernelSGD(parameters, lr, model=model, kernel=gram, layers=layers, inputs=inputs, cache=True)
    if method == LAST_LAYER:
        last = list(last_linear(model)[1].parameters())
        body = [p for p in parameters if all(p is not q for q in last)]
        groups: list[dict[str, Any]] = [{"params": last, "lr": lr * choice.other}]
        return torch.optim.SGD(groups + ([{"params": body}] if body else []), lr)
    if method == "AdaH":
        return _adahessian(parameters, lr)
    simple: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "SGD": lambda: torch.optim.SGD(parameters, lr),
        "SGD+M": lambda: torch.optim.SGD(parameters, lr, momentum=_MOMENTUM),
        "ESGD": lambda: ESGD(parameters, lr),
        "L-BFGS": lambda: torch.optim.LBFGS(parameters, lr, max_iter=1, history_size=_HISTORY),
        "R-L-BFGS": lambda: MultiBatchLBFGS(parameters, lr, history=_HISTORY),
        FUNCTION_SPACE: lambda: FunctionSpaceSGD(parameters, lr, model=model),
    }
    return simple[checks.choice("chen2022", "method", method, simple)]()


def _gram(kernel: str, choice: Choice) -> Callable[[Tensor], Tensor]:
    if kernel == "RBF":
        return RBF(choice.other)
    if kernel == "polynomial":
        return Polynomial(int(choice.other))
    return Linear() if kernel == "linear" else RandomPSD()


def _adahessian(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    try:
        from pytorch_optimizer import AdaHessian
    except ImportError as error:
        fix = "Run pip install mercer[peers]."
        raise MissingPackage(checks.sentence("chen2022", "AdaH needs pytorch-optimizer>=4.1", "none", fix)) from error
    made: torch.optim.Optimizer = AdaHessian(parameters, lr=lr)
    return made


def advance(method: str, optimizer: Any, loss: Callable[[], Tensor], change: Callable[[], None] | None = None) -> float:
    """One step in the way the method needs; the loss before it.

    Args:
        method: The row.
        optimizer: From `make`.
        loss: Evaluates the loss of the batch.
        change: What to do to the gradients before the step.
    """
    seen: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        graph = method == "AdaH" or (method == "ESGD" and optimizer.due)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's, on graphs that gradients hold
            value.backward(create_graph=graph)
        if change is not None:
            change()
        seen.append(float(value.detach()))
        return value

    if method in ("L-BFGS", "R-L-BFGS"):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
    optimizer.zero_grad()  # a gradient with a graph must not outlive the step
    return seen[0]
