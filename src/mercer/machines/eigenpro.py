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
from ..kernels import Kernel
from ..linalg.eigen import longest_step, randomized_range, shrink_directions
from ..linalg.operators import SymmetricOperator
from ..rows.rows import Rows
from ..rows.stored import Readable
from .solution import Solution, tiled_product

_SAMPLE = 4000  # s, rows the preconditioner is made from
_DIRECTIONS = 400  # q at most
_BATCH = 1000  # m at most
_LEAST_BATCH, _MANY = 256, 2000  # m at least, for more rows than these: smaller batches are all overhead
_HELD_OUT = 2000  # rows that say when to stop, at most; a twentieth of the rows where those are fewer
_FAR, _ATTEMPTS = 100.0, 5  # mean squares of residuals over the targets' that end an attempt; steps tried
_LEAST_LEFT = 1e-3  # share of k(x, x) that the preconditioner cannot take away, to rounding
_DEGENERATE = 10.0  # times the largest useful batch beyond which the tail is too low
_STEP = 1.5  # times the step of fastest worst-case descent; 2 is where descent ends
_VARIANCE_ROWS, _VARIANCE_PENALTY = 2000, 1e-3  # of the variance: there is neither factor nor penalty


class EigenProSolution(Solution):
    """A solution on all rows; its variance, an upper bound, knows 2,000 of them and a penalty of at least 1e-3."""

    @override
    def predict_left_out(self) -> Tensor | None:
        return None  # some rows were held out, see ``rows``; leave-one-out would take the whole system

    @override
    def pick_anchors(self) -> tuple[Tensor, Tensor | None]:
        anchors, scale = super().pick_anchors()
        count = min(len(anchors), _VARIANCE_ROWS)
        numbers = torch.linspace(0, len(anchors) - 1, count, device=anchors.device).round().long()
        return anchors[numbers], None if scale is None else scale[numbers]

    @override
    def choose_noise(self, gram: Tensor) -> float:
        return max(self.penalty, _VARIANCE_PENALTY * float(gram.diagonal().mean()))


@dataclass(frozen=True)
class EigenPro:
    r"""Solver on all rows by preconditioned mini-batches.

    Attributes:
        penalty: :math:`\lambda`, and the descent runs until the residual is small; None: no penalty, and the descent
            stops when the error of held-out rows does not fall enough, which is the regularisation.
        passes: Most passes over the rows; None for 10 with held-out rows, 200 without.
        worth: Least relative fall of the held-out error in a pass that is worth another pass.
        residual: Relative residual that ends a fit without held-out rows; None for the root of the dtype's eps.
        generator: Randomness of the batches, the same on all ranks.
    """

    penalty: float | None = None
    passes: int | None = None
    worth: float = 0.05
    residual: float | None = None
    generator: torch.Generator | None = None

    def solve(self, kernel: Kernel, x: Readable, y: Tensor, weight: Tensor | None = None) -> EigenProSolution:
        """The machine of all ranks' rows, in their dtype: ``(n, ...)``, ``(n, c)``, weights ``(n,)`` or None."""
        x, penalty = x[:], self.penalty or 0.0
        dtype = x.dtype if x.is_floating_point() else torch.float64

        # Rows of weight s^2 descend in the kernel s k(x, x') s' towards s y.
        counts = y.new_ones(len(y)) if weight is None else weight
        root = counts.sqrt()[:, None]
        mean = Rows(y).total(counts @ y) / Rows(y).total(counts.sum())
        inner, inputs, target = kernel, x, (root * (y - mean)).to(dtype)
        if weight is not None:
            if x.ndim != 2 or not x.is_floating_point():
                need, fix = "weighted rows must be vectors of numbers", "Use solver='exact' or 'landmarks'."
                raise ValueError(checks.sentence("eigenpro", need, f"{tuple(x.shape)} of {x.dtype}", fix))
            inner, inputs = WeightedRows(kernel), torch.cat((x, root.to(x)), 1)

        # Without a penalty some rows are held out.
        rows = Rows(inputs, target)
        order = torch.randperm(rows.n, generator=self.generator)
        count = min(rows.n // 20, _HELD_OUT) if self.penalty is None else 0
        held_out, training = order[:count], order[count:]
        preconditioner = make_preconditioner(inner, inputs, training, order, penalty, self.generator)

        # A far row may have a larger k(x, x) than those that the step was made for: then shorter steps are tried.
        for _ in range(_ATTEMPTS):
            descent = self._descend(inner, rows, training, held_out, preconditioner)
            if descent is not None:
                break
            preconditioner = preconditioner._replace(step=preconditioner.step / 4)
        else:
            need, fix = "the descent must converge", "Use solver='landmarks', or another kernel."
            raise ValueError(checks.sentence("eigenpro", need, f"step {4 * preconditioner.step:.1e}", fix))

        # Back from weighted rows. A held-out row of weight 0 tells nothing of its own prediction.
        weights, predicted, residual = descent
        anchors, weights, roots = Rows(x, root.to(weights) * weights, root).gather()
        counted = roots[held_out, 0] > 0
        left_out = predicted[counted] / roots[held_out][counted].to(predicted) + mean.to(predicted)
        solution = EigenProSolution(kernel, anchors, weights, mean, penalty, residual)
        if weight is not None:
            solution.scale = roots[:, 0]
        if count:
            solution.left_out, solution.rows = left_out, held_out[counted]
        return solution

    def _descend(
        self, kernel: Kernel, rows: Rows, training: Tensor, held_out: Tensor, preconditioner: Preconditioner
    ) -> tuple[Tensor, Tensor, float] | None:
        """Weights of this rank's rows, predictions of held-out rows, the residual; None where steps are too long."""
        x, y = rows.parts[0][:], rows.parts[1][:]
        sample, numbers, vectors, gains, step, batch_size = preconditioner
        penalty, first, last = self.penalty or 0.0, rows.place.start, rows.place.stop
        judged, known = rows.take(held_out)
        judged_sample = kernel(judged, sample).to(y) if len(held_out) else known[:, :0]
        weights, predicted = torch.zeros_like(y), torch.zeros_like(known)

        def move(batch: Tensor) -> float:
            """One step on these rows; their squared residuals before it, summed over rows and columns."""
            nonlocal predicted
            points, targets = rows.take(batch)
            residual = rows.total(tiled_product(kernel, points, x, weights)) - targets
            if penalty:
                residual = residual + penalty * Rows(weights).take(batch)
            # The batch moves by its residuals, the sample takes back what they do along the leading directions.
            change = -step * residual
            pulled = vectors.mT @ (kernel(sample, points).to(residual) @ change)
            correction = -(vectors @ (gains[:, None] * pulled))  # (s, c)
            for index, amount in ((batch, change), (numbers, correction)):
                mine = (index >= first) & (index < last)
                weights.index_add_(0, index[mine] - first, amount[mine])
            if len(known):
                predicted = predicted + tiled_product(kernel, judged, points, change) + judged_sample @ correction
            return float(residual.double().square().sum())

        # Passes over the rows until the held-out error, or the residual, says that it is time to stop.
        size = float(rows.total(y.double().square().sum())) / max(1, rows.n)
        tolerance = self.residual or math.sqrt(torch.finfo(y.dtype).eps)
        diverged = _FAR * max(size, torch.finfo(y.dtype).tiny)
        most = self.passes or 200
        if len(known) and self.passes is None:
            most = 10
        least, best, best_predicted = math.inf, weights.clone(), predicted
        for _ in range(most):
            before, squares = least, 0.0
            for batch in training[torch.randperm(len(training), generator=self.generator)].split(batch_size):
                moved = move(batch)
                if not moved <= diverged * len(batch):
                    return None
                squares += moved
                if len(known):
                    error = float((predicted - known).square().mean())
                    if error < least:
                        least, best, best_predicted = error, weights.clone(), predicted
            residual = math.sqrt(squares / len(training) / size) if size > 0 else 0.0
            done = residual <= tolerance
            if len(known):
                done = least > (1 - self.worth) * before
            if done:
                break
        else:
            if not len(known):
                checks.warn("eigenpro", f"residual {residual:.1e} after {most} passes, above {tolerance:.1e}.")

        # The best weights; held-out rows take part once, when they have said when to stop.
        if len(known):
            weights, predicted = best, best_predicted
        honest = predicted
        for batch in held_out.split(batch_size):
            move(batch)
        return weights, honest, residual


class Preconditioner(NamedTuple):
    """How the leading directions of the kernel are levelled.

    Attributes:
        rows: Sample, ``(s, ...)``.
        numbers: Their numbers among all ranks' rows, ``(s,)``.
        vectors: V, ``(s, q)``.
        gains: D, ``(q,)``.
        step: eta / m.
        batch: m.
    """

    rows: Tensor
    numbers: Tensor
    vectors: Tensor
    gains: Tensor
    step: float
    batch: int


def make_preconditioner(
    kernel: Kernel,
    x: Tensor,
    training: Tensor,
    order: Tensor,
    penalty: float,
    generator: torch.Generator | None,
) -> Preconditioner:
    """Eigenvectors of some rows, the step, and the batch that the step allows.

    Args:
        kernel: k.
        x: This rank's rows.
        training: Numbers of the rows that the descent runs over.
        order: Numbers of all ranks' rows, in random order.
        penalty: Ridge.
        generator: Start of the eigenvectors.
    """
    # About the q + 1 leading eigenpairs of a sample's Gram matrix: a preconditioner needs no exact ones.
    data, numbers = Rows(x), training[:_SAMPLE]
    rows = data.take(numbers)
    gram = kernel(rows)
    s, q = len(rows), max(0, min(_DIRECTIONS, len(rows) // 5 - 1))
    width = min(s, q + 1 + max(20, (q + 1) // 10))
    start = torch.randn(s, width, generator=generator, dtype=torch.float64).to(gram)
    basis = randomized_range(SymmetricOperator.from_matrix(gram), start, iterations=2)
    projected = (basis.mT @ (gram @ basis)).double()
    values, rotation = torch.linalg.eigh((projected + projected.mT) / 2)
    values, vectors = values.flip(0)[: q + 1].to(gram), basis @ rotation.flip(1)[:, :q].to(gram)
    rounding = 10 * torch.finfo(gram.dtype).eps * float(values[0])  # below, directions are rounding
    tail = max(float(values[-1]), rounding, torch.finfo(gram.dtype).tiny)
    values = values[:-1].clamp_min(tail)

    # What is left of k(x, x), at most, once the directions above the tail are levelled to it.
    judged = data.take(order[-_HELD_OUT:])
    energies = (kernel(judged, rows).to(vectors) @ vectors).square() / values  # (v, q)
    norms = kernel.diag(judged).to(energies)

    def level(tail: float) -> tuple[Tensor, float]:
        shrink, left = shrink_directions(values, energies, norms, values.new_tensor([tail]))
        return shrink[:, 0] / values, max(float(left), _LEAST_LEFT * float(norms.max())) + penalty

    most = min(_BATCH, len(training))
    gains, beta = level(tail)
    if beta * s > _DEGENERATE * most * tail:  # a kernel of low rank: nothing is left to level its top to
        tail = beta * s / most
        gains, beta = level(tail)

    # The critical batch, beyond which larger ones gain nothing, and its step.
    top = tail / s + penalty / max(1, data.n)
    fewest = _LEAST_BATCH if data.n > _MANY else 1
    batch = max(fewest, min(most, round(beta / max(top, 1e-12 * beta))))
    step = _STEP * longest_step(beta, top, batch) / batch
    used = gains > 0
    return Preconditioner(rows, numbers, vectors[:, used], gains[used], step, batch)


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
