"""The methods whose growth is measured, with the monomials in n, d, c and k that their costs are sums of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.bayes import LinearizedLaplace
from mercer.features import NeuralEigenfunctions, Nystrom, RandomFourier
from mercer.kernels import NTK, RBF, RadialSeries, ReLUGram
from mercer.layerwise import KernelNetworkClassifier
from mercer.linalg.distances import unit_rows
from mercer.nn import KernelClassifier
from mercer.optim import EigenProSGD, FunctionSpaceSGD
from mercer.spectral import analyze

LETTERS = ("n", "d", "c", "k")
Size = Mapping[str, int]
_ROWS = {"n", "r", "g"}  # all rows, and bounded numbers of them that are dealt over the ranks in the same way
_STEPS = 20
_BATCH = 64


def monomial(term: str, values: Mapping[str, float]) -> float:
    """The value of a term, a product of letters with an exponent: ``"n^2 d"`` at n = 10, d = 3 is 300; ``"1"`` is 1."""
    product = 1.0
    for factor in term.split():
        letter, _, power = factor.partition("^")
        if letter != "1":
            product *= values[letter] ** int(power or 1)
    return product


@dataclass(frozen=True)
class Method:
    """A method whose growth is measured.

    Args:
        name: as the command line has it.
        what: the work that is timed.
        letters: what n, d, c and k count here; a letter that is left out plays no part.
        base: the size at which the other letters stay while one grows.
        axes: for each letter the sizes measured, two decades or what memory and time allow.
        seconds: the terms that the CPU time is a sum of; their coefficients are measured.
        memory: the same for the peak.
        setup: makes the data for a size, untimed.
        work: the work.
        share: of the work that is reported: 0.05 for one step of twenty.
        derived: further letters that terms may use, from the size.
        shared: whether ranks share the terms that grow with the rows.
        whole: of those the ones that every rank pays in full all the same, such as rows that all need.
    """

    name: str
    what: str
    letters: Mapping[str, str]
    base: Size
    axes: Mapping[str, tuple[int, ...]]
    seconds: tuple[str, ...]
    memory: tuple[str, ...]
    setup: Callable[[Size], Any]
    work: Callable[[Any], Any]
    share: float = 1.0
    derived: Mapping[str, Callable[[Size], float]] = field(default_factory=dict)
    shared: bool = True
    whole: tuple[str, ...] = ()

    def sizes(self) -> list[dict[str, int]]:
        """The sizes to measure: along each axis, the others at the base; each once."""
        along = [{**self.base, letter: value} for letter, values in self.axes.items() for value in values]
        return list({tuple(size.items()): size for size in along}.values())

    def values(self, size: Size) -> dict[str, float]:
        """The letters of a size, the derived ones included."""
        return {**size, **{letter: make(size) for letter, make in self.derived.items()}}

    def divides(self, term: str) -> bool:
        """Whether ranks share a term: it grows with the rows, and the method is a sum over them."""
        letters = {factor.partition("^")[0] for factor in term.split()}
        return self.shared and term not in self.whole and bool(letters & _ROWS)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _rows(n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=_generator())


def _clusters(n: int, d: int, c: int) -> tuple[Tensor, Tensor]:
    """Rows around c centres, and whose they are."""
    generator = _generator()
    centres = torch.randn(c, d, generator=generator)
    y = torch.randint(c, (n,), generator=generator)
    y[:c] = torch.arange(c)[:n]
    return 0.7 * torch.randn(n, d, generator=generator) + centres[y], y


def _make_at_seed(make: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def _spectrum(data: tuple[Tensor, Tensor]) -> float:
    spectrum = analyze(ReLUGram(), data[0], data[1], storage="float32", tolerance=1e-4)
    spectrum.convergence(1e-4, 100)
    return spectrum.complexity


def _head(size: Size) -> tuple[KernelClassifier, Tensor, Tensor]:
    head = _make_at_seed(lambda: KernelClassifier(size["d"], size["c"], RadialSeries(), prototypes=size["k"]))
    z = _rows(size["n"], size["d"]).requires_grad_()
    return head, z, torch.randn(size["n"], size["c"], generator=_generator())


def _through_head(data: tuple[KernelClassifier, Tensor, Tensor]) -> None:
    head, z, grad = data
    torch.autograd.backward(head(z), grad)
    z.grad = None
    head.zero_grad()


def _classifier(size: Size) -> tuple[nn.Module, Tensor, Tensor]:
    d, c = size["d"], size["c"]
    model = _make_at_seed(lambda: nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, c)))
    return model, *_clusters(size["n"], d, c)


def _twenty_steps(data: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = data
    optimizer = FunctionSpaceSGD(model.parameters(), 0.01, model=model)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.close()


def _read_out(size: Size) -> tuple[nn.Module, Tensor, Tensor, int]:
    model = _make_at_seed(lambda: nn.Linear(size["d"], size["c"]))
    return model, *_clusters(size["n"], size["d"], size["c"]), size["k"]


def _epoch(data: tuple[nn.Module, Tensor, Tensor, int]) -> None:
    model, x, y, k = data
    optimizer = EigenProSGD(model.parameters(), model=model, k=k)
    for rows, labels in zip(x.split(_BATCH), y.split(_BATCH), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    optimizer.close()


def _two_layers(size: Size) -> tuple[LinearizedLaplace, Tensor, Tensor]:
    model = _make_at_seed(lambda: nn.Sequential(nn.Linear(64, size["d"]), nn.Tanh(), nn.Linear(size["d"], size["c"])))
    laplace = LinearizedLaplace(model, parameters="all", k=size["k"], prior_precision=1.0, generator=_generator())
    return laplace, *_clusters(size["n"], 64, size["c"])


def _fitted_laplace(size: Size) -> tuple[LinearizedLaplace, Tensor]:
    laplace, x, y = _two_layers(size)
    n = max(128, size["c"])
    return laplace.fit((x[:n], y[:n])), x


def _fit_network(data: tuple[Tensor, Tensor, int]) -> KernelNetworkClassifier:
    x, y, k = data
    return KernelNetworkClassifier(landmarks=k, random_state=0).fit(x, y)


def _fitted_network(size: Size) -> tuple[KernelNetworkClassifier, Tensor]:
    n = size["k"] + 1000
    x, y = _clusters(size["n"] + n, size["d"], size["c"])
    return _fit_network((x[:n], y[:n], size["k"])), x[n:]


def _parameters(size: Size) -> float:
    return 65 * size["d"] + (size["d"] + 1) * size["c"]


_Sizes = tuple[dict[str, str], dict[str, int], dict[str, tuple[int, ...]]]  # what, in the middle, along each axis
_LAPLACE: _Sizes = (
    {"n": "rows", "d": "hidden units", "c": "classes", "k": "directions"},
    {"n": 500, "d": 32, "c": 10, "k": 20},
    {
        "n": (128, 405, 1280, 4048, 12_800),
        "d": (8, 25, 80, 253, 800),
        "c": (2, 10, 20, 63, 200),
        "k": (2, 6, 20, 63, 200),
    },
)


def _network_sizes(*rows: int) -> _Sizes:
    """The sizes of a kernel network; fitting and predicting are measured on other numbers of rows."""
    return (
        {"n": "rows", "d": "columns", "c": "classes", "k": "landmarks"},
        {"n": 6000, "d": 20, "c": 5, "k": 500},
        {"n": rows, "d": (5, 16, 50, 158, 500), "c": (2, 6, 20, 63, 200), "k": (50, 158, 500, 1581, 5000)},
    )


_MAP: _Sizes = (
    {"n": "rows", "d": "columns", "k": "features"},
    {"n": 5000, "d": 64, "k": 128},
    {"n": (1000, 3162, 10_000, 31_623, 100_000), "d": (8, 25, 80, 253, 800), "k": (16, 51, 160, 506, 1600)},
)
# of work that meets every row with every other: the base and the axes
_SQUARE_BASE = {"n": 2000, "d": 50, "c": 1}
_SQUARE_AXES = {"n": (200, 632, 2000, 6325, 20_000), "d": (8, 50, 80, 253, 800), "c": (1, 3, 10, 32, 100)}

METHODS = (
    Method(
        "kernel-matmul",
        "RBF().matmul(x, None, v), float32",
        {"n": "rows of x", "d": "columns of x", "c": "columns of v"},
        _SQUARE_BASE,
        _SQUARE_AXES,
        ("n", "n^2", "n^2 d", "n^2 c"),
        ("n", "b", "n d", "n c"),
        lambda s: (_rows(s["n"], s["d"]), _rows(s["n"], s["c"])),
        lambda data: RBF(0.01).matmul(data[0], None, data[1]),
        derived={"b": lambda s: min(s["n"] ** 2, 2**24 / 3)},  # a block of the Gram matrix is at most 64 MiB
        whole=("n d", "n c"),  # each rank's rows of K meet all of x
    ),
    Method(
        "nystrom",
        "Nystrom(RBF(), k).fit_transform(x), float32",
        {**_MAP[0], "k": "landmarks"},
        *_MAP[1:],
        ("n", "n k", "n k d", "n k^2", "k^3"),
        ("n k", "n d", "k^2"),
        lambda s: (_rows(s["n"], s["d"]), s["k"]),
        lambda data: Nystrom(RBF(1 / data[0].shape[1]), data[1], generator=_generator()).fit_transform(data[0]),
    ),
    Method(
        "random-fourier",
        "RandomFourier(RBF(), k).fit_transform(x), float32",
        *_MAP,
        ("n d", "n k", "n k d"),
        ("n k", "n d", "k d"),
        lambda s: (_rows(s["n"], s["d"]), s["k"]),
        lambda data: RandomFourier(RBF(1 / data[0].shape[1]), data[1], generator=_generator()).fit_transform(data[0]),
    ),
    Method(
        "neural-eigenfunctions",
        "NeuralEigenfunctions(RBF(), k).fit_transform(x), by landmarks",
        {"n": "rows", "d": "columns", "k": "eigenfunctions"},
        {"n": 2000, "d": 16, "k": 10},
        {"n": (300, 1000, 3000, 10_000, 30_000), "d": (4, 13, 40, 126, 400), "k": (2, 6, 20, 63, 200)},
        ("n l", "n l d", "r^2", "r^2 d", "r^2 l", "r l^2", "l^3"),
        ("n l", "n d", "r l", "l^2"),
        lambda s: (_rows(s["n"], s["d"]), s["k"]),
        lambda data: NeuralEigenfunctions(RBF(1 / data[0].shape[1]), data[1], generator=_generator()).fit_transform(
            data[0]
        ),
        derived={"l": lambda s: min(max(128, 8 * s["k"]), s["n"]), "r": lambda s: min(s["n"], 8192)},
    ),
    Method(
        "spectral-analyze",
        "analyze(ReLUGram(), x, targets): complexity to 1e-4 and the curve of 100 steps, float32 tiles",
        {"n": "rows", "d": "columns", "c": "columns of the targets"},
        {**_SQUARE_BASE, "n": 1000},
        _SQUARE_AXES,
        ("n c", "n^2", "n^2 d", "n^2 c"),
        ("n d", "n^2", "n c"),
        lambda s: (unit_rows(_rows(s["n"], s["d"]).double()), _rows(s["n"], s["c"]).sign().double()),
        _spectrum,
        whole=("n d", "n c"),  # tiles are dealt over the ranks, the rows are with each
    ),
    Method(
        "kernel-classifier",
        "forward and backward of KernelClassifier(d, c, prototypes=k), float32",
        {"n": "rows of a batch", "d": "width of the embedding", "c": "classes", "k": "prototypes of a class"},
        {"n": 128, "d": 64, "c": 100, "k": 1},
        {
            "n": (32, 128, 320, 1000, 3200),
            "d": (16, 64, 160, 506, 1600),
            "c": (32, 100, 320, 1000, 3200),
            "k": (1, 3, 10, 32, 100),
        },
        ("n d", "n c k", "d c k", "n d c k"),
        ("n c k", "d c k", "n d"),
        _head,
        _through_head,
    ),
    Method(
        "function-space-sgd",
        "one step, forward and backward included, of a network d-d-c; update_every=10",
        {"n": "rows of a batch", "d": "width of both layers", "c": "classes"},
        {"n": 64, "d": 128, "c": 10},
        {"n": (16, 64, 160, 506, 1600), "d": (10, 32, 100, 316, 1000), "c": (10, 32, 100, 316, 1000)},
        ("n d", "n d^2", "d^3", "n d c", "d^2 c", "d^2"),
        ("d^2", "n d", "d c", "n c"),
        _classifier,
        _twenty_steps,
        share=1 / _STEPS,
    ),
    Method(
        "eigenpro-sgd",
        "one epoch of a linear read-out, batches of 64",
        {"n": "rows of the epoch", "d": "features", "c": "classes", "k": "directions flattened"},
        {"n": 1000, "d": 200, "c": 10, "k": 15},
        {
            "n": (500, 1581, 5000, 15_811, 50_000),
            "d": (16, 51, 160, 506, 1600),
            "c": (2, 10, 20, 63, 200),
            "k": (1, 3, 10, 32, 100),
        },
        ("n", "n d c", "g d^2", "d^3", "n d k", "n c k"),
        ("d^2", "d c", "d k"),
        _read_out,
        _epoch,
        derived={"g": lambda s: min(s["n"], 20_000)},  # rows that the eigensystem is learned from
    ),
    Method(
        "laplace-fit",
        "LinearizedLaplace(model, k=k).fit: a network 64-d-c",
        *_LAPLACE,
        ("n k", "n p", "n p k", "p k^2", "n c k", "n c k^2"),
        ("p k", "n c k", "p", "k c"),
        _two_layers,
        lambda data: data[0].fit(data[1:]),
        derived={"p": _parameters},
    ),
    Method(
        "laplace-predict",
        "LinearizedLaplace.predict_proba of n rows: a network 64-d-c, k directions",
        *_LAPLACE,
        ("n", "n k", "n p", "n p k", "n p c", "n c k"),
        ("p k", "n c", "p", "k c", "c d"),
        _fitted_laplace,
        lambda data: data[0].predict_proba(data[1]),
        derived={"p": _parameters},
    ),
    Method(
        "kernel-network-fit",
        "KernelNetworkClassifier(landmarks=k).fit; by itself it takes 2,000 and 8 % of the rows, 6,500 at most",
        *_network_sizes(1000, 3162, 10_000, 31_623, 100_000),
        ("n", "n k", "n d", "n k d", "n k^2", "n k c", "k^2 c", "k^3", "d", "d^2", "d^3", "c"),
        ("k^2", "n d", "n c", "d^2", "k c"),
        lambda s: (*_clusters(s["n"], s["d"], s["c"]), s["k"]),
        _fit_network,
    ),
    Method(
        "kernel-network-predict",
        "KernelNetworkClassifier.predict of n rows",
        *_network_sizes(500, 1581, 5000, 15_811, 50_000),
        ("n", "n k", "n k d", "n d", "n d^2", "n k c"),
        ("n d", "n c", "k d", "k c", "b"),
        _fitted_network,
        lambda data: data[0].predict(data[1]),
        derived={"b": lambda s: min(s["n"] * s["k"], 2**24 / 3)},  # the block of the Gram matrix that is held
    ),
    Method(
        "nngp-ntk",
        "NTK(depth=k).both(x): both Gram matrices, float32",
        {"n": "rows", "d": "columns", "k": "hidden layers"},
        {"n": 1000, "d": 100, "k": 4},
        {"n": (100, 316, 1000, 3162, 10_000), "d": (10, 32, 100, 316, 1000), "k": (1, 4, 10, 32, 100)},
        ("n^2", "n^2 d", "n^2 k"),
        ("n^2", "n d"),
        lambda s: (_rows(s["n"], s["d"]), s["k"]),
        lambda data: NTK(data[1]).both(data[0]),
        shared=False,
    ),
)
