"""Uncertainty of a network trained on digits: ours in k directions, exact, KFAC, each at the prior it prefers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import metrics
from ..bayes import KroneckerLaplace, LinearizedLaplace
from .timing import Case, Peer

_PRECISIONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True)
class Task:
    """A network trained on 300 digits till it is too sure, rows to choose the prior on and rows to predict."""

    network: nn.Module
    x: Tensor
    y: Tensor
    test: Tensor
    labels: Tensor
    val: tuple[Tensor, Tensor]
    far: Tensor


def _task() -> Task:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.as_tensor(images)[order].float() / 16, torch.as_tensor(labels)[order]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(1000):
        loss = F.cross_entropy(network(x[:300]), y[:300])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    far = torch.rand(400, 64, generator=torch.Generator().manual_seed(1))
    return Task(network, x[:300], y[:300], x[600:1000], y[600:1000], (x[1000:1300], y[1000:1300]), far)


def _ours(task: Task, *, k: int = 20, complement: bool = True) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    laplace = LinearizedLaplace(task.network, k=k, complement=complement, generator=generator).fit(
        (task.x, task.y), task.val
    )
    laplace.predict_proba(task.test)
    return laplace.predict_proba


def _map(task: Task) -> Callable[[Tensor], Tensor]:
    return lambda rows: task.network(rows).detach().softmax(1)


def _kronecker(task: Task) -> Callable[[Tensor], Tensor]:
    laplace = KroneckerLaplace(task.network).fit((task.x, task.y))
    scores = []
    for precision in _PRECISIONS:
        laplace.prior_precision = precision
        scores.append(metrics.nll(laplace.predict_proba(task.val[0]), task.val[1]))
    laplace.prior_precision = _PRECISIONS[scores.index(min(scores))]
    laplace.predict_proba(task.test)
    return laplace.predict_proba


def _nll(task: Task, proba: Callable[[Tensor], Tensor]) -> float:
    return metrics.nll(proba(task.test), task.labels)


def _far(task: Task, proba: Callable[[Tensor], Tensor]) -> float:
    return metrics.auroc(-proba(task.test).amax(1), -proba(task.far).amax(1))


_PEERS = {
    "exact, all 1,810 directions": Peer(partial(_ours, k=10**6), goals={"cpu": 1.0}),
    "ours, k = 100": Peer(partial(_ours, k=100)),
    "ours, k = 20, no complement": Peer(partial(_ours, complement=False)),
    "KFAC, our own": Peer(_kronecker),
    "MAP": Peer(_map),
}

CASES = [
    Case(
        "digits MLP, k = 20, fit and predict: NLL",
        setup=_task,
        ours=_ours,
        peers=_PEERS,
        accuracy=_nll,
        accuracy_name="NLL",
        repeats=1,
    ),
    Case(
        "digits MLP, k = 20: AUROC against noise",
        setup=_task,
        ours=_ours,
        peers=_PEERS,
        accuracy=_far,
        accuracy_name="AUROC",
        better="higher",
        repeats=1,
        memory=False,
    ),
]
