"""Optimizers side by side: epochs and CPU time to a test accuracy, cost of a step, untuned read-outs, state memory.

Ours runs with no setting at all; the peers at the rates of :mod:`mercer_papers.bench.optim_fits`. A full
run costs about fifteen CPU minutes; with ``-o`` an interrupted one goes on where it stopped. Muon multiplies in
bfloat16: where the processor refuses, ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 may help.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.optim import EigenProSGD, KernelSGD
from mercer.optim.kernel_sgd import state_bytes

from ..data import load
from .optim_fits import PEERS, RATES, TASKS, Make, Task, made_by, step, steps, train
from .timing import Case, Peer


def _reach(name: str, what: str, repeats: int, most: Mapping[str, float]) -> Case:
    """Epochs to the target: ours untuned, each peer at its own best rate.

    ``most`` are the shares of a peer's CPU time that ours may take, by the peer's name.
    """
    ours = ("SGD", "SGD, momentum 0.9", "AdamW", "KernelSGD")
    peers = {
        who: Peer(
            train(who, lr), needs=() if who in ours else PEERS, goals={"cpu": 1 / most[who]} if who in most else {}
        )
        for who, lr in RATES[name].items()
    }
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


def _epochs_of_four() -> Case:
    """The epochs in which four of five seeds are there."""
    return Case(
        "digits to 95 %: epochs that 4 of 5 seeds need",
        setup=TASKS["digits"],
        ours=train("FunctionSpaceSGD"),
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
                step(model, optimizer, own.x[rows], own.y[rows], False)
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
                step(model, optimizer, x, y, graph)
        return state_bytes(optimizer) / 2**20

    return work


_CHEAPER = {"SOAP": 0.5, "AdaHessian": 0.2}
_RIVALS = ("SGD, momentum 0.9", "AdamW", "SOAP", "Muon")


def _steps(name: str, setup: Callable[[], Task], most: float, count: int) -> Case:
    """What a step costs; at most ``most`` times one of SGD."""
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
    _epochs_of_four(),
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
        ours=held(made_by("FunctionSpaceSGD")),
        peers={
            "KernelSGD, 12 cached batches": Peer(held(lambda m: KernelSGD(m.parameters(), 0.1, model=m, cache=True))),
            "AdaHessian": Peer(held(made_by("AdaHessian", 0.1), graph=True), needs=PEERS),
            "L-BFGS, history 10": Peer(
                held(
                    lambda model: torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1, history_size=10), closure=True
                )
            ),
            "AdamW": Peer(held(made_by("AdamW", 1e-3))),
            "SOAP": Peer(held(made_by("SOAP", 3e-3)), needs=PEERS),
            "Muon": Peer(held(made_by("Muon", 1e-2)), needs=PEERS),
            "Shampoo": Peer(held(made_by("Shampoo", 1e-1)), needs=PEERS),
        },
        accuracy=lambda _, mib: float(mib),
        accuracy_name="state, MiB",
        repeats=1,
        memory=False,
    ),
]
