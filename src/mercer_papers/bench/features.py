"""Feature maps and blockwise products against scikit-learn: kernel error, time, peak memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mercer.features import Nystrom, RandomFourier
from mercer.kernels import RBF

from ..data import load
from .timing import Case, Peer

M = 128
DRAWS = 5  # a work is so many draws, fit and transform; the error shown is their mean

Features = list[NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class Rows:
    """The same rows for both sides, the median bandwidth, and the exact Gram matrix of a few of them."""

    tensor: Tensor  # (n, d)
    array: NDArray[np.floating[Any]]  # (n, d)
    gamma: float
    scored: NDArray[np.intp]  # (s,)
    gram: NDArray[np.floating[Any]]  # (s, s)


def rows(name: str, n: int) -> Rows:
    """The first n training rows of a data set, in float32, flat."""
    x = load(name, rows=n).x_train.flatten(1)
    generator = torch.Generator().manual_seed(0)
    gamma = float(RBF.from_data(x, generator=generator).gamma)
    scored = torch.randperm(len(x), generator=generator)[:1000]
    gram = RBF(gamma)(x[scored].double())
    return Rows(x, x.numpy(), gamma, scored.numpy(), gram.detach().numpy())


def kernel_error(data: Rows, answer: Features) -> float:
    """Mean over the draws of ||K - Phi Phi^T||_F / ||K||_F on the scored rows."""
    errors = []
    for features in answer:
        phi = np.asarray(features, dtype=np.float64)[data.scored]
        errors.append(np.linalg.norm(data.gram - phi @ phi.T) / np.linalg.norm(data.gram))
    return float(np.mean(errors))


def _ours(make: Callable[[float, torch.Generator], Nystrom | RandomFourier]) -> Callable[[Rows], Features]:
    def work(data: Rows) -> Features:
        maps = (make(data.gamma, torch.Generator().manual_seed(seed)) for seed in range(DRAWS))
        return [one.fit_transform(data.tensor).numpy() for one in maps]

    return work


def _by_sklearn(data: Rows, *, name: str) -> Features:
    """The draws of scikit-learn's map of this name."""
    make = getattr(importlib.import_module("sklearn.kernel_approximation"), name)
    maps = (make(gamma=data.gamma, n_components=M, random_state=seed) for seed in range(DRAWS))
    return [one.fit_transform(data.array) for one in maps]


def _map_case(name: str, data: str, n: int, work: Callable[[Rows], Features], peer: str) -> Case:
    theirs = Peer(partial(_by_sklearn, name=peer), ("sklearn.kernel_approximation",), {"cpu": 1.0, "accuracy": 1.0})
    return Case(
        f"{name} on {data}, n = {n:,}",
        setup=lambda: rows(data, n),
        ours=work,
        peers={"scikit-learn": theirs},
        accuracy=kernel_error,
        accuracy_name="relative kernel error",
    )


_nystrom = _ours(lambda gamma, generator: Nystrom(RBF(gamma), M, generator=generator))
_fourier = _ours(lambda gamma, generator: RandomFourier(RBF(gamma), M, generator=generator))


@dataclass(frozen=True)
class Product:
    """K(x, x) @ v with n rows, in float32; the first rows of the exact product score it."""

    x: Tensor  # (n, d)
    v: Tensor  # (n,)
    exact: Tensor  # (100,), float64


def _product() -> Product:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 50, generator=generator)
    v = torch.randn(20_000, generator=generator)
    return Product(x, v, RBF(0.01)(x[:100].double(), x.double()).detach() @ v.double())


def _matmul(data: Product) -> Tensor:
    with torch.no_grad():
        return RBF(0.01).matmul(data.x, None, data.v)


def _sklearn_product(data: Product) -> Tensor:
    from sklearn.metrics.pairwise import rbf_kernel

    return torch.from_numpy(rbf_kernel(data.x.numpy(), gamma=0.01) @ data.v.numpy())


def _product_error(data: Product, answer: Tensor) -> float:
    gap = answer[: len(data.exact)].double() - data.exact
    return float(gap.norm() / data.exact.norm())


CASES = [
    _map_case("Nystrom(128)", "digits", 1437, _nystrom, "Nystroem"),
    _map_case("RandomFourier(128)", "digits", 1437, _fourier, "RBFSampler"),
    _map_case("Nystrom(128)", "mnist", 10_000, _nystrom, "Nystroem"),
    _map_case("RandomFourier(128)", "mnist", 10_000, _fourier, "RBFSampler"),
    Case(
        "RBF.matmul, n = 20,000",
        setup=_product,
        ours=_matmul,
        peers={
            "scikit-learn": Peer(
                _sklearn_product, needs=("sklearn.metrics.pairwise",), goals={"memory": 4.0}, once=True
            )
        },
        accuracy=_product_error,
        accuracy_name="relative error",
        limits={"memory": 1024.0},
        repeats=3,
    ),
]
