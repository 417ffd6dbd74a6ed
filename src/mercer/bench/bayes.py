"""Uncertainty of small networks, three seeds each: prediction's cost, NLL, ECE, and rows from elsewhere.

Every posterior chooses its prior on the same validation rows. laplace-torch pins other versions of its dependencies
than ours, so it takes part where this runs in its environment (docs/papers/deng2022.md has the commands).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import metrics
from ..bayes import KroneckerLaplace, LinearizedLaplace
from ..bayes.likelihood import Softmax
from ..bayes.links import Probit
from ..data import load
from ..kernels import Tangents
from ..linalg import slices
from .timing import Case, Peer

SEEDS = (0, 1, 2)
PRECISIONS: list[float] = torch.logspace(-2, 5, 36, dtype=torch.float64).tolist()
Reader = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """A network trained until it is too sure, rows to choose the prior on, rows to predict, rows from elsewhere."""

    network: nn.Module
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    elsewhere: Tensor
    readers: dict[str, Reader] = field(default_factory=dict)

    def reader(self, name: str, make: Callable[[Task], Reader]) -> Reader:
        """The fitted posterior, made once: what is timed is prediction."""
        if name not in self.readers:
            self.readers[name] = make(self)
        return self.readers[name]


def digits(seed: int) -> Task:
    """MLP 64-24-10 on 300 of scikit-learn's digits; uniform noise from elsewhere."""
    data = load("digits", seed=seed)
    x, y = data.x_train.flatten(1), data.y_train
    x_test = data.x_test.flatten(1)
    top = float(x.max())
    noise = torch.rand(len(x_test), 64, generator=torch.Generator().manual_seed(seed)) * top
    network = trained(lambda: nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10)), x[:300], y[:300], seed)
    return Task(network, (x[:300], y[:300]), (x[300:700], y[300:700]), (x_test, data.y_test), noise)


def mnist(seed: int) -> Task:
    """Two convolutions and a linear layer, 2,202 weights, on 1,000 rows of MNIST; grey CIFAR-10 from elsewhere."""
    return _pictures("mnist", seed, 28, lambda: _cnn(8 * 16))


def usps(seed: int) -> Task:
    """The same with filters of 3 x 3, 1,066 weights, on 1,000 rows of USPS."""
    return _pictures("usps", seed, 16, lambda: _cnn(8 * 9, kernel=3))


def trained(make: Callable[[], nn.Module], x: Tensor, y: Tensor, seed: int, steps: int = 1000) -> nn.Module:
    """Adam without weight decay, on minibatches of 100."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (100,), generator=generator)
        loss = F.cross_entropy(network(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def _cnn(width: int, kernel: int = 5) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, kernel, stride=2), nn.ReLU(), nn.Conv2d(4, 8, kernel, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(width, 10),
    )  # fmt: skip


def _pictures(name: str, seed: int, side: int, make: Callable[[], nn.Module]) -> Task:
    data = load(name, rows=(6000, 500))
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(seed))
    x, y = data.x_train[order].reshape(-1, 1, side, side).float(), data.y_train[order]
    elsewhere = F.interpolate(load("cifar10", rows=(1, 500)).x_test.mean(1, keepdim=True), (side, side))
    low, high = x.min(), x.max()
    elsewhere = low + elsewhere * (high - low)
    network = trained(make, x[:1000], y[:1000], seed)
    test = data.x_test.reshape(-1, 1, side, side).float(), data.y_test
    return Task(network, (x[:1000], y[:1000]), (x[1000:1500], y[1000:1500]), test, elsewhere)


@lru_cache(maxsize=3)
def tasks(make: Callable[[int], Task]) -> list[Task]:
    """One for each seed, shared by the cases of a data set."""
    return [make(seed) for seed in SEEDS]


def ours(task: Task, *, k: int, complement: bool = True, eigenfunctions: str = "network") -> Reader:
    """`LinearizedLaplace`."""
    generator = torch.Generator().manual_seed(0)
    laplace = LinearizedLaplace(
        task.network, k=k, complement=complement, eigenfunctions=eigenfunctions, generator=generator
    )
    return laplace.fit(task.train, task.val).predict_proba


def exact(task: Task) -> Reader:
    """All weights, by dense Jacobians and the eigenvectors of the Gauss-Newton matrix."""
    x = task.train[0].double()
    tangents = Tangents(task.network, x, lambda f: f)
    ggn = torch.zeros(tangents.size, tangents.size, dtype=torch.float64)
    for part in slices(len(x), 50):
        f = tangents.call(tangents.theta, x[part])
        j = torch.cat(tangents.jacobian(x[part]), 2)  # (n, c, p)
        eye = torch.eye(f.shape[1], dtype=f.dtype).expand(len(f), -1, -1)
        weighted = (Softmax().curvature_root(f, eye).mT @ j).flatten(0, 1)
        ggn += weighted.mT @ weighted
    values, vectors = torch.linalg.eigh(ggn)

    def moments(rows: Tensor) -> tuple[Tensor, Tensor]:  # -> (n, c), (n, c, p)
        found = [_turned(tangents, rows[part].double(), vectors) for part in slices(len(rows), 50)]
        return torch.cat([f for f, _ in found]), torch.cat([squares for _, squares in found])

    f, squares = moments(task.val[0])
    spread = values.clamp_min(0)
    precision = _chosen(lambda p: Probit()(f, squares @ (1 / (spread + p))), task)

    def predict(rows: Tensor) -> Tensor:
        f, squares = moments(rows)
        return Probit()(f, squares @ (1 / (spread + precision)))

    return predict


def _turned(tangents: Tangents, x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    return tangents.call(tangents.theta, x), (torch.cat(tangents.jacobian(x), 2) @ vectors).square()


def own_kronecker(task: Task) -> Reader:
    """`KroneckerLaplace`, of linear layers only."""
    laplace = KroneckerLaplace(task.network).fit(task.train)

    def at(precision: float) -> Tensor:
        laplace.prior_precision = precision
        return laplace.predict_proba(task.val[0])

    laplace.prior_precision = _chosen(at, task)
    return laplace.predict_proba


def laplace_torch(task: Task, *, subset: str, structure: str, val_rows: int = 400) -> Reader:
    """laplace-torch, linearised, probit link; its kron predicts so slowly that few rows must choose the prior."""
    from laplace import Laplace  # type: ignore[import-not-found]

    laplace: Any = Laplace(task.network, "classification", subset_of_weights=subset, hessian_structure=structure)
    pairs = torch.utils.data.TensorDataset(*task.train)
    laplace.fit(torch.utils.data.DataLoader(pairs, batch_size=100))
    batches = partial(_in_batches, lambda rows: laplace(rows, pred_type="glm", link_approx="probit").detach())

    def at(precision: float) -> Tensor:
        laplace.prior_precision = torch.tensor([precision])
        return batches(task.val[0][:val_rows])

    coarse = PRECISIONS[::3]
    labels = task.val[1][:val_rows]
    scores = [metrics.nll(at(p), labels) for p in coarse]
    laplace.prior_precision = torch.tensor([coarse[scores.index(min(scores))]])
    return batches


def _in_batches(f: Reader, rows: Tensor) -> Tensor:
    return torch.cat([f(rows[part]) for part in slices(len(rows), 100)])


def network_itself(task: Task) -> Reader:
    """MAP."""
    return lambda rows: task.network(rows).detach().softmax(1)


def _chosen(proba: Callable[[float], Tensor], task: Task) -> float:
    scores = [metrics.nll(proba(p), task.val[1]) for p in PRECISIONS]
    return PRECISIONS[scores.index(min(scores))]


@dataclass(frozen=True)
class Answer:
    """What one posterior says about the test rows of one seed."""

    task: Task
    reader: Reader
    proba: Tensor


def predicted(name: str, make: Callable[[Task], Reader], found: list[Task]) -> list[Answer]:
    """The timed work: the test rows of every seed. The first, untimed round fits."""
    readers = [task.reader(name, make) for task in found]
    return [Answer(task, reader, reader(task.test[0])) for task, reader in zip(found, readers, strict=True)]


def nll(answer: Answer) -> float:
    """Of the test rows."""
    return metrics.nll(answer.proba, answer.task.test[1])


def ece(answer: Answer) -> float:
    """Of the test rows."""
    return metrics.ece(answer.proba, answer.task.test[1])


def auroc(answer: Answer) -> float:
    """Test rows against rows from elsewhere, by the largest probability."""
    return metrics.auroc(-answer.proba.amax(1), -answer.reader(answer.task.elsewhere).amax(1))


def _mean(score: Callable[[Answer], float], _: list[Task], answers: list[Answer]) -> float:
    return sum(map(score, answers)) / len(answers)


Contender = tuple[Callable[[Task], Reader], dict[str, float]]
EVERYWHERE: dict[str, Contender] = {
    "exact": (exact, {"accuracy": 0.995}),
    "by derivatives, k = 20": (partial(ours, k=20, eigenfunctions="derivatives"), {}),
    "by derivatives, k = 100": (partial(ours, k=100, eigenfunctions="derivatives"), {}),
    "k = 20, no complement": (partial(ours, k=20, complement=False, eigenfunctions="derivatives"), {}),
    "k = 100, no complement": (partial(ours, k=100, complement=False, eigenfunctions="derivatives"), {}),
    "MAP": (network_itself, {}),
    "laplace-torch, kron": (partial(laplace_torch, subset="all", structure="kron", val_rows=100), {"cpu": 50.0}),
    "laplace-torch, last layer": (partial(laplace_torch, subset="last_layer", structure="full"), {"cpu": 1.0}),
}
DIGITS_ONLY: dict[str, Contender] = {  # our KFAC is of linear layers; the other has a hundred functions to learn
    "KFAC, our own": (own_kronecker, {}),
    "network, k = 100": (partial(ours, k=100), {}),
}
_SCORES = {"NLL": (nll, "lower"), "ECE": (ece, "lower"), "AUROC": (auroc, "higher")}


def _case(title: str, make: Callable[[int], Task], measure: str) -> Case:
    score, better = _SCORES[measure]
    contenders = EVERYWHERE | DIGITS_ONLY if make is digits else EVERYWHERE
    return Case(
        f"{title}, k = 20, predict: {measure}",
        setup=partial(tasks, make),
        ours=partial(predicted, "mercer", partial(ours, k=20)),
        peers={
            name: Peer(
                partial(predicted, name, build),
                ("laplace",) if name.startswith("laplace-torch") else (),
                goals if measure == "NLL" else {},
            )
            for name, (build, goals) in contenders.items()
        },
        accuracy=partial(_mean, score),
        accuracy_name=f"{measure}, mean of 3 seeds",
        better=better,
        repeats=3 if measure == "NLL" else 1,  # the posteriors of the first case serve the others
        memory=False,
    )


CASES = [
    _case(title, make, measure)
    for title, make in {"digits MLP": digits, "MNIST CNN": mnist, "USPS CNN": usps}.items()
    for measure in _SCORES
]
