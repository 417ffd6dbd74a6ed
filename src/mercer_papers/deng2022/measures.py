"""Shared by the entries of deng2022: exact eigenfunctions, errors of kernels, the accuracy of a linear model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mercer.kernels import Kernel

SEEDS = {"smoke": 1, "small": 1, "paper": 3}  # of entries whose small scale is for a look


def rng(seed: int) -> torch.Generator:
    """A generator of its own for each use."""
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def softmax(model: nn.Module, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
    """Class probabilities of a network."""
    return torch.cat([model(part).softmax(1) for part in x.split(250)])


def reference(kernel: Kernel, reach: float, grid: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``(k,)`` and eigenfunctions at ``grid`` ``(g, k)`` for the uniform density on [-reach, reach].

    Nystrom's formula on 1,000 midpoints, where it has converged.
    """
    n = 1000
    x = (((torch.arange(n, dtype=torch.float64) + 0.5) / n * 2 - 1) * reach)[:, None]
    values, vectors = torch.linalg.eigh(kernel(x) / n)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k] * math.sqrt(n)
    return values, kernel(grid, x) @ vectors / (n * values)


class AllRowsNystrom:
    r"""Nystrom as the slides have it: the eigendecomposition of the kernel matrix of all N rows.

    .. math:: \hat\psi_j(x) = \frac{1}{N \hat\mu_j} \sum_n k(x, x_n) \hat\psi_j(x_n)

    Args:
        kernel: k.
        k: Leading eigenfunctions kept.
    """

    def __init__(self, kernel: Kernel, k: int) -> None:
        self.kernel, self.k = kernel, k

    def fit(self, x: Tensor) -> AllRowsNystrom:
        """Decompose K(x, x) / N."""
        values, vectors = torch.linalg.eigh(self.kernel(x).detach().double() / len(x))
        self.eigenvalues = values.flip(0)[: self.k]
        self._rows = x
        self._dual = vectors.flip(1)[:, : self.k] / (math.sqrt(len(x)) * self.eigenvalues)
        return self

    def eigenfunctions(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k)
        """The leading eigenfunctions, of mean square 1 over the rows fitted."""
        return torch.cat([self.kernel(part, self._rows).detach().double() @ self._dual for part in x.split(500)])

    def __call__(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, k)
        """Features, the eigenfunctions times the roots of their eigenvalues."""
        features: Tensor = self.eigenfunctions(x) * self.eigenvalues.clamp(min=0).sqrt()
        return features


def cosines(found: Tensor, true: Tensor) -> Tensor:  # (n, k), (n, k) -> (k,)
    """|cos| between columns."""
    unit = torch.nn.functional.normalize
    return (unit(found.double(), dim=0) * unit(true.double(), dim=0)).sum(0).abs()


def relative_error(found: Tensor, gram: Tensor) -> float:
    """Frobenius error over the Frobenius norm of the exact Gram matrix."""
    return float((found.double() - gram.double()).norm() / gram.double().norm())


def best_rank(gram: Tensor, k: int) -> float:
    """The least relative error that any matrix of rank k has."""
    values = torch.linalg.eigvalsh(gram.double()).abs().sort(descending=True).values
    return float(values[k:].norm() / values.norm())


def linear_accuracy(
    features: Callable[[Tensor], Tensor], train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> float:
    """Test accuracy in % of logistic regression on standardized features."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # the features of both parts, then a linear model on them
    with torch.no_grad():
        a, b = (features(rows).double().cpu().numpy() for rows in (train[0], test[0]))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(a, train[1].numpy())
    return 100 * float(model.score(b, test[1].numpy()))
