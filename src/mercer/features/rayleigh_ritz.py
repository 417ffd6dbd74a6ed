r"""The eigenproblem that a fitter is asked to solve, and Rayleigh-Ritz: the best pairs that a span of functions holds.

A function is its values at the n rows, ``(n,)``; with c outputs, ``(n * c,)``. The inner product is the mean over rows,
:math:`\langle f, g \rangle = f^\top g / n`, and the operator is :math:`K / n`.
"""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel, NetworkKernel
from ..linalg.eigen import top_eigh
from ..linalg.operators import SymmetricOperator
from ..rows.agreement import map_shared_rows
from ..rows.rows import BLOCK_BYTES, Rows
from ..rows.stored import Readable
from .bases import Basis
from .landmarks import sample, widen
from .neuralef import Training

_OPERATOR_ROWS = 8192  # most rows that the operator is applied on: its cost is their square
_BLOCK = 4096  # rows of a block
_log = logging.getLogger("mercer")


@dataclass(frozen=True)
class Pairs:
    r"""Eigenpairs in the span of m functions.

    Args:
        values: :math:`\mu` ``(k,)``, descending, 0 beyond the rank.
        rotation: ``(m, k)``; the functions times it are the eigenfunctions, of mean square 1, 0 beyond the rank.
        residuals: :math:`\|K \psi / n - \mu \psi\|` ``(k,)``, root mean square over rows.
    """

    values: Tensor
    rotation: Tensor
    residuals: Tensor

    def pad(self, k: int) -> Pairs:
        """Add zeros up to k pairs."""
        parts = (self.values, self.rotation, self.residuals)
        return Pairs(*(nn.functional.pad(part, (0, k - part.shape[-1])) for part in parts))


def kernel_operator(kernel: Kernel, x: Tensor) -> SymmetricOperator:
    """K / n for rows that all ranks hold, ``(n c, n c)``, each rank computing its share.

    Explicit features and the Gram matrices of networks are computed once; of other kernels no Gram matrix is held.
    """
    # K = F F^T of explicit features: two thin products.
    n = len(x)
    features = _explicit_features(kernel, x)
    if features is not None:
        return SymmetricOperator(lambda v: features @ (features.mT @ v) / n, len(features), device=x.device)
    # A network's Gram matrix is expensive: compute it once.
    if isinstance(kernel, NetworkKernel):

        def compute_rows(part: Tensor) -> Tensor:
            if part is x:  # one rank: the symmetric matrix costs half
                return kernel(x)
            return kernel(part, x)

        gram = map_shared_rows(compute_rows, x).double()
        if gram.ndim == 4:  # (n, n, c, c): a matrix for each pair, as (n c, n c)
            gram = gram.transpose(1, 2).flatten(2).flatten(0, 1)
        return SymmetricOperator(lambda v: gram @ v / n, len(gram), device=x.device)
    # Any other kernel is computed again for each product, block by block.
    return SymmetricOperator(
        lambda v: map_shared_rows(lambda part: kernel.matmul(part, x, v), x).double() / n, n, device=x.device
    )


def ritz(operator: SymmetricOperator, basis: Tensor, k: int, *, rows: int, floor: float) -> Pairs:  # basis (n c, m)
    r"""The k largest Ritz pairs of the operator on the span of the columns.

    Args:
        operator: K / n.
        basis: Functions H, at the rows; need not be independent.
        k: Pairs wanted.
        rows: n.
        floor: Directions with singular values below this share of the largest are rounding noise and are left out,
            and so are eigenvalues below it.
    """
    # An orthonormal basis Q of the span, without directions that are rounding.
    u, sizes, vh = torch.linalg.svd(basis.double(), full_matrices=False)
    keep = sizes > floor * sizes[:1]
    scale = math.sqrt(rows)
    q = u[:, keep] * scale  # orthonormal for the mean over rows

    # The operator seen from the span, Q^T K Q, and its pairs: the best that the span holds.
    product = operator @ q
    projected = q.mT @ product / rows
    values, vectors = torch.linalg.eigh((projected + projected.mT) / 2)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    residuals = (product @ vectors - q @ vectors * values).norm(dim=0) / scale

    # The pairs as combinations of the given functions; 0 beyond the rank.
    alive = values > floor * values[:1].clamp_min(0)
    to_orthonormal = vh[keep].mT * (scale / sizes[keep])  # (m, r)
    return Pairs(values * alive, to_orthonormal @ vectors * alive, residuals * alive).pad(k)


def exact_functions(kernel: NetworkKernel, x: Tensor, k: int, *, floor: float) -> tuple[Tensor, Tensor]:
    """The exact top pairs on the rows: values ``(k,)`` and functions ``(n c, k)`` of mean square 1, zero-padded."""
    n = len(x)
    features = _explicit_features(kernel, x)
    if features is not None and features.shape[1] < len(features):
        # Of F F^T / n from the smaller F^T F / n: the functions are F v / sqrt(mu).
        values, right = torch.linalg.eigh(features.mT @ features / n)
        values, right = values.flip(0)[:k], right.flip(1)[:, :k]
        alive = values > floor * values[:1].clamp_min(0)
        functions = features @ (right * alive / torch.where(alive, values, 1.0).sqrt())
    else:
        operator = kernel_operator(kernel, x)
        values, vectors, _ = top_eigh(operator, min(k, operator.n))
        alive = values > floor * values[:1].clamp_min(0)
        functions = vectors * alive * math.sqrt(n)
    pairs = Pairs(values * alive, functions, values).pad(k)
    return pairs.values, pairs.rotation


def _explicit_features(kernel: Kernel, x: Tensor) -> Tensor | None:  # -> (n c, S)
    if not isinstance(kernel, NetworkKernel) or getattr(kernel, "method", "") == "exact":
        return None
    features = map_shared_rows(kernel.features, x).double()  # (n, c, S)
    if kernel.matrix_valued:
        return features.flatten(0, 1)
    return features.flatten(1)


@dataclass(frozen=True)
class Task:
    """The k leading eigenfunctions of a kernel for rows; a fitter answers with a basis and its Ritz pairs.

    Args:
        kernel: The kernel.
        rows: This rank's rows.
        k: Functions wanted.
        ritz: Rayleigh-Ritz after training.
        training: How networks and landmarks are trained.
        generator: Source of randomness, the same on all ranks.
        network: The user's; None for a default one.
        landmarks: Their number, or the landmarks; None leaves them to the fitter.
    """

    kernel: Kernel
    rows: Readable
    k: int
    ritz: bool
    training: Training
    generator: torch.Generator | None
    network: nn.Module | None
    landmarks: int | Tensor | None

    @property
    def n(self) -> int:
        """Rows of all ranks."""
        return Rows(self.rows).n

    @functools.cached_property
    def sample(self) -> Tensor:
        """The rows that the operator is applied on, on all ranks: all, or 8,192 drawn at random."""
        if self.n <= _OPERATOR_ROWS:
            rows: Tensor = Rows(self.rows).gather()
            return rows
        _log.info("NeuralEigenfunctions: the operator is applied on %d of %d rows.", _OPERATOR_ROWS, self.n)
        return sample(self.rows, _OPERATOR_ROWS, self.generator)

    @functools.cached_property
    def operator(self) -> SymmetricOperator:
        """K / n on the sample."""
        return kernel_operator(self.kernel, widen(self.kernel, self.sample))

    @property
    def outputs(self) -> int:
        """Outputs c of a function."""
        return self.operator.n // len(self.sample)

    @property
    def resolution(self) -> float:
        """Relative rounding of the rows."""
        return float(torch.finfo(checks.floating_dtype(self.rows, torch.float32)).eps)

    def residuals(self, functions: Tensor, values: Tensor) -> Tensor:  # (n c, k), (k,) -> (k,)
        """Root mean square of K psi / n - mu psi over the sample."""
        gaps = self.operator @ functions - functions * values
        sizes: Tensor = gaps.norm(dim=0) / len(self.sample) ** 0.5
        return sizes


def normalize_functions(basis: Basis, pairs: Pairs, rows: Readable) -> Pairs:
    """Scale the functions to a mean square of exactly 1 over the rows of all ranks."""

    def sum_squares(part: Tensor) -> Tensor:  # (b, ...) -> (k,)
        values = basis(part)
        return (values @ pairs.rotation.to(values.dtype)).double().square().sum(0)

    size = Rows(rows).mean(sum_squares, row_bytes=BLOCK_BYTES // _BLOCK).sqrt()
    scale = torch.where(size > 0, 1 / torch.where(size > 0, size, 1.0), 0.0)
    return Pairs(pairs.values, pairs.rotation * scale, pairs.residuals)


def measure_center_and_spread(x: Readable) -> tuple[Tensor, Tensor]:  # (n, ...) -> (...), ()
    """The mean row, and one standard deviation of all numbers, 1 where that is 0; in float64, over all ranks.

    Two passes: the square of a large mean would drown the spread.
    """
    rows, size = Rows(x), x.shape[1:].numel()
    center = rows.mean(lambda part: part.double().sum(0), row_bytes=2 * 8 * size)
    mean = center.mean()
    squares = rows.mean(lambda part: (part.double() - mean).square().sum(), row_bytes=2 * 8 * size)
    spread = (squares / size).sqrt()
    return center, torch.where(spread > 0, spread, 1.0)
