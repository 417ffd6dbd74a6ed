"""What is asked of a fitter of eigenfunctions."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..kernels import Kernel
from ..linalg.operators import SymmetricOperator
from ..rows import Rows
from ..rows.rows import BLOCK_BYTES
from ..rows.stored import Readable
from .bases import Basis
from .landmarks import sample, widen
from .neuralef import Training
from .rayleigh_ritz import Pairs, kernel_operator

_OPERATOR_ROWS = 8192  # the operator is applied on at most so many rows: its cost is their square
_BLOCK = 4096  # rows of a block
_log = logging.getLogger("mercer")


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
        return float(torch.finfo(self.rows.dtype if self.rows.is_floating_point() else torch.float32).eps)

    def residuals(self, functions: Tensor, values: Tensor) -> Tensor:  # (n c, k), (k,) -> (k,)
        """Root mean square of K psi / n - mu psi over the sample."""
        gaps = self.operator @ functions - functions * values
        sizes: Tensor = gaps.norm(dim=0) / len(self.sample) ** 0.5
        return sizes


def normalize_functions(basis: Basis, pairs: Pairs, rows: Readable) -> Pairs:
    """The pairs with functions of mean square exactly 1 over the rows of all ranks, whatever they were found on."""

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
    middle = center.mean()
    squares = rows.mean(lambda part: (part.double() - middle).square().sum(), row_bytes=2 * 8 * size)
    spread = (squares / size).sqrt()
    return center, torch.where(spread > 0, spread, 1.0)
