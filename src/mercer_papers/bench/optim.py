"""Optimizers side by side: epochs and CPU time to a test accuracy, cost of a step, untuned read-outs, state memory.

Ours runs with no setting at all; the peers at the rates of ``RATES``: the fastest to the target on a sixth of the
training rows, on one seed (``bench.studies.optim_rates``); those of usps and cifar10 come from older sweeps, some on
test rows, which favours the peers. A full run costs about fifteen CPU minutes; with ``-o`` an interrupted one goes on
where it stopped. Muon multiplies in bfloat16: where the processor refuses, ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 may
help.
"""

from __future__ import annotations

import itertools
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.optim import EigenProSGD, FunctionSpaceSGD, KernelSGD
from mercer.optim.kernel_sgd import state_bytes
from mercer.signals.layers import last_linear

from ..data import load
from .timing import Case, Peer

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
        """This task, with a sixth of the training rows in place of the test rows."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))
        check, train = order.split([len(order) // 6, len(order) - len(order) // 6])
        return replace(self, x=self.x[train], y=self.y[train], x_test=self.x[check], y_test=self.y[check])

    def accuracy(self, model: nn.Module) -> float:
        """On the test rows."""
        with torch.no_grad():
            return float((model(self.x_test).argmax(1) == self.y_test).double().mean())


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
    channels, side = (3, 32) if name == "cifar10" else (1, 28)

    def make() -> Task:
        data = load(name, rows=rows)
        if hidden:
            x, x_test = data.x_train.flatten(1), data.x_test.flatten(1)
        else:
            x, x_test = (part.reshape(-1, channels, side, side) - 0.47 for part in (data.x_train, data.x_test))

        def network() -> nn.Module:
            layers: list[nn.Module] = []
            if hidden:
                for width_in, width in itertools.pairwise((x.shape[1], *hidden)):
                    layers += [nn.Linear(width_in, width), nn.ReLU()]
                return nn.Sequential(*layers, nn.Linear(hidden[-1], 10))
            for width_in, width in ((channels, 16), (16, 32)):
                layers += [nn.Conv2d(width_in, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            layers += [nn.Flatten(), nn.Linear(2 * side * side, 128), nn.ReLU(), nn.Linear(128, 10)]
            return nn.Sequential(*layers)

        return Task(x, data.y_train, x_test, data.y_test, network, target, most, seeds, batch, checks)

    return make


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
    # ours, and what comes with torch
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

    def make(model: nn.Module) -> Any:
        import pytorch_optimizer

        kind: Any = getattr(pytorch_optimizer, who)
        if who == "Shampoo":
            return kind(model.parameters(), lr=lr, preconditioning_compute_steps=_PRECONDITION_EVERY)
        if who != "Muon":
            return kind(model.parameters(), lr=lr)
        # Muon takes matrices; the read-out and the vectors go to AdamW inside, as its authors do
        head = last_linear(model)[1].weight
        hidden = [p for p in model.parameters() if p.ndim > 1 and p is not head]
        others = [p for p in model.parameters() if p.ndim <= 1 or p is head]
        groups = [{"params": hidden, "use_muon": True}, {"params": others, "use_muon": False, "lr": 0.1 * lr}]
        return kind(groups, lr=lr)

    return make


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


def _reach(name: str, what: str, repeats: int, most: Mapping[str, float]) -> Case:
    """Epochs to the target: ours untuned, each peer at its own best rate.

    ``most`` are the shares of a peer's CPU time that ours may take, by the peer's name.
    """
    peers = {}
    for who, lr in RATES[name].items():
        needs = () if who in ("SGD", "SGD, momentum 0.9", "AdamW", "KernelSGD") else PEERS
        goals = {"cpu": 1 / most[who]} if who in most else {}
        peers[who] = Peer(train(who, lr), needs, goals)
    return Case(
        what,
        setup=TASKS[name],
        ours=train("FunctionSpaceSGD"),
        peers=peers,
        accuracy=lambda _, epochs: statistics.mean(epochs),
        accuracy_name="mean epochs",
        repeats=repeats,
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
            data = random_features(seed)
            torch.manual_seed(seed)
            model = data.network()
            optimizer = make(model)
            order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
            for rows in order.split(data.batch):
                step(model, optimizer, data.x[rows], data.y[rows], False)
            scores.append(data.accuracy(model))
        return statistics.mean(scores)

    return work


def state_mib(make: Make, *, graph: bool = False, closure: bool = False) -> Callable[[Task], float]:
    """A work: MiB of the optimizer's state after twelve steps."""

    def work(task: Task) -> float:
        model = task.network()
        optimizer: Any = make(model)
        # twelve steps; L-BFGS evaluates the loss itself
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
                step(model, optimizer, x, y, graph)
        return state_bytes(optimizer) / 2**20

    return work


_CHEAPER = {"SOAP": 0.5, "AdaHessian": 0.2}
_RIVALS = ("SGD, momentum 0.9", "AdamW", "SOAP", "Muon")


def _steps(name: str, setup: Callable[[], Task], most: float, count: int) -> Case:
    """The cost of a step; the goal is at most ``most`` times that of SGD."""
    return Case(
        name,
        setup=setup,
        ours=steps(made_by("FunctionSpaceSGD"), count),
        peers={
            "SGD": Peer(steps(made_by("SGD", 0.1), count), goals={"cpu": 1 / most}),
            "SGD, momentum 0.9": Peer(steps(made_by("SGD, momentum 0.9", 0.05), count)),
            "AdamW": Peer(steps(made_by("AdamW", 1e-3), count)),
            "SOAP": Peer(steps(made_by("SOAP", 3e-3), count), needs=PEERS),
            "Muon": Peer(steps(made_by("Muon", 1e-2), count), needs=PEERS),
        },
        accuracy=lambda _, score: float(score),
        accuracy_name="test accuracy",
        better="higher",
        memory=False,
    )


CASES = [
    _reach("digits", "digits to 95 %, 5 seeds", 3, _CHEAPER),
    Case(
        "digits to 95 %: epochs that 4 of 5 seeds need",
        setup=TASKS["digits"],
        ours=train("FunctionSpaceSGD"),
        accuracy=lambda _, epochs: float(sorted(epochs)[3]),
        accuracy_name="epochs",
        limits={"accuracy": 2.0},
        repeats=1,
        memory=False,
    ),
    _reach("usps", "usps to 93 %, 3 seeds", 1, _CHEAPER),
    _reach("mnist 128", "mnist, 60,000 rows, batch 128, to 97 %, 3 seeds", 1, dict.fromkeys(_RIVALS, 0.7)),
    _reach("mnist 1024", "mnist, 60,000 rows, batch 1024, to 97 %, 3 seeds", 1, dict.fromkeys(_RIVALS, 0.7)),
    _reach("CNN", "CNN on mnist, 6,000 rows, batch 128, to 96 %, 3 seeds", 1, dict.fromkeys(_RIVALS, 1.0)),
    _reach("cifar10", "CNN on cifar10, 4,000 rows, to 45 %", 1, {}),
    _steps("200 steps on digits", TASKS["digits"], 1.5, 200),
    _steps("400 steps of 784-256-128-10, batch 128", TASKS["mnist 128"], 1.3, 400),
    _steps("50 steps of a CNN, batch 128", TASKS["CNN"], 1.4, 50),
    Case(
        "EigenProSGD on 200 frozen features, one epoch, untuned",
        setup=random_features,
        ours=after_one_epoch(lambda m: EigenProSGD(m.parameters(), model=m)),
        peers={
            "SGD, best of a sweep": Peer(after_one_epoch(made_by("SGD", 0.1))),
            "momentum, best of a sweep": Peer(after_one_epoch(made_by("SGD, momentum 0.9", 0.1))),
            "AdamW, lr 0.01": Peer(after_one_epoch(made_by("AdamW", 1e-2))),
        },
        accuracy=lambda _, score: float(score),
        accuracy_name="test accuracy",
        better="higher",
        limits={"accuracy": 0.95},
        memory=False,
    ),
    Case(
        "state of 784-100-100-10 after 12 steps",
        setup=TASKS["mnist state"],
        ours=state_mib(made_by("FunctionSpaceSGD")),
        peers={
            "KernelSGD, 12 cached batches": Peer(
                state_mib(lambda m: KernelSGD(m.parameters(), 0.1, model=m, cache=True))
            ),
            "AdaHessian": Peer(state_mib(made_by("AdaHessian", 0.1), graph=True), needs=PEERS),
            "L-BFGS, history 10": Peer(
                state_mib(
                    lambda model: torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1, history_size=10), closure=True
                )
            ),
            "AdamW": Peer(state_mib(made_by("AdamW", 1e-3))),
            "SOAP": Peer(state_mib(made_by("SOAP", 3e-3)), needs=PEERS),
            "Muon": Peer(state_mib(made_by("Muon", 1e-2)), needs=PEERS),
            "Shampoo": Peer(state_mib(made_by("Shampoo", 1e-1)), needs=PEERS),
        },
        accuracy=lambda _, mib: float(mib),
        accuracy_name="state, MiB",
        repeats=1,
        memory=False,
    ),
]
