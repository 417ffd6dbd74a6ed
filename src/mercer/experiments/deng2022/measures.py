"""What the entries of deng2022 share: exact eigenfunctions, errors of kernels, the accuracy of a linear model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ...kernels import Kernel


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for each use."""
    return torch.Generator().manual_seed(seed)


def reference(kernel: Kernel, reach: float, grid: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``(k,)`` and eigenfunctions at ``grid`` ``(g, k)`` for the uniform density on [-reach, reach].

    Nystrom's formula on 1,000 midpoints, where it has converged.
    """
    n = 1000
    x = (((torch.arange(n, dtype=torch.float64) + 0.5) / n * 2 - 1) * reach)[:, None]
    values, vectors = torch.linalg.eigh(kernel(x) / n)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k] * math.sqrt(n)
    return values, kernel(grid, x) @ vectors / (n * values)


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
    """Test accuracy in % of logistic regression on standardised features."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    with torch.no_grad():
        a, b = features(train[0]).double().numpy(), features(test[0]).double().numpy()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(a, train[1].numpy())
    return 100 * float(model.score(b, test[1].numpy()))
