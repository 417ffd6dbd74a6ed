"""Uncertainty of small networks, three seeds each: log-loss beside a temperature, strangers beside three networks.

Validation rows choose, others score. laplace-torch pins other versions of its dependencies than ours, so it takes part
where this runs in its environment (docs/papers/deng2022.md has the commands). The entry ``deng2022/lla`` has a
ResNet-20.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer import metrics
from mercer.bayes import DeepEnsemble, Familiarity, KroneckerLaplace, LinearizedLaplace, TemperatureScaling
from mercer.linalg.blocks import slices
from mercer.signals.embedding import embeddings

from ..data import load
from .timing import Case, Peer

SEEDS = (0, 1, 2)
Reader = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """Networks trained apart (the first is the one asked about), rows to learn, choose and score on, strangers."""

    networks: list[nn.Module]
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    strangers: dict[str, Tensor]
    readers: dict[str, Reader] = field(default_factory=dict)

    def reader(self, name: str, make: Callable[[Task], Reader]) -> Reader:
        """The fitted posterior or score, made once: what is timed is prediction."""
        if name not in self.readers:
            self.readers[name] = make(self)
        return self.readers[name]


def digits(seed: int) -> Task:
    """MLP 64-24-10 on 300 of scikit-learn's digits; uniform noise for strangers."""
    data = load("digits", seed=seed)
    x, y = data.x_train.flatten(1), data.y_train
    x_test = data.x_test.flatten(1)
    noise = torch.rand(len(x_test), 64, generator=torch.Generator().manual_seed(seed)) * float(x.max())
    networks = [
        train(lambda: nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10)), x[:300], y[:300], part)
        for part in _seeds_of_networks(seed)
    ]
    return Task(networks, (x[:300], y[:300]), (x[300:700], y[300:700]), (x_test, data.y_test), {"noise": noise})


def pictures(name: str, side: int, seed: int) -> Task:
    """A LeNet-like network, 44,000 weights on MNIST, on 2,000 rows; four kinds of strangers."""
    data = load(name, rows=(6000, 1000))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.x_train), generator=generator)
    x, y = data.x_train[order].reshape(-1, 1, side, side).float(), data.y_train[order]
    test = data.x_test.reshape(-1, 1, side, side).float()
    # strangers: other pictures and noise in the range of the rows, and test rows turned or blurred by a Gaussian
    low, high = x.min(), x.max()
    weights = torch.exp(-torch.arange(-4.0, 5.0).square() / (2 * 2.0**2))
    column = (weights / weights.sum()).reshape(1, 1, 9, 1)
    down = F.conv2d(F.pad(test[:500], (0, 0, 4, 4), mode="reflect"), column)
    grey = F.interpolate(load("cifar10", rows=(1, 500)).x_test.mean(1, keepdim=True), (side, side))
    strangers = {
        "CIFAR-10": low + grey * (high - low),
        "noise": low + torch.rand(500, 1, side, side, generator=generator) * (high - low),
        "rotated": test[:500].rot90(1, (2, 3)),
        "blurred": F.conv2d(F.pad(down, (4, 4, 0, 0), mode="reflect"), column.mT),
    }
    make = partial(lenet, side)
    networks = [train(make, x[:2000], y[:2000], part, 470, 2e-3, 64) for part in _seeds_of_networks(seed)]
    return Task(networks, (x[:2000], y[:2000]), (x[2000:3000], y[2000:3000]), (test, data.y_test), strangers)


mnist, usps = partial(pictures, "mnist", 28), partial(pictures, "usps", 16)


def lenet(side: int) -> nn.Sequential:
    """Two convolutions, three linear layers."""
    width = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * width**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def train(
    make: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    seed: int,
    steps: int = 1000,
    lr: float = 5e-3,
    batch: int = 100,
) -> nn.Module:
    """Adam without weight decay, on minibatches."""
    # weights of their own seed, whatever was drawn before
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr)
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,), generator=generator)
        loss = F.cross_entropy(network(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def _seeds_of_networks(seed: int) -> range:
    return range(10 * seed, 10 * seed + 3)


@lru_cache(maxsize=3)
def tasks(make: Callable[[int], Task]) -> list[Task]:
    """One for each seed, shared by the cases of a data set."""
    return [make(seed) for seed in SEEDS]


def laplace(task: Task, **options: Any) -> Reader:
    """`LinearizedLaplace`."""
    posterior = LinearizedLaplace(task.networks[0], generator=torch.Generator().manual_seed(0), **options)
    return posterior.fit(task.train, task.val).predict_proba


def kronecker(task: Task) -> Reader:
    """`KroneckerLaplace`."""
    return KroneckerLaplace(task.networks[0], prior_precision="validation").fit(task.train, task.val).predict_proba


def temperature(task: Task) -> Reader:
    """One number on the network's outputs."""
    return TemperatureScaling(task.networks[0]).fit(task.train, task.val).predict_proba


def ensemble(task: Task) -> Reader:
    """Three networks, with a temperature."""
    return DeepEnsemble(task.networks).fit(task.train, task.val).predict_proba


def laplace_torch(task: Task, *, subset: str, structure: str, val_rows: int = 400) -> Reader:
    """laplace-torch, linearised, probit link; its kron predicts so slowly that few rows must choose the prior."""
    from laplace import Laplace  # type: ignore[import-not-found]

    # fit as its authors do, on a loader
    posterior: Any = Laplace(task.networks[0], "classification", subset_of_weights=subset, hessian_structure=structure)
    pairs = torch.utils.data.TensorDataset(*task.train)
    posterior.fit(torch.utils.data.DataLoader(pairs, batch_size=100))

    def batches(rows: Tensor) -> Tensor:
        ask = partial(posterior, pred_type="glm", link_approx="probit")
        return torch.cat([ask(rows[part]).detach() for part in slices(len(rows), 100)])

    def loss(precision: float) -> float:
        posterior.prior_precision = torch.tensor([precision])
        return metrics.nll(batches(task.val[0][:val_rows]), task.val[1][:val_rows])

    # the prior precision that the validation rows like best
    best = min(torch.logspace(-2, 5, 12, dtype=torch.float64).tolist(), key=loss)
    posterior.prior_precision = torch.tensor([best])
    return batches


def network_itself(task: Task) -> Reader:
    """MAP."""
    return lambda rows: torch.cat([task.networks[0](part).detach().softmax(1) for part in rows.split(256)])


def familiarity(task: Task) -> Reader:
    """`Familiarity`."""
    return Familiarity(task.networks[0], generator=torch.Generator().manual_seed(0)).fit(task.train, task.val).score


def by_outputs(task: Task, *, measure: Callable[[Tensor], Tensor]) -> Reader:
    """A measure of the network's own outputs."""
    return lambda rows: measure(torch.cat([task.networks[0](part).detach() for part in rows.split(256)]))


def by_ensemble(task: Task) -> Reader:
    """Entropy of the mean probabilities of three networks."""
    reader = DeepEnsemble(task.networks).predict_proba
    return lambda rows: torch.distributions.Categorical(probs=reader(rows)).entropy()


def mahalanobis(task: Task) -> Reader:
    """Least distance from a class's mean, in the shared covariance of the last hidden layer (Lee et al. 2018)."""
    (x, y), read = task.train, partial(embeddings, task.networks[0])
    z = read(x).double()
    means = torch.stack([z[y == label].mean(0) for label in y.unique()])
    spread = torch.cov((z - means[y.unique(return_inverse=True)[1]]).mT) + 1e-4 * torch.eye(z.shape[1])
    root = torch.linalg.cholesky(torch.linalg.inv(spread))
    return lambda rows: torch.cdist(read(rows).double() @ root, means @ root).amin(1)


def nearest(task: Task) -> Reader:
    """Distance to the fifth nearest training row in the last hidden layer (Sun et al. 2022)."""
    read = partial(embeddings, task.networks[0])
    z = F.normalize(read(task.train[0]))
    return lambda rows: torch.cdist(F.normalize(read(rows)), z).kthvalue(5, 1).values


@dataclass(frozen=True)
class Answer:
    """The prediction of one contender for the test rows of one seed."""

    task: Task
    reader: Reader
    said: Tensor


def predict(name: str, make: Callable[[Task], Reader], found: list[Task]) -> list[Answer]:
    """The timed work: the test rows of every seed. The first, untimed round fits."""
    readers = [task.reader(name, make) for task in found]
    return [Answer(task, reader, reader(task.test[0])) for task, reader in zip(found, readers, strict=True)]


def nll(answer: Answer) -> float:
    """Log loss of the test rows."""
    return metrics.nll(answer.said, answer.task.test[1])


def ece(answer: Answer) -> float:
    """Calibration error of the test rows."""
    return metrics.ece(answer.said, answer.task.test[1])


def auroc(answer: Answer) -> float:
    """The worst over the kinds of strangers."""
    rows = answer.task.strangers.values()
    return min(metrics.auroc(answer.said, answer.reader(stranger).contiguous()) for stranger in rows)


Contender = tuple[Callable[[Task], Reader], dict[str, float]]
POSTERIORS: dict[str, Contender] = {
    "MAP": (network_itself, {"cpu": 1 / 3}),
    "temperature": (temperature, {"accuracy": 1.0}),
    "ensemble of 3": (ensemble, {}),
    "all weights, k = 20, network": (partial(laplace, parameters="all", eigenfunctions="network"), {}),
    "laplace-torch, last layer": (partial(laplace_torch, subset="last_layer", structure="full"), {"accuracy": 1.0}),
}
DIGITS_ONLY: dict[str, Contender] = {
    "all weights, exact": (partial(laplace, parameters="all", k=10**6), {}),
    "all weights, k = 20": (partial(laplace, parameters="all", k=20), {}),
    "KFAC": (kronecker, {}),
    "laplace-torch, kron": (partial(laplace_torch, subset="all", structure="kron", val_rows=100), {}),
}
SCORES: dict[str, Contender] = {
    "max probability": (partial(by_outputs, measure=lambda f: -f.softmax(1).amax(1)), {}),
    "entropy": (partial(by_outputs, measure=lambda f: torch.distributions.Categorical(logits=f).entropy()), {}),
    "energy": (partial(by_outputs, measure=lambda f: -f.logsumexp(1)), {"accuracy": 1.0}),
    "Mahalanobis": (mahalanobis, {"accuracy": 1.0}),
    "5-NN": (nearest, {"accuracy": 1.0}),
    "ensemble of 3, entropy": (by_ensemble, {"accuracy": 1.0}),
}
_MEASURES = {"NLL": (nll, "lower"), "ECE": (ece, "lower"), "AUROC, worst stranger": (auroc, "higher")}


def _case(title: str, make: Callable[[int], Task], measure: str) -> Case:
    score, better = _MEASURES[measure]
    # who takes part: posteriors, or scores of strangers
    ours: Callable[[Task], Reader]
    if score is auroc:
        name, ours, contenders = "Familiarity", familiarity, SCORES
    else:
        name, ours, contenders = "mercer", partial(laplace, parameters="last"), POSTERIORS
        if make is digits:
            contenders = POSTERIORS | DIGITS_ONLY
    peers = {}
    for peer, (build, goals) in contenders.items():
        needs = ("laplace",) if peer.startswith("laplace-torch") else ()
        peers[peer] = Peer(partial(predict, peer, build), needs, {} if score is ece else goals)
    return Case(
        f"{title}, predict: {measure}",
        setup=partial(tasks, make),
        ours=partial(predict, name, ours),
        peers=peers,
        accuracy=lambda _, answers: sum(map(score, answers)) / len(answers),
        accuracy_name=f"{measure}, mean of 3 seeds",
        better=better,
        repeats=1 if score is ece else 3,  # the posteriors of the first case serve the others
        memory=False,
    )


_TASKS: dict[str, Callable[[int], Task]] = {"digits MLP": digits, "MNIST LeNet": mnist, "USPS LeNet": usps}
CASES = [_case(title, make, measure) for title, make in _TASKS.items() for measure in _MEASURES]
