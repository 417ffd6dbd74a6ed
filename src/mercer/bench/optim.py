"""Optimizers side by side: epochs and CPU time to a test accuracy, cost of a step, untuned read-outs, state memory.

On digits and usps every peer runs at the rate that was best for it in a sweep (docs/papers/chen2022.md has them);
mnist takes those of usps (but for KernelSGD, which diverged there), the CNN usual ones. Ours runs at lr = 0.3 and its
defaults everywhere.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import load
from ..optim import EigenProSGD, FunctionSpaceSGD, KernelSGD, state_bytes
from .timing import Case, Peer

__all__ = ["CASES"]

BATCH = 64
_PEERS = ("pytorch_optimizer",)

Make = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Task:
    """A network to train until its test accuracy reaches ``target``, or for ``most`` epochs."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    network: Callable[[], nn.Module]
    target: float
    most: int
    seeds: int

    def accuracy(self, model: nn.Module) -> float:
        """On the test rows."""
        with torch.no_grad():
            return float((model(self.x_test).argmax(1) == self.y_test).double().mean())


def _mlp(d: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for wide_in, wide in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(wide_in, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def _task(name: str, rows: tuple[int, int] | None, target: float, most: int, seeds: int) -> Callable[[], Task]:
    def made() -> Task:
        data = load(name, rows=rows)
        if name == "cifar10":
            return Task(data.x_train - 0.47, data.y_train, data.x_test - 0.47, data.y_test, _cnn, target, most, seeds)
        x, x_test = data.x_train.flatten(1), data.x_test.flatten(1)
        return Task(x, data.y_train, x_test, data.y_test, lambda: _mlp(x.shape[1]), target, most, seeds)

    return made


def train(make: Make, *, graph: bool = False) -> Callable[[Task], list[int]]:
    """A work: for each seed the epochs until the target is reached (one more than ``most`` where it is not)."""

    def work(task: Task) -> list[int]:
        return [_epochs(task, make, seed, graph) for seed in range(task.seeds)]

    return work


def _epochs(task: Task, make: Make, seed: int, graph: bool) -> int:
    torch.manual_seed(seed)
    model = task.network()
    optimizer = make(model)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(1, task.most + 1):
        for rows in torch.randperm(len(task.x), generator=generator).split(BATCH):
            _step(model, optimizer, task.x[rows], task.y[rows], graph)
        if task.accuracy(model) >= task.target:
            return epoch
    return task.most + 1


def _step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, graph: bool) -> None:
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, on graphs that gradients hold
        F.cross_entropy(model(x), y).backward(create_graph=graph)
    optimizer.step()


def steps(make: Make, count: int = 200) -> Callable[[Task], float]:
    """A work: so many steps, and nothing else."""

    def work(task: Task) -> float:
        torch.manual_seed(0)
        model = task.network()
        optimizer = make(model)
        for i in range(count):
            start = i * BATCH % (len(task.x) - BATCH)
            _step(model, optimizer, task.x[start : start + BATCH], task.y[start : start + BATCH], False)
        return task.accuracy(model)

    return work


def _sgd(lr: float, momentum: float = 0.0) -> Make:
    return lambda model: torch.optim.SGD(model.parameters(), lr, momentum=momentum)


def _adam(lr: float) -> Make:
    return lambda model: torch.optim.Adam(model.parameters(), lr)


def _ours(model: nn.Module) -> torch.optim.Optimizer:
    return FunctionSpaceSGD(model.parameters(), 0.3, model=model)


def _adahessian(lr: float) -> Make:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        from pytorch_optimizer import AdaHessian

        made: torch.optim.Optimizer = AdaHessian(model.parameters(), lr=lr)
        return made

    return make


def _soap(lr: float) -> Make:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        from pytorch_optimizer import SOAP

        made: torch.optim.Optimizer = SOAP(model.parameters(), lr=lr)
        return made

    return make


def _reach(
    name: str, setup: Callable[[], Task], rates: dict[str, float], goals: dict[str, dict[str, float]], repeats: int
) -> Case:
    """Epochs to the target: ours at lr = 0.3, each peer at its own best rate."""
    works: dict[str, tuple[Callable[[Task], list[int]], tuple[str, ...]]] = {
        "SGD": (train(_sgd(rates["SGD"])), ()),
        "SGD, momentum 0.9": (train(_sgd(rates["SGD, momentum 0.9"], 0.9)), ()),
        "Adam": (train(_adam(rates["Adam"])), ()),
        "AdaHessian": (train(_adahessian(rates["AdaHessian"]), graph=True), _PEERS),
        "SOAP": (train(_soap(rates["SOAP"])), _PEERS),
        "KernelSGD": (train(lambda m: KernelSGD(m.parameters(), rates["KernelSGD"], model=m)), ()),
    }
    return Case(
        name,
        setup=setup,
        ours=train(_ours),
        peers={who: Peer(work, needs=needs, goals=goals.get(who, {})) for who, (work, needs) in works.items()},
        accuracy=lambda _, epochs: statistics.mean(epochs),
        accuracy_name="mean epochs",
        repeats=repeats,
        memory=False,
    )


def _epochs_of_four() -> Case:
    """The epochs in which four of five seeds are there."""
    return Case(
        "digits to 95 %: epochs that 4 of 5 seeds need",
        setup=_DIGITS,
        ours=train(_ours),
        accuracy=lambda _, epochs: float(sorted(epochs)[3]),
        accuracy_name="epochs",
        limits={"accuracy": 2.0},
        repeats=1,
        memory=False,
    )


def random_features(seed: int = 0) -> Task:
    """Digits behind 200 frozen random ReLU features; the read-out is all that is trained, for one epoch."""
    data = load("digits")
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(64, 200, generator=generator) * (2 / 64) ** 0.5
    x, x_test = (part.flatten(1).matmul(w).relu() for part in (data.x_train, data.x_test))
    return Task(x, data.y_train, x_test, data.y_test, lambda: nn.Linear(200, 10), 2.0, 1, 5)


def after_one_epoch(make: Make) -> Callable[[Task], float]:
    """A work: mean test accuracy over seeds (of features, start and order) after one epoch."""

    def work(task: Task) -> float:
        scores = []
        for seed in range(task.seeds):
            own = random_features(seed)
            torch.manual_seed(seed)
            model = own.network()
            optimizer = make(model)
            order = torch.randperm(len(own.x), generator=torch.Generator().manual_seed(seed))
            for rows in order.split(BATCH):
                _step(model, optimizer, own.x[rows], own.y[rows], False)
            scores.append(own.accuracy(model))
        return statistics.mean(scores)

    return work


def held(make: Make, *, graph: bool = False, closure: bool = False) -> Callable[[Task], float]:
    """A work: MiB of the optimizer's state after twelve steps."""

    def work(task: Task) -> float:
        model = task.network()
        optimizer: Any = make(model)
        for i in range(12):
            x, y = task.x[i * BATCH : (i + 1) * BATCH], task.y[i * BATCH : (i + 1) * BATCH]

            def evaluate(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            if closure:
                optimizer.step(evaluate)
            else:
                _step(model, optimizer, x, y, graph)
        return state_bytes(optimizer) / 2**20

    return work


def _lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1, history_size=10)


_DIGITS = _task("digits", None, 0.95, 15, 5)
_RATES = {
    "digits": {"SGD": 0.5, "SGD, momentum 0.9": 0.2, "Adam": 1e-2, "AdaHessian": 0.1, "SOAP": 1e-2, "KernelSGD": 1.0},
    "usps": {"SGD": 0.5, "SGD, momentum 0.9": 0.1, "Adam": 1e-2, "AdaHessian": 0.05, "SOAP": 1e-2, "KernelSGD": 1.0},
    "mnist": {"SGD": 0.5, "SGD, momentum 0.9": 0.1, "Adam": 1e-2, "AdaHessian": 0.05, "SOAP": 1e-2, "KernelSGD": 0.3},
    "cifar10": {"SGD": 0.1, "SGD, momentum 0.9": 0.03, "Adam": 3e-3, "AdaHessian": 0.1, "SOAP": 3e-3, "KernelSGD": 0.1},
}
_CHEAPER = {"SOAP": {"cpu": 2.0}, "AdaHessian": {"cpu": 5.0}}

CASES = [
    _reach("digits to 95 %, 5 seeds", _DIGITS, _RATES["digits"], _CHEAPER, 3),
    _epochs_of_four(),
    _reach("usps to 93 %, 3 seeds", _task("usps", None, 0.93, 12, 3), _RATES["usps"], _CHEAPER, 1),
    _reach("mnist, 10,000 rows, to 93 %", _task("mnist", (10_000, 3000), 0.93, 8, 1), _RATES["mnist"], _CHEAPER, 1),
    _reach("CNN on cifar10, 4,000 rows, to 45 %", _task("cifar10", (4000, 1000), 0.45, 8, 1), _RATES["cifar10"], {}, 1),
    Case(
        "200 steps on digits, update_every=10",
        setup=_DIGITS,
        ours=steps(_ours),
        peers={
            "SGD": Peer(steps(_sgd(0.1)), goals={"cpu": 1 / 1.5}),
            "Adam": Peer(steps(_adam(1e-2))),
            "SOAP": Peer(steps(_soap(1e-2)), needs=_PEERS),
        },
        accuracy=lambda _, score: float(score),
        accuracy_name="test accuracy",
        better="higher",
    ),
    Case(
        "EigenProSGD on 200 frozen features, one epoch, untuned",
        setup=random_features,
        ours=after_one_epoch(lambda m: EigenProSGD(m.parameters(), model=m)),
        peers={
            "SGD, best of a sweep": Peer(after_one_epoch(_sgd(0.1))),
            "momentum, best of a sweep": Peer(after_one_epoch(_sgd(0.1, 0.9))),
            "Adam, lr 0.01": Peer(after_one_epoch(_adam(1e-2))),
        },
        accuracy=lambda _, score: float(score),
        accuracy_name="test accuracy",
        better="higher",
        limits={"accuracy": 0.95},
        memory=False,
    ),
    Case(
        "state of 784-100-100-10 after 12 steps",
        setup=_task("mnist", (1000, 10), 1.0, 1, 1),
        ours=held(_ours),
        peers={
            "KernelSGD, 12 cached batches": Peer(held(lambda m: KernelSGD(m.parameters(), 0.1, model=m, cache=True))),
            "AdaHessian": Peer(held(_adahessian(0.1), graph=True), needs=_PEERS),
            "L-BFGS, history 10": Peer(held(_lbfgs, closure=True)),
            "Adam": Peer(held(_adam(1e-3))),
            "SOAP": Peer(held(_soap(3e-3)), needs=_PEERS),
        },
        accuracy=lambda _, mib: float(mib),
        accuracy_name="state, MiB",
        repeats=1,
        memory=False,
    ),
]
