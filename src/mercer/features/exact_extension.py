r"""Eigenvectors of the Gram matrix, extended to new rows.

.. math:: \psi_j(x) = \frac{\sqrt n}{\lambda_j} \sum_i k(x, x_i) v_{ij}
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..distributed import gather_rows, global_slice, sum_over_ranks
from ..kernels import Kernel, TiledGram
from ..linalg import block_rows, inverse_root, slices, top_eigh
from ..modules import Readable
from .bases import LandmarkBasis
from .landmarks import sample
from .rayleigh_ritz import Pairs
from .task import Task, normalised, wide

__all__ = ["EXACT_ROWS", "exact_pairs", "fit_all_rows", "fit_sample", "tiles_fit"]

EXACT_ROWS = 20_000  # by `mercer bench eigen`: up to here Lanczos is cheaper than Nystrom at equal error
_SAMPLE_ROWS = 4096
_FEW_LANDMARKS = 256  # each is a kernel value for every row: by trial 512 lower the error by 0.1 % at twice the cost
_FINE_ROWS = 2048  # float64 rows are held in float64 up to here
_FINE_RATIO = 1e-4  # eigenvalues below this share of the largest are noisy in float32
_ACCURACY = 1e-3  # residual of a pair, relative to its eigenvalue
_LOSS = 0.01  # what landmarks may lose of the kernel, relative to what rank k loses
_log = logging.getLogger("mercer")


def fit_all_rows(task: Task) -> tuple[LandmarkBasis, Pairs]:
    """Lanczos on the Gram matrix of all rows; landmarks in the place of the rows where next to nothing is lost."""
    x = gather_rows(task.rows[:])
    found, pairs, functions = exact_pairs(task.kernel, x, task.k)
    basis = LandmarkBasis(task.kernel, found.rows)
    m = max(512, 16 * task.k)
    if len(x) < 2 * _FINE_ROWS or task.landmarks is not None:
        return basis, pairs
    z, projection, loss = _compressed(task.kernel, found, pairs, functions, m, task.generator)
    if loss > _LOSS * found.truncation:
        return basis, pairs
    _log.info("NeuralEigenfunctions: %d rows compressed to %d landmarks at a loss of %.1e of K.", len(x), m, loss)
    basis = LandmarkBasis(task.kernel, z)
    return basis, normalised(basis, Pairs(pairs.values, projection, pairs.residuals), task.rows)


def fit_sample(task: Task, *, rows: int = _SAMPLE_ROWS) -> tuple[LandmarkBasis, Pairs]:
    r"""2 k functions of a sample's Gram matrix, seen from landmarks, rotated to be orthogonal over all rows.

    The kernel :math:`\sum_{j \le 2k} \mu_j \psi_j(x) \psi_j(y)` of the sample stands for k; its eigenfunctions for all
    rows follow from one 2k x 2k moment, summed over rows.
    """
    k = task.k
    x = sample(task.rows, rows, task.generator)
    found, pairs, functions = exact_pairs(task.kernel, x, min(2 * k, len(x)))
    m = min(len(x), max(_FEW_LANDMARKS, 16 * k))
    z, projection, loss = _compressed(task.kernel, found, pairs, functions, m, task.generator)
    _log.info(
        "NeuralEigenfunctions: %d of %d rows decomposed, compressed to %d landmarks at a loss of %.1e of K.",
        len(x), task.n, m, loss,
    )  # fmt: skip
    basis = LandmarkBasis(task.kernel, z)
    features = projection * pairs.values.sqrt()
    values, vectors = torch.linalg.eigh(_moment(basis, features, task.rows))
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    alive = values > len(x) * torch.finfo(torch.float32).eps * values[:1].clamp_min(0)
    rotation = features @ vectors * alive / torch.where(alive, values, 1.0).sqrt()
    psi = basis(found.rows).double() @ rotation
    residuals = (found.gram @ psi / len(x) - psi * values).norm(dim=0) / math.sqrt(len(x))
    return basis, Pairs(values * alive, rotation, residuals * alive)


class Decomposed(NamedTuple):
    """Rows in the dtype that the kernel was computed in, their Gram matrix, and what rank k leaves of it, relative."""

    rows: Tensor
    gram: TiledGram
    truncation: float


def exact_pairs(kernel: Kernel, x: Tensor, k: int) -> tuple[Decomposed, Pairs, Tensor]:
    r"""The k leading pairs on rows that all ranks hold: for functions of K(., x), and the functions at x ``(n, k)``.

    The Gram matrix is held as tiles in float32, or in float64 where rows are few, and where the k-th eigenvalue turns
    out too small for float32.
    """
    exact = not x.is_floating_point() or x.dtype == torch.float64
    storage = "float64" if exact and len(x) <= _FINE_ROWS else "float32"
    found = _decomposed(kernel, x, k, storage)
    fits = len(x) <= _FINE_ROWS or tiles_fit(len(x), "float64")
    if storage == "float32" and fits and float(found[1].values[-1]) < _FINE_RATIO * float(found[1].values[0]):
        found = _decomposed(kernel, wide(kernel, x), k, "float64")
    return found


def _decomposed(kernel: Kernel, x: Tensor, k: int, storage: str) -> tuple[Decomposed, Pairs, Tensor]:
    n = len(x)
    gram = TiledGram.of(kernel, x, storage)
    if not math.isfinite(gram.squared_norm):
        need = "the kernel must be finite on x"
        raise ValueError(checks.sentence("NeuralEigenfunctions", need, "NaN or infinity", "Standardise x."))
    top = top_eigh(gram, min(k, n), tolerance=8 * gram.noise, relative=_ACCURACY)
    if _left(gram, top.values) < _ACCURACY:  # k pairs are all there is: their own accuracy is what counts
        top = top_eigh(gram, min(k, n), tolerance=8 * gram.noise)
    floor = n * float(torch.finfo(torch.float64).eps) if storage == "float64" else 8 * gram.noise
    alive = top.values > floor * top.values[:1].clamp_min(0)
    functions = top.vectors * alive * math.sqrt(n)  # a mask times a number would be float32
    rotation = functions / torch.where(alive, top.values, 1.0)
    pairs = Pairs(top.values * alive / n, rotation, top.residuals * alive / n).padded(k)
    whole = Pairs(pairs.values, functions, pairs.values).padded(k).rotation
    return Decomposed(x, gram, _left(gram, top.values)), pairs, whole


def _left(gram: TiledGram, values: Tensor) -> float:
    """What the pairs leave of the matrix, relative, in Frobenius norm."""
    held = float(values.square().sum()) / max(gram.squared_norm, torch.finfo(torch.float64).tiny)
    return math.sqrt(max(1 - held, 1e-12))


def _compressed(
    kernel: Kernel, found: Decomposed, pairs: Pairs, functions: Tensor, m: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, float]:
    r"""M landmarks z and A with :math:`K(x, z) A \approx \psi(x)`: least squares on some rows, the loss on others.

    The loss is :math:`\|\hat\Phi \hat\Phi^\top - \Phi \Phi^\top\|_F / \|K\|_F`.
    """
    x, n = found.rows, len(found.rows)
    order = torch.randperm(n, generator=generator).to(x.device)
    z = wide(kernel, x[order[:m]])
    white = inverse_root(kernel(z).double(), m * 1e-12, where="NeuralEigenfunctions")
    fitted, held = order[: max(2 * m, _FINE_ROWS)], order[-_FINE_ROWS:]
    phi = kernel(wide(kernel, x[fitted]), z).double() @ white
    moment = phi.mT @ phi
    moment.diagonal().add_(1e-12 * moment.diagonal().max())
    projection = white @ torch.linalg.solve(moment, phi.mT @ functions[fitted])
    roots = pairs.values.sqrt()
    seen = kernel(wide(kernel, x[held]), z).double() @ (projection * roots)
    true = functions[held] * roots
    gap = (true.mT @ true).square().sum() + (seen.mT @ seen).square().sum() - 2 * (true.mT @ seen).square().sum()
    return z, projection, math.sqrt(max(float(gap), 0.0)) * (n / len(held)) / math.sqrt(found.gram.squared_norm)


def _moment(basis: LandmarkBasis, features: Tensor, rows: Readable) -> Tensor:  # (m, r) -> (r, r)
    """The mean over rows of all ranks of f f^T for the features f = K(x, z) A."""
    total = features.new_zeros(features.shape[1], features.shape[1])
    for part in slices(len(rows), block_rows(4 * len(features) * 8)):
        values = basis(rows[part])
        phi = values @ features.to(values.dtype)
        total += (phi.mT @ phi).double()
    return sum_over_ranks(total) / global_slice(len(rows))[1]


def tiles_fit(n: int, storage: str) -> bool:
    """Whether a Gram matrix of n rows takes at most half of the free memory."""
    free = checks.available_memory()
    return free is None or 2 * TiledGram.bytes_for(n, storage) <= free
