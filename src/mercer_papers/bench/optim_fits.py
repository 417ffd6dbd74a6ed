"""What the optimizers' bench trains, by whom, and the peers' rates.

The rates are the fastest to the target on a sixth of the training rows, on one seed (``bench.studies.optim_rates``);
those of usps and cifar10 come from older sweeps, some on test rows, which favours the peers.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.optim import FunctionSpaceSGD, KernelSGD
from mercer.signals.layers import last_linear

from ..data import load

PEERS = ("pytorch_optimizer",)
_PRECONDITION_EVERY = 20  # steps between two inverses of Shampoo: its default, 1, takes most of a second on MNIST

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

    def on_validation(self) -> Task:
        """The same, with a sixth of the training rows in place of the test rows."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))
        held, kept = order.split([len(order) // 6, len(order) - len(order) // 6])
        return replace(self, x=self.x[kept], y=self.y[kept], x_test=self.x[held], y_test=self.y[held])

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


def train(who: str, lr: float | None = None) -> Callable[[Task], list[float]]:
    """A work: for each seed the epochs until the target is reached (one more than ``most`` where it is not)."""
    return lambda task: [reach(task, who, lr, seed) for seed in range(task.seeds)]


def reach(task: Task, who: str, lr: float | None, seed: int) -> float:
    """Epochs until the target is reached; one more than ``most`` where it is not."""
    torch.manual_seed(seed)
    model = task.network()
    optimizer, graph = made_by(who, lr)(model), who == "AdaHessian"
    generator = torch.Generator().manual_seed(seed)
    batches = -(-len(task.x) // task.batch)
    looks = {round(batches * (i + 1) / task.checks) for i in range(task.checks)}
    for epoch in range(task.most):
        order = torch.randperm(len(task.x), generator=generator)
        for i, rows in enumerate(order.split(task.batch), 1):
            step(model, optimizer, task.x[rows], task.y[rows], graph)
            if i in looks and task.accuracy(model) >= task.target:
                return epoch + i / batches
    return task.most + 1.0


def step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, graph: bool) -> None:
    """One step of a training loop; ``graph`` for optimizers that differentiate gradients."""
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
            step(model, optimizer, task.x[rows], task.y[rows], False)
        return task.accuracy(model)

    return work


def made_by(who: str, lr: float | None = None) -> Make:
    """A maker of that optimizer at that rate: ours untuned without one, peers with their own settings."""
    if who == "FunctionSpaceSGD" and lr is None:
        return lambda model: FunctionSpaceSGD(model.parameters(), model=model)
    assert lr is not None
    if who == "FunctionSpaceSGD":
        return lambda model: FunctionSpaceSGD(model.parameters(), lr, model=model)
    if who == "KernelSGD":
        return lambda model: KernelSGD(model.parameters(), lr, model=model)
    if who.startswith("SGD"):
        return lambda model: torch.optim.SGD(model.parameters(), lr, momentum=0.9 if "momentum" in who else 0.0)
    if who == "AdamW":
        return lambda model: torch.optim.AdamW(model.parameters(), lr)
    return functools.partial(_peer, who, lr)


def _peer(who: str, lr: float, model: nn.Module) -> torch.optim.Optimizer:
    import pytorch_optimizer

    kind = getattr(pytorch_optimizer, who)
    if who == "Shampoo":
        return kind(model.parameters(), lr=lr, preconditioning_compute_steps=_PRECONDITION_EVERY)  # type: ignore[no-any-return]
    if who != "Muon":
        return kind(model.parameters(), lr=lr)  # type: ignore[no-any-return]
    head = last_linear(model)[1].weight  # it and the vectors by AdamW inside, as its authors do
    hidden = [p for p in model.parameters() if p.ndim > 1 and p is not head]
    rest = [p for p in model.parameters() if p.ndim <= 1 or p is head]
    groups = [{"params": hidden, "use_muon": True}, {"params": rest, "use_muon": False, "lr": 0.1 * lr}]
    return kind(groups, lr=lr)  # type: ignore[no-any-return]


_WIDE = (256, 128)
TASKS: dict[str, Callable[[], Task]] = {
    "digits": _task("digits", None, 0.95, 15, 5),
    "usps": _task("usps", None, 0.93, 12, 3),
    "mnist 128": _task("mnist", (60_000, 3000), 0.97, 5, 3, hidden=_WIDE, batch=128, checks=4),
    "mnist 1024": _task("mnist", (60_000, 3000), 0.97, 8, 3, hidden=_WIDE, batch=1024, checks=4),
    "CNN": _task("mnist", (6000, 1000), 0.96, 6, 3, hidden=(), batch=128, checks=4),
    "mnist state": _task("mnist", (1000, 10), 1.0, 1, 1),
    "cifar10": _task("cifar10", (4000, 1000), 0.45, 8, 1, hidden=(), checks=2),
}

RATES = {
    "digits": {
        "SGD": 0.5, "SGD, momentum 0.9": 0.1, "AdamW": 2e-2, "AdaHessian": 0.1, "SOAP": 1e-2, "Muon": 4e-2,
        "Shampoo": 0.1, "KernelSGD": 0.1,
    },
    "usps": {
        "SGD": 0.5, "SGD, momentum 0.9": 0.1, "AdamW": 1e-2, "AdaHessian": 0.05, "SOAP": 1e-2, "Muon": 2e-2,
        "Shampoo": 0.1,
    },
    "mnist 128": {"SGD, momentum 0.9": 0.1, "AdamW": 3e-3, "SOAP": 5e-3, "Muon": 1e-2},
    "mnist 1024": {"SGD, momentum 0.9": 0.2, "AdamW": 1e-2, "SOAP": 1e-2, "Muon": 4e-2},
    "CNN": {"SGD, momentum 0.9": 0.1, "AdamW": 6e-3, "SOAP": 12e-3, "Muon": 8e-2},
    "cifar10": {"SGD, momentum 0.9": 0.03, "AdamW": 3e-3, "AdaHessian": 0.1, "SOAP": 3e-3, "Muon": 1e-2},
}  # fmt: skip
