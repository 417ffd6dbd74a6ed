"""What is asked of a fitter of eigenfunctions."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..distributed import gather_rows, global_slice, sum_over_ranks
from ..kernels import Kernel, NetworkKernel
from ..linalg import SymmetricOperator, block_rows, slices
from ..rows.stored import Readable
from .bases import Basis
from .landmarks import sample
from .neuralef import Training
from .rayleigh_ritz import Pairs, kernel_operator

_OPERATOR_ROWS = 8192  # the operator is applied on at most so many rows: its cost is their square
_BLOCK = 4096
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
        return global_slice(len(self.rows))[1]

    @functools.cached_property
    def sample(self) -> Tensor:
        """The rows that the operator is applied on, on all ranks: all, or 8,192 drawn at random."""
        if self.n <= _OPERATOR_ROWS:
            return gather_rows(self.rows[:])
        _log.info("NeuralEigenfunctions: the operator is applied on %d of %d rows.", _OPERATOR_ROWS, self.n)
        return sample(self.rows, _OPERATOR_ROWS, self.generator)

    @functools.cached_property
    def operator(self) -> SymmetricOperator:
        """K / n on the sample."""
        return kernel_operator(self.kernel, wide(self.kernel, self.sample))

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


def normalised(basis: Basis, pairs: Pairs, rows: Readable) -> Pairs:
    """The pairs with functions of mean square exactly 1 over the rows of all ranks, whatever they were found on."""
    squares = pairs.rotation.new_zeros(pairs.rotation.shape[1])
    for part in slices(len(rows), _BLOCK):
        values = basis(rows[part])
        functions = values @ pairs.rotation.to(values.dtype)
        squares += functions.double().square().sum(0)
    size = (sum_over_ranks(squares) / global_slice(len(rows))[1]).sqrt()
    scale = torch.where(size > 0, 1 / torch.where(size > 0, size, 1.0), 0.0)
    return Pairs(pairs.values, pairs.rotation * scale, pairs.residuals)


def wide(kernel: Kernel, x: Tensor) -> Tensor:
    """Rows in float64, but for kernels of networks, which would be twice as dear, and for indices."""
    return x if isinstance(kernel, NetworkKernel) or not x.is_floating_point() else x.double()


def centre_and_spread(x: Readable) -> tuple[Tensor, Tensor]:  # (n, ...) -> (...), ()
    """The mean row, and one standard deviation of all numbers, 1 where that is 0; in float64, over all ranks.

    Two passes: the square of a large mean would drown the spread.
    """
    n, size = global_slice(len(x))[1], x.shape[1:].numel()
    parts = list(slices(len(x), block_rows(2 * 8 * size)))
    zero = torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
    centre = sum_over_ranks(sum((x[part].double().sum(0) for part in parts), zero)) / n
    middle = centre.mean()
    squares = sum(((x[part].double() - middle).square().sum() for part in parts), zero.new_zeros(()))
    spread = (sum_over_ranks(squares) / (n * size)).sqrt()
    return centre, torch.where(spread > 0, spread, 1.0)
