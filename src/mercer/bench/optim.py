"""Optimizers side by side: epochs and CPU time to a test accuracy, cost of a step, untuned read-outs, state memory.

Ours runs with no setting at all, lr="auto". The peers' rates on digits, usps and cifar10 are the best of sweeps (some
on test rows, which favours the peers); those of Shampoo and Muon, and all on MNIST and the CNN, are the better of two
rates on one seed: sweep them before you quote a ratio.
"""

from __future__ import annotations

import functools
import itertools
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
    batch: int = 64
    checks: int = 1  # looks at the test rows in an epoch, untimed ones among the works of all alike

    def accuracy(self, model: nn.Module) -> float:
        """On the test rows."""
        with torch.no_grad():
            return float((model(self.x_test).argmax(1) == self.y_test).double().mean())


def _mlp(d: int, *hidden: int) -> nn.Module:
    widths = (d, *hidden)
    layers: list[nn.Module] = []
    for wide_in, wide in itertools.pairwise(widths):
        layers += [nn.Linear(wide_in, wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def _cnn(channels: int = 3, side: int = 32) -> nn.Module:
    layers: list[nn.Module] = []
    for wide_in, wide in ((channels, 16), (16, 32)):
        layers += [nn.Conv2d(wide_in, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * side * side, 128), nn.ReLU(), nn.Linear(128, 10))


def _task(
    name: str,
    rows: tuple[int, int] | None,
    target: float,
    most: int,
    seeds: int,
    *,
    hidden: tuple[int, ...] = (100, 100),
    batch: int = 64,
    checks: int = 1,
) -> Callable[[], Task]:
    """A perceptron on flat rows, or with no hidden widths a convolutional network on pictures."""

    def made() -> Task:
        data = load(name, rows=rows)
        x, x_test = data.x_train, data.x_test
        if hidden:
            x, x_test = x.flatten(1), x_test.flatten(1)
            network = functools.partial(_mlp, x.shape[1], *hidden)
        else:
            channels, side = (3, 32) if name == "cifar10" else (1, 28)
            x, x_test = (part.reshape(len(part), channels, side, side) - 0.47 for part in (x, x_test))
            network = functools.partial(_cnn, channels, side)
        return Task(x, data.y_train, x_test, data.y_test, network, target, most, seeds, batch, checks)

    return made


def train(make: Make, *, graph: bool = False) -> Callable[[Task], list[float]]:
    """A work: for each seed the epochs until the target is reached (one more than ``most`` where it is not)."""

    def work(task: Task) -> list[float]:
        return [_epochs(task, make, seed, graph) for seed in range(task.seeds)]

    return work


def _epochs(task: Task, make: Make, seed: int, graph: bool) -> float:
    torch.manual_seed(seed)
    model = task.network()
    optimizer = make(model)
    generator = torch.Generator().manual_seed(seed)
    batches = -(-len(task.x) // task.batch)
    looks = {round(batches * (i + 1) / task.checks) for i in range(task.checks)}
    for epoch in range(task.most):
        order = torch.randperm(len(task.x), generator=generator)
        for i, rows in enumerate(order.split(task.batch), 1):
            _step(model, optimizer, task.x[rows], task.y[rows], graph)
            if i in looks and task.accuracy(model) >= task.target:
                return epoch + i / batches
    return task.most + 1.0


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
            start = i * task.batch % (len(task.x) - task.batch)
            rows = slice(start, start + task.batch)
            _step(model, optimizer, task.x[rows], task.y[rows], False)
        return task.accuracy(model)

    return work


def _sgd(lr: float, momentum: float = 0.0) -> Make:
    return lambda model: torch.optim.SGD(model.parameters(), lr, momentum=momentum)


def _adam(lr: float) -> Make:
    return lambda model: torch.optim.AdamW(model.parameters(), lr)


def _ours(model: nn.Module) -> torch.optim.Optimizer:
    return FunctionSpaceSGD(model.parameters(), model=model)


def _peer(name: str, lr: float) -> Make:
    """An optimizer of pytorch-optimizer with its own settings but for the rate."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        import pytorch_optimizer

        kind = getattr(pytorch_optimizer, name)
        if name != "Muon":
            made: torch.optim.Optimizer = kind(model.parameters(), lr=lr)
            return made
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            raise RuntimeError("Muon multiplies in bfloat16, which this processor does not.")
        matrices = [p for p in model.parameters() if p.ndim > 1]  # the rest by AdamW inside, as its authors do
        rest = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "use_muon": True}, {"params": rest, "use_muon": False, "lr": 0.1 * lr}]
        return kind(groups, lr=lr)  # type: ignore[no-any-return]

    return make


def _reach(
    name: str, setup: Callable[[], Task], rates: dict[str, float], goals: dict[str, dict[str, float]], repeats: int
) -> Case:
    """Epochs to the target: ours untuned, each peer at its own best rate."""
    first_order: dict[str, Callable[[float], Make]] = {
        "SGD": _sgd,
        "SGD, momentum 0.9": lambda lr: _sgd(lr, 0.9),
        "AdamW": _adam,
        "KernelSGD": lambda lr: lambda m: KernelSGD(m.parameters(), lr, model=m),
    }
    peers = {}
    for who, lr in rates.items():
        make = first_order[who](lr) if who in first_order else _peer(who, lr)
        needs = () if who in first_order else _PEERS
        peers[who] = Peer(train(make, graph=who == "AdaHessian"), needs=needs, goals=goals.get(who, {}))
    return Case(
        name,
        setup=setup,
        ours=train(_ours),
        peers=peers,
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
            for rows in order.split(own.batch):
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
            rows = slice(i * task.batch, (i + 1) * task.batch)
            x, y = task.x[rows], task.y[rows]

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
_RATES = {  # see the head of this file for where each comes from
    "digits": {
        "SGD": 0.5, "SGD, momentum 0.9": 0.2, "AdamW": 1e-2, "AdaHessian": 0.1, "SOAP": 1e-2, "Muon": 2e-2,
        "Shampoo": 0.1, "KernelSGD": 0.1,
    },
    "usps": {
        "SGD": 0.5, "SGD, momentum 0.9": 0.1, "AdamW": 1e-2, "AdaHessian": 0.05, "SOAP": 1e-2, "Muon": 2e-2,
        "Shampoo": 0.1,
    },
    "mnist 128": {"SGD, momentum 0.9": 0.1, "AdamW": 3e-3, "SOAP": 1e-2, "Muon": 1e-2},
    "mnist 1024": {"SGD, momentum 0.9": 0.3, "AdamW": 1e-2, "SOAP": 1e-2, "Muon": 2e-2},
    "CNN": {"SGD, momentum 0.9": 0.1, "AdamW": 3e-3, "SOAP": 3e-3, "Muon": 1e-2},
    "cifar10": {"SGD, momentum 0.9": 0.03, "AdamW": 3e-3, "AdaHessian": 0.1, "SOAP": 3e-3, "Muon": 1e-2},
}  # fmt: skip
_CHEAPER = {"SOAP": {"cpu": 2.0}, "AdaHessian": {"cpu": 5.0}}
_MNIST = {who: {"cpu": 1 / 0.7} for who in _RATES["mnist 128"]}
_WIDE = (256, 128)


def _steps(name: str, setup: Callable[[], Task], most: float, count: int) -> Case:
    """What a step costs; at most ``most`` times one of SGD."""
    return Case(
        name,
        setup=setup,
        ours=steps(_ours, count),
        peers={
            "SGD": Peer(steps(_sgd(0.1), count), goals={"cpu": 1 / most}),
            "SGD, momentum 0.9": Peer(steps(_sgd(0.05, 0.9), count)),
            "AdamW": Peer(steps(_adam(1e-3), count)),
            "SOAP": Peer(steps(_peer("SOAP", 3e-3), count), needs=_PEERS),
            "Muon": Peer(steps(_peer("Muon", 1e-2), count), needs=_PEERS),
        },
        accuracy=lambda _, score: float(score),
        accuracy_name="test accuracy",
        better="higher",
        memory=False,
    )


CASES = [
    _reach("digits to 95 %, 5 seeds", _DIGITS, _RATES["digits"], _CHEAPER, 3),
    _epochs_of_four(),
    _reach("usps to 93 %, 3 seeds", _task("usps", None, 0.93, 12, 3), _RATES["usps"], _CHEAPER, 1),
    _reach(
        "mnist, 60,000 rows, batch 128, to 97 %, 3 seeds",
        _task("mnist", (60_000, 3000), 0.97, 5, 3, hidden=_WIDE, batch=128, checks=4),
        _RATES["mnist 128"],
        _MNIST,
        1,
    ),
    _reach(
        "mnist, 60,000 rows, batch 1024, to 97 %, 3 seeds",
        _task("mnist", (60_000, 3000), 0.97, 8, 3, hidden=_WIDE, batch=1024, checks=4),
        _RATES["mnist 1024"],
        _MNIST,
        1,
    ),
    _reach(
        "CNN on mnist, 6,000 rows, batch 128, to 96 %",
        _task("mnist", (6000, 1000), 0.96, 5, 1, hidden=(), batch=128, checks=4),
        _RATES["CNN"],
        {who: {"cpu": 1.0} for who in _RATES["CNN"]},
        1,
    ),
    _reach(
        "CNN on cifar10, 4,000 rows, to 45 %",
        _task("cifar10", (4000, 1000), 0.45, 8, 1, hidden=(), checks=2),
        _RATES["cifar10"],
        {},
        1,
    ),
    _steps("200 steps on digits", _DIGITS, 1.5, 200),
    _steps(
        "400 steps of 784-256-128-10, batch 128",
        _task("mnist", (10_000, 1000), 1.0, 1, 1, hidden=_WIDE, batch=128),
        1.3,
        400,
    ),
    _steps("50 steps of a CNN, batch 128", _task("mnist", (6000, 500), 1.0, 1, 1, hidden=(), batch=128), 1.4, 50),
    Case(
        "EigenProSGD on 200 frozen features, one epoch, untuned",
        setup=random_features,
        ours=after_one_epoch(lambda m: EigenProSGD(m.parameters(), model=m)),
        peers={
            "SGD, best of a sweep": Peer(after_one_epoch(_sgd(0.1))),
            "momentum, best of a sweep": Peer(after_one_epoch(_sgd(0.1, 0.9))),
            "AdamW, lr 0.01": Peer(after_one_epoch(_adam(1e-2))),
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
            "AdaHessian": Peer(held(_peer("AdaHessian", 0.1), graph=True), needs=_PEERS),
            "L-BFGS, history 10": Peer(held(_lbfgs, closure=True)),
            "AdamW": Peer(held(_adam(1e-3))),
            "SOAP": Peer(held(_peer("SOAP", 3e-3)), needs=_PEERS),
            "Muon": Peer(held(_peer("Muon", 1e-2)), needs=_PEERS),
            "Shampoo": Peer(held(_peer("Shampoo", 1e-1)), needs=_PEERS),
        },
        accuracy=lambda _, mib: float(mib),
        accuracy_name="state, MiB",
        repeats=1,
        memory=False,
    ),
]
