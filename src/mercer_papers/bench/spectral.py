"""The spectrum of H without decomposing it, against dense decompositions and against itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mercer.kernels import RBF, ReLUGram
from mercer.linalg.distances import unit_rows
from mercer.spectral import analyze
from mercer.spectral.comparison import spectra

from ..data import load
from ..rivals import TwoLayerNet, train_two_layer
from .timing import Case, Peer

RATE = 2e-4  # the paper's eta
STEPS = 100
SHUFFLES = 10
LAZY = {"width": 4000, "scale": 1.0, "rate": 2e-3, "steps": 50}


@dataclass(frozen=True)
class Problem:
    """Unit MNIST rows, their targets, and H where it is given."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,)
    gram: Tensor | None = None
    complexity: float = 0.0

    @property
    def matrix(self) -> Tensor:
        """H, which this problem gives."""
        assert self.gram is not None
        return self.gram


def zeros_and_ones(n: int, *, given: bool) -> Problem:
    """The first n rows of the classes 0 and 1; with H, and the complexity by Cholesky, where ``given``."""
    digits = load("mnist", classes=(0, 1), rows=n)
    x, y = unit_rows(digits.x_train.flatten(1).double()), 1.0 - 2.0 * digits.y_train.double()
    if not given:
        return Problem(x, y)
    gram = torch.cat([ReLUGram()(rows, x) for rows in x.split(500)])
    problem = Problem(x, y, gram)
    return replace(problem, complexity=_cholesky_complexity(problem))


def parity(n: int) -> Problem:
    """The first n rows of all classes, +1 for even digits."""
    digits = load("mnist", rows=n)
    return Problem(unit_rows(digits.x_train.flatten(1)), 1.0 - 2.0 * (digits.y_train % 2).double())


def _indices(data: Problem) -> Tensor:
    return torch.arange(len(data.y))


def _eigh_curve(data: Problem) -> Tensor:
    values, vectors = torch.linalg.eigh(data.matrix)
    times = torch.arange(STEPS + 1, dtype=torch.float64)
    shrink: Tensor = (1 - RATE * values[:, None]) ** (2 * times)  # (n, steps + 1)
    squared: Tensor = (shrink * (vectors.mT @ data.y)[:, None].square()).sum(0)
    return squared.sqrt()


def _last_residual(data: Problem, curve: Tensor) -> float:
    """Relative error at the last step, against so many products with I - eta H."""
    residual = data.y
    for _ in range(STEPS):
        residual = residual - RATE * (data.matrix @ residual)
    return abs(float(curve[-1] / residual.norm()) - 1)


def _eigh_complexity(data: Problem) -> float:
    values, vectors = torch.linalg.eigh(data.matrix)
    return float(((vectors.mT @ data.y).square() / values).sum())


def _cholesky_complexity(data: Problem) -> float:
    factor = torch.linalg.cholesky(data.matrix)
    return float(torch.linalg.solve_triangular(factor, data.y[:, None], upper=False).square().sum())


def _complexity_error(data: Problem, answer: float) -> float:
    return abs(answer / data.complexity - 1)


def _complexities(data: Problem, *, kernels: dict[str, ReLUGram]) -> list[float]:
    return [s.complexity for s in spectra(kernels, data.x, data.y, storage="float32", tolerance=1e-4).values()]


_ONE = {"1.0": ReLUGram(RBF(1.0))}
_FOUR = {"none": ReLUGram(), "0.1": ReLUGram(RBF(0.1)), **_ONE, "10.0": ReLUGram(RBF(10.0))}


def _lazy(data: Problem) -> float:
    """Largest relative gap between the predicted and the measured residual over the steps."""
    generator = torch.Generator().manual_seed(0)
    width, steps = int(LAZY["width"]), int(LAZY["steps"])
    net = TwoLayerNet(data.x.shape[1], width, scale=LAZY["scale"], generator=generator, dtype=data.x.dtype)
    start = net(data.x).detach()[:, 0]
    predicted = analyze(ReLUGram(), data.x, data.y - start).convergence(LAZY["rate"], steps)
    measured = train_two_layer(net, data.x, data.y, lr=LAZY["rate"], steps=steps).residual
    return float((predicted / measured - 1).abs().max())


def _reading(data: Problem) -> list[float]:
    """Complexity, the last point of the curve, and ten shuffled controls."""
    spectrum = analyze(ReLUGram(), data.x, data.y)
    controls = [spectrum.shuffled(torch.Generator().manual_seed(seed)).complexity for seed in range(SHUFFLES)]
    return [spectrum.complexity, float(spectrum.convergence(RATE, STEPS)[-1]), *controls]


def _plain_reading(data: Problem) -> list[float]:
    """Complexity, curve and controls by plain torch: one Cholesky factor, and gradient descent step by step."""
    with torch.no_grad():
        gram = torch.cat([ReLUGram()(rows, data.x) for rows in data.x.split(500)])
    orders = [torch.randperm(len(data.y), generator=torch.Generator().manual_seed(seed)) for seed in range(SHUFFLES)]
    columns = torch.stack([data.y, *(data.y[order] for order in orders)], 1)
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), columns, upper=False)
    residual = data.y
    for _ in range(STEPS):
        residual = residual - RATE * (gram @ residual)
    complexity, *controls = half.square().sum(0).tolist()
    return [complexity, float(residual.norm()), *controls]


def _reading_case(n: int, goal: float) -> Case:
    return Case(
        f"complexity, curve and ten shuffles, n = {n:,}",
        setup=lambda: zeros_and_ones(n, given=False),
        ours=_reading,
        peers={"plain torch, one Cholesky": Peer(_plain_reading, goals={"cpu": goal}, once=n > 5000)},
        repeats=3 if n <= 5000 else 1,
        memory=False,
    )


CASES = [
    _reading_case(2000, 1.0),
    _reading_case(5000, 1.0),
    _reading_case(10_000, 4.0),
    Case(
        "curve of 100 steps, n = 5000, H given",
        setup=lambda: zeros_and_ones(5000, given=True),
        ours=lambda data: analyze(data.matrix, _indices(data), data.y).convergence(RATE, STEPS),
        peers={"eigh": Peer(_eigh_curve, goals={"cpu": 50.0}, once=True)},
        accuracy=_last_residual,
        accuracy_name="relative error at the last step",
        limits={"accuracy": 1e-8},
        repeats=3,
    ),
    Case(
        "complexity, n = 5000, H given",
        setup=lambda: zeros_and_ones(5000, given=True),
        ours=lambda data: analyze(data.matrix, _indices(data), data.y, tolerance=1e-4).complexity,
        peers={"eigh": Peer(_eigh_complexity, goals={"cpu": 20.0}, once=True)},
        accuracy=_complexity_error,
        accuracy_name="relative error",
        limits={"accuracy": 1e-4},
        repeats=3,
        memory=False,  # as in the case before
    ),
    Case(
        "complexity, n = 10000, H given",
        setup=lambda: zeros_and_ones(10_000, given=True),
        ours=lambda data: analyze(data.matrix, _indices(data), data.y, tolerance=1e-4, storage="float32").complexity,
        peers={"cholesky": Peer(_cholesky_complexity, goals={"cpu": 4.0, "memory": 4.0}, once=True)},
        accuracy=_complexity_error,
        accuracy_name="relative error",
        limits={"accuracy": 1e-4},
        repeats=3,
    ),
    Case(
        "curve of 50000 rows, parity of MNIST digits",
        setup=lambda: parity(50_000),
        ours=lambda data: analyze(ReLUGram(), data.x, data.y, storage="int16").convergence(1e-5, STEPS),
        limits={"wall": 300.0, "memory": 4096.0},
        repeats=1,
        threads=2,  # the goal's five minutes are on two cores
    ),
    Case(
        "complexity under four kernels, n = 10000",
        setup=lambda: zeros_and_ones(10_000, given=False),
        ours=partial(_complexities, kernels=_FOUR),
        peers={"one kernel": Peer(partial(_complexities, kernels=_ONE), goals={"cpu": 1 / 2.2})},
        repeats=2,
        memory=False,
    ),
    Case(
        "predicted against measured residual, 50 steps, lazy",
        setup=lambda: zeros_and_ones(500, given=False),
        ours=_lazy,
        accuracy=lambda data, answer: answer,
        accuracy_name="largest relative gap",
        limits={"accuracy": 0.01},
        repeats=1,
        memory=False,
    ),
]
