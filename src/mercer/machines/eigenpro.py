r"""Kernel ridge on all rows by preconditioned mini-batches, never a Gram matrix (EigenPro 2: Ma and Belkin 2019).

Gradient descent on :math:`\|f - y\|^2` in the kernel's space moves slowly along eigenfunctions of small eigenvalue,
because the largest bounds the step. From the q top eigenvectors V of s rows, with eigenvalues :math:`\Sigma`, comes

.. math:: P = I - \sum_{i \le q} (1 - \Sigma_{q+1} / \Sigma_i) \psi_i \otimes \psi_i, \qquad
    \psi_i = \Sigma_i^{-1/2} \sum_j V_{ji} k(x_j, \cdot),

which levels them. A batch b of m rows with residuals r moves its own weights by :math:`-\eta r / m` and those of the s
rows by :math:`\eta / m \, V D V^T K_{sb} r`, :math:`D = (1 - \Sigma_{q+1} / \Sigma) / \Sigma`. A pass costs n squared
kernel values; memory is the rows and their weights. Rows of weight :math:`s^2` descend in the kernel
:math:`s \, k(x, x') \, s'` towards :math:`s y`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..distributed import global_slice, sum_over_ranks, take_rows
from ..kernels import Kernel
from ..linalg.blocks import slices
from ..linalg.eigen import randomized_range
from ..linalg.operators import SymmetricOperator

_SAMPLE = 4000  # s, rows the preconditioner is made from
_DIRECTIONS = 400  # q at most
_BATCH = 1000  # m at most
_LEAST_BATCH, _MANY = 256, 2000  # m at least, for more rows than these
_TILE = 1000  # columns of the kernel held at a time: a tile stays in the processor's cache
_HELD_OUT = 2000  # rows that say when to stop, at most; a twentieth of the rows where those are fewer
_FAR, _ATTEMPTS = 100.0, 5  # mean squares of residuals over the targets' that end an attempt; steps tried
_LEAST_LEFT = 1e-3  # share of k(x, x) that the preconditioner cannot take away, to rounding
_DEGENERATE = 10.0  # times the largest useful batch beyond which the tail is too low
_STEP = 1.5  # times the step of fastest worst-case descent; 2 is where descent ends


@dataclass(frozen=True)
class Stopping:
    """When to stop.

    Attributes:
        passes: Most passes over the rows; None for 10 with held-out rows, 200 without.
        worth: Least relative fall of the held-out error in a pass that is worth another pass.
        residual: Relative residual that ends a fit without held-out rows; None for the root of the dtype's eps.
    """

    passes: int | None = None
    worth: float = 0.05
    residual: float | None = None


class EigenProFit(NamedTuple):
    """A fit.

    Attributes:
        weights: Weights of this rank's rows, ``(n, c)``.
        held_out: ``(v, c)``, predictions of the held-out rows when the descent stopped, before they took part.
        rows: ``(v,)``, which rows those are, numbered over all ranks.
        residual: Relative residual over the last pass.
        passes: Passes over the rows.
        directions: Eigenvectors q in the preconditioner.
    """

    weights: Tensor
    held_out: Tensor
    rows: Tensor
    residual: float
    passes: float
    directions: int


class _DivergedError(Exception):
    """The step is too long."""


class _Preconditioner(NamedTuple):
    rows: Tensor  # (s, ...)
    numbers: Tensor  # (s,) among all ranks' rows
    vectors: Tensor  # (s, q)
    gains: Tensor  # (q,), D
    step: float  # eta / m
    batch: int


def eigenpro(
    kernel: Kernel,
    x: Tensor,
    y: Tensor,
    *,
    penalty: float | None = None,
    stopping: Stopping | None = None,
    generator: torch.Generator | None = None,
    weight: Tensor | None = None,
) -> EigenProFit:
    r"""Weights :math:`\alpha` with :math:`(K + \lambda W^{-1}) \alpha \approx y`, in the rows' dtype.

    Args:
        kernel: k.
        x: Rows, ``(n, ...)``, this rank's.
        y: Centred targets, ``(n, c)``.
        penalty: :math:`\lambda`, and the descent runs until the residual is small; None: no penalty, and the descent
            stops when the error of held-out rows does not fall enough, which is the regularisation.
        stopping: When to stop.
        generator: Randomness of the batches, the same on all ranks.
        weight: W, ``(n,)``, of rows that are vectors of numbers; None for 1.
    """
    strength, stopping = penalty or 0.0, stopping or Stopping()
    if weight is None:
        return _Descent(kernel, x, y, strength, stopping, generator).run(held_out=penalty is None)
    if x.ndim != 2 or not x.is_floating_point():
        need, fix = "weighted rows must be vectors of numbers", "Use solver='exact' or 'landmarks'."
        raise ValueError(checks.sentence("eigenpro", need, f"{tuple(x.shape)} of {x.dtype}", fix))
    root = weight.sqrt()[:, None]
    rows = torch.cat((x, root.to(x)), 1)
    fit = _Descent(WeightedRows(kernel), rows, root * y, strength, stopping, generator).run(held_out=penalty is None)
    # Held-out rows of weight 0 said nothing of their prediction.
    seen = take_rows(root, fit.rows)
    told = seen[:, 0] > 0
    held_out = fit.held_out[told] / seen[told].to(fit.held_out)
    return fit._replace(weights=root.to(fit.weights) * fit.weights, held_out=held_out, rows=fit.rows[told])


class WeightedRows(Kernel):
    r""":math:`s \, k(x, x') \, s'` of rows ``[x, s]``.

    Args:
        kernel: k.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d + 1), (m, d + 1) -> (n, m)
        return x[:, -1:] * self.kernel.gram(x[:, :-1], y[:, :-1]) * y[:, -1]

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d + 1) -> (n,)
        return x[:, -1].square() * self.kernel.gram_diag(x[:, :-1])


class _Descent:
    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        y: Tensor,
        penalty: float,
        stopping: Stopping,
        generator: torch.Generator | None,
    ) -> None:
        self.kernel, self.x, self.y, self.penalty = kernel, x, y.to(_dtype(x)), penalty
        self.stopping, self.generator = stopping, generator
        self.place, self.n = global_slice(len(x))
        self.weights, self.seen = torch.zeros_like(self.y), self.y[:0]
        self.made: _Preconditioner

    def run(self, *, held_out: bool) -> EigenProFit:
        order = torch.randperm(self.n, generator=self.generator)
        count = min(self.n // 20, _HELD_OUT) if held_out else 0
        held, rest = order[:count], order[count:]
        self.precondition(rest, order)
        self.watch(held)
        size = float(sum_over_ranks(self.y.double().square().sum())) / max(1, self.n)
        for attempt in range(_ATTEMPTS):
            try:
                passes, residual = self.descend(rest, size)
                break
            except _DivergedError:  # a far row has a larger k(x, x) than those the step was made for
                if attempt == _ATTEMPTS - 1:
                    need, fix = "the descent must converge", "Use solver='landmarks', or another kernel."
                    raise ValueError(checks.sentence("eigenpro", need, f"step {self.made.step:.1e}", fix)) from None
                self.made = self.made._replace(step=self.made.step / 4)
                self.weights, self.seen = torch.zeros_like(self.weights), torch.zeros_like(self.seen)
        predicted = self.seen.clone()
        for batch in held.split(self.made.batch):  # the held-out rows take part once, when they have said when to stop
            self.move(batch)
        return EigenProFit(self.weights, predicted, held, residual, passes, len(self.made.gains))

    def descend(self, rest: Tensor, size: float) -> tuple[float, float]:
        """Passes over the rows till it is time to stop; how many, and the relative residual over the last."""
        target = self.stopping.residual or math.sqrt(torch.finfo(self.y.dtype).eps)
        best, residual, number = math.inf, math.inf, 0
        most = self.stopping.passes or (10 if len(self.known) else 200)
        kept, seen = self.weights.clone(), self.seen.clone()
        while number < most:
            number += 1
            before, squares = best, 0.0
            for batch in rest[torch.randperm(len(rest), generator=self.generator)].split(self.made.batch):
                moved = self.move(batch)
                if not moved <= _FAR * len(batch) * max(size, torch.finfo(self.y.dtype).tiny):
                    raise _DivergedError
                squares += moved
                error = self.error()
                if error < best:
                    best, kept, seen = error, self.weights.clone(), self.seen.clone()
            residual = math.sqrt(squares / len(rest) / size) if size > 0 else 0.0
            if len(self.known):
                if best > (1 - self.stopping.worth) * before:
                    break
            elif residual <= target:
                break
        else:
            if not len(self.known) and residual > target:
                checks.warn("eigenpro", f"residual {residual:.1e} after {number} passes, above {target:.1e}.")
        if len(self.known):
            self.weights, self.seen = kept, seen
        return float(number), residual

    def precondition(self, rest: Tensor, order: Tensor) -> None:
        """Eigenvectors of some rows, the step, and the batch that the step allows."""
        numbers = rest[:_SAMPLE]
        rows = take_rows(self.x, numbers)
        gram = self.kernel(rows)
        q = max(0, min(_DIRECTIONS, len(rows) // 5 - 1))
        values, vectors = _top(gram, q + 1, self.generator)
        least = 10 * torch.finfo(gram.dtype).eps * float(values[0])  # below, directions are rounding
        tail, values, vectors = max(float(values[-1]), least), values[:-1], vectors[:, :-1]
        judged = take_rows(self.x, order[-_HELD_OUT:])
        cross = self.kernel(judged, rows).to(vectors) @ vectors  # (v, q)
        whole = self.kernel.diag(judged).to(cross)
        most = min(_BATCH, len(rest))
        gains, beta = self.levelled(values, cross, whole, tail)
        if beta * len(rows) > _DEGENERATE * most * tail:  # a kernel of low rank: nothing is left to level its top to
            tail = beta * len(rows) / most
            gains, beta = self.levelled(values, cross, whole, tail)
        top = tail / len(rows) + self.penalty / max(1, self.n)
        least_batch = _LEAST_BATCH if self.n > _MANY else 1  # of many rows smaller batches are all overhead
        batch = max(least_batch, min(most, round(beta / max(top, 1e-12 * beta))))
        step = _STEP / (beta + (batch - 1) * top)
        kept = gains > 0
        self.made = _Preconditioner(rows, numbers, vectors[:, kept], gains[kept], step, batch)

    def levelled(self, values: Tensor, cross: Tensor, whole: Tensor, tail: float) -> tuple[Tensor, float]:
        """D for a tail, ``(q,)``, 0 where an eigenvalue is below it; and the largest k(x, x) that is left."""
        gains = ((1 - tail / values) / values).where(values > tail, torch.zeros_like(values))
        left = torch.maximum(whole - cross.square() @ gains, _LEAST_LEFT * whole)
        return gains, float(left.max()) + self.penalty

    def watch(self, held: Tensor) -> None:
        """Follow the predictions of the held-out rows, at a batch's cost each step."""
        self.known, self.judged = take_rows(self.y, held), take_rows(self.x, held)
        self.seen = torch.zeros_like(self.known)
        self.judged_sample = self.kernel(self.judged, self.made.rows).to(self.y) if len(held) else self.known[:, :0]

    def error(self) -> float:
        return float((self.seen - self.known).square().mean()) if len(self.known) else math.inf

    def move(self, batch: Tensor) -> float:
        """One step on these rows; their squared residuals before it, summed over rows and columns."""
        made, rows = self.made, take_rows(self.x, batch)
        fitted = sum_over_ranks(tiled_product(self.kernel, rows, self.x, self.weights))
        residual = fitted - take_rows(self.y, batch)
        if self.penalty:
            residual = residual + self.penalty * take_rows(self.weights, batch)
        change = -made.step * residual
        pulled = made.vectors.mT @ (self.kernel(made.rows, rows).to(residual) @ change)
        back = -(made.vectors @ (made.gains[:, None] * pulled))  # (s, c)
        self.add(batch, change)
        self.add(made.numbers, back)
        if len(self.known):
            self.seen = self.seen + tiled_product(self.kernel, self.judged, rows, change) + self.judged_sample @ back
        return float(residual.double().square().sum())

    def add(self, numbers: Tensor, change: Tensor) -> None:
        """Add to the weights of rows by their number among all ranks' rows."""
        own = (numbers >= self.place.start) & (numbers < self.place.stop)
        self.weights.index_add_(0, numbers[own] - self.place.start, change[own])


def tiled_product(kernel: Kernel, x: Tensor, y: Tensor, v: Tensor) -> Tensor:  # (n, ...), (m, ...), (m, c) -> (n, c)
    """``K(x, y) @ v`` in tiles that stay in the processor's cache: half the time of blocks of whole rows."""
    out = v.new_zeros(len(x), v.shape[1])
    for columns in slices(len(y), _TILE):
        right, part = y[columns], v[columns]
        for rows in slices(len(x), _TILE):
            out[rows].addmm_(kernel.gram(x[rows], right).to(v.dtype), part)
    return out


def _top(gram: Tensor, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """About the k top eigenpairs, descending: a preconditioner needs no exact ones."""
    width = min(len(gram), k + max(20, k // 10))
    start = torch.randn(len(gram), width, generator=generator, dtype=torch.float64).to(gram)
    basis = randomized_range(SymmetricOperator.from_matrix(gram), start, iterations=2)
    projected = (basis.mT @ (gram @ basis)).double()
    values, rotation = torch.linalg.eigh((projected + projected.mT) / 2)
    return values.flip(0)[:k].to(gram), (basis @ rotation.flip(1)[:, :k].to(gram))


def _dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float64
