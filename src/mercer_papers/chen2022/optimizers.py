"""The optimizers compared, each with as many tries of its settings as any other."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT
from typing_extensions import override

from mercer import checks
from mercer.kernels import RBF, Linear, Polynomial
from mercer.optim import FunctionSpaceSGD, KernelSGD
from mercer.optim.kernel_sgd import RandomPSD
from mercer.signals.layers import last_linear

from ..rivals import ESGD, MultiBatchLBFGS

KERNEL_SGD = "Kernel SGD"
LAST_LAYER = "SGD, own last-layer rate"  # our control: is it more than a larger rate of the last layer?
LARGER_RATES = "SGD, rates up to 1"  # our control: the paper's grid ends at 0.1
FUNCTION_SPACE = "FunctionSpaceSGD"
METHODS = (
    KERNEL_SGD, "AdaH", "ESGD", "L-BFGS", "R-L-BFGS", "SGD", "SGD+M", LARGER_RATES, LAST_LAYER, FUNCTION_SPACE,
)  # fmt: skip

_GRID = (1e-1, 1e-2, 1e-3, 1e-4)  # the paper's, for lr and for gamma
_GAMMAS = (1e-2, 1e-1, 1e-3, 1e-4)
_FACTORS = (10.0, 100.0, 1.0, 1000.0)
_DEGREES = (2, 3, 1)
_MOMENTUM, _HISTORY = 0.9, 10
_MEAN, _SQUARE, _STEP = "mean", "square", "step"  # state of AdaHessian


@dataclass(frozen=True)
class Choice:
    """One try: a rate, and the one other number a method has (gamma, degree, factor of the last layer)."""

    lr: float
    other: float = 0.0


class Rotated:
    r"""A kernel matrix turned at random, :math:`Q H Q^\top`: its spectrum without its eigenvectors.

    Our control of Figure 4: if it trains as well as H, then only the spectrum of H matters.

    Args:
        kernel: k.
    """

    def __init__(self, kernel: Callable[[Tensor], Tensor]) -> None:
        self.kernel = kernel
        self.generator = torch.Generator().manual_seed(0)  # of the orthogonal Q, one for each batch size
        self._turns: dict[int, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:  # (m, d) -> (m, m)
        """The turned matrix of a batch."""
        m = len(x)
        if m not in self._turns:
            gaussian = torch.randn(m, m, generator=self.generator, dtype=torch.float64)
            self._turns[m] = torch.linalg.qr(gaussian).Q
        turn = self._turns[m].to(x)
        return turn @ self.kernel(x).detach() @ turn.mT


def tries(method: str, matrix: str, count: int) -> list[Choice]:
    """The tries of a method, as many for each; the likeliest first."""
    if method == KERNEL_SGD and matrix in ("RBF", "rotated RBF"):
        return _pairs(_GRID, _GAMMAS, count)
    if method == KERNEL_SGD and matrix == "polynomial":
        return _pairs(_GRID, _DEGREES, count)
    if method == LAST_LAYER:
        return _pairs(_GRID, _FACTORS, count)
    # methods of a rate alone: rates even in their logarithm from high to low; of a single try the likeliest
    high, low, likeliest = 1e-1, 1e-4, 1e-1
    if method in (FUNCTION_SPACE, LARGER_RATES):
        high, low, likeliest = 1.0, 1e-3, 1.0
    if method == FUNCTION_SPACE:
        likeliest = 0.3
    elif method == "ESGD":
        likeliest = 1e-3
    if count == 1:
        return [Choice(likeliest)]
    return [Choice(float(v) * high) for v in torch.logspace(0, 1, count, base=low / high, dtype=torch.float64)]


def _pairs(rates: Sequence[float], others: Sequence[float], count: int) -> list[Choice]:
    every = [Choice(lr, other) for lr, other in itertools.product(rates, others)]
    every.sort(key=lambda c: rates.index(c.lr) + others.index(c.other))  # the likeliest of both first
    return every[:count]


def make(
    method: str,
    choice: Choice,
    model: nn.Module,
    *,
    matrix: str = "RBF",
    layers: str = "last",
    inputs: Callable[[Tensor], Tensor] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of a method."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    lr = choice.lr
    if method == KERNEL_SGD:
        # its matrix: a kernel of the inputs, or one without any
        matrices: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
            "RBF": lambda: RBF(choice.other),
            "linear": Linear,
            "polynomial": lambda: Polynomial(int(choice.other)),
            "random PSD": RandomPSD,
            "rotated RBF": lambda: Rotated(RBF(choice.other)),
        }
        gram = matrices[checks.choice("chen2022", "matrix", matrix, matrices)]()
        return KernelSGD(parameters, lr, model=model, kernel=gram, layers=layers, inputs=inputs, cache=True)
    if method == LAST_LAYER:
        last = list(last_linear(model)[1].parameters())
        body = [p for p in parameters if all(p is not q for q in last)]
        groups: list[dict[str, Any]] = [{"params": last, "lr": lr * choice.other}]
        if body:
            groups.append({"params": body})
        return torch.optim.SGD(groups, lr)
    simple: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "SGD": lambda: torch.optim.SGD(parameters, lr),
        LARGER_RATES: lambda: torch.optim.SGD(parameters, lr),
        "SGD+M": lambda: torch.optim.SGD(parameters, lr, momentum=_MOMENTUM),
        "AdaH": lambda: AdaHessian(parameters, lr),
        "ESGD": lambda: ESGD(parameters, lr),
        "L-BFGS": lambda: torch.optim.LBFGS(parameters, lr, max_iter=1, history_size=_HISTORY),
        "R-L-BFGS": lambda: MultiBatchLBFGS(parameters, lr, history=_HISTORY),
        FUNCTION_SPACE: lambda: FunctionSpaceSGD(parameters, lr, model=model),
    }
    return simple[checks.choice("chen2022", "method", method, simple)]()


def advance(
    method: str,
    optimizer: Any,
    loss: Callable[[], Tensor],
    *,
    overlap: Callable[[], Tensor] | None = None,
    change: Callable[[], None] | None = None,
) -> float:
    """One step in the way the method needs; the loss before it.

    Args:
        method: One of `METHODS`.
        optimizer: From `make`.
        loss: Evaluates the loss of the batch.
        overlap: Evaluates the loss of the rows that the next batch has too, for R-L-BFGS.
        change: What to do to the gradients before the step.
    """
    graph = method == "AdaH" or (method == "ESGD" and optimizer.due)
    losses: list[float] = []

    def evaluate(part: Callable[[], Tensor] = loss) -> Tensor:
        optimizer.zero_grad()
        value = part()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's, on graphs that gradients hold
            value.backward(create_graph=graph)
        if change is not None:
            change()
        losses.append(float(value.detach()))
        return value

    # L-BFGS evaluates the loss itself, R-L-BFGS also on the shared rows
    if method == "L-BFGS":
        optimizer.step(evaluate)
    elif method == "R-L-BFGS":
        optimizer.step(evaluate, None if overlap is None else lambda: evaluate(overlap))
    else:
        evaluate()
        optimizer.step()
    optimizer.zero_grad()  # a gradient with a graph must not outlive the step
    return losses[0]


_BETAS, _EPSILON = (0.9, 0.999), 1e-4  # of AdaHessian, as its authors have them


class AdaHessian(Optimizer):
    r"""Adam with the diagonal of the Hessian in place of the gradient's square (Yao et al. 2021, Algorithm 1).

    :math:`D = |z \odot H z|` for random signs z, averaged over the places of each convolution filter (their Eq. 10);
    :math:`\bar D^2` is its running mean square, and :math:`w' = w - \eta\, \hat m / (\hat D + \epsilon)`.

    Call ``loss.backward(create_graph=True)`` before ``step()``.

    Args:
        params: Parameters or groups.
        lr: :math:`\eta`.
    """

    def __init__(self, params: ParamsT, lr: float = 0.15) -> None:
        super().__init__(params, {"lr": lr})

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the gradients must carry their graph."""
        # the diagonal of the Hessian by one product with random signs
        live = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        signs = [torch.randint(0, 2, p.shape, dtype=p.dtype, device=p.device).mul_(2).sub_(1) for p in live]
        products = torch.autograd.grad([p.grad for p in live], live, signs, allow_unused=True)
        rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
        with torch.no_grad():
            for p, z, product in zip(live, signs, products, strict=True):
                diagonal = torch.zeros_like(p) if product is None else (z * product).detach().abs()
                if p.ndim > 2:  # averaged over the places of each filter (their Eq. 10)
                    diagonal = diagonal.mean(tuple(range(2, p.ndim)), keepdim=True).expand_as(p)
                # Adam's step with that diagonal in the place of the gradient
                state, (first, second) = self.state[p], _BETAS
                if not state:
                    state |= {_STEP: 0, _MEAN: torch.zeros_like(p), _SQUARE: torch.zeros_like(p)}
                state[_STEP] += 1
                state[_MEAN].lerp_(p.grad.detach(), 1 - first)
                state[_SQUARE].mul_(second).addcmul_(diagonal, diagonal, value=1 - second)
                scale = state[_SQUARE].sqrt() / math.sqrt(1 - second ** state[_STEP]) + _EPSILON
                p.addcdiv_(state[_MEAN], scale, value=-rates[p] / (1 - first ** state[_STEP]))
