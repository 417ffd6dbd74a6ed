r"""Kernel ridge by a Cholesky factor of the Gram matrix: some thousand rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import checks
from ..kernels import Kernel
from ..linalg.blocks import slices
from ..linalg.cholesky import cholesky_in_place, solve_factored
from ..rows.rows import Rows
from ..rows.stored import Readable
from .dual import relative_norm, tune_penalty, weighted_mean
from .solution import Solution, compute_fresh_gram, widen_floats

_RESIDUAL_ROWS = 512  # rows of the system that are multiplied at a time


@dataclass(frozen=True)
class Exact:
    r"""Solver of :math:`(K + \lambda W^{-1}) \alpha = y - \bar y` on every row.

    Attributes:
        penalty: :math:`\lambda`; None for the one of least leave-one-out error.
        start: Where the search for it starts; None for the best penalty of at most 1,000 rows.
    """

    penalty: float | None = None
    start: float | None = None

    def solve(self, kernel: Kernel, x: Readable, y: Tensor, weight: Tensor | None = None) -> Solution:
        """The machine of all ranks' rows, the same on each: ``(n, ...)``, ``(n, c)``, weights ``(n,)`` or None."""
        # Every rank holds the system of all rows.
        anchors, y = Rows(x[:], y).gather()
        anchors = widen_floats(anchors)
        if weight is not None:
            weight = Rows(weight).gather()
        copies = 4.0 if self.penalty is None else 1.2  # a fixed penalty is solved in the memory of the Gram matrix
        fix = "Use solver='landmarks' or 'eigenpro'."
        needed = int(copies * len(anchors) ** 2 * 8)
        checks.memory("KernelRidge", f"the Gram matrix of {len(anchors)} rows", needed, fix)
        gram = compute_fresh_gram(kernel, anchors)
        scale = None if weight is None else weight.sqrt()

        # The penalty by leave-one-out.
        if self.penalty is None:
            fit = tune_penalty(gram, y, self.start, weight=weight)
            noise = fit.penalty * fit.weights
            if weight is not None:
                noise = noise / weight[:, None]
            left = (gram @ fit.weights + noise - (y - fit.mean)).nan_to_num(0.0)  # rows of weight 0 are no equations
            residual = relative_norm(left, y - fit.mean)
            solution = Solution(kernel, anchors, fit.weights, fit.mean, fit.penalty, residual, scale=scale)
            if len(anchors) > 1:
                solution.left_out = solution.fill_unweighted(fit.held_out)
            return solution

        # A fixed penalty: S K S + penalty I in the place of K, its factor in the same place.
        root = y.new_ones(len(y)) if scale is None else scale
        if weight is not None:
            gram.mul_(root[:, None]).mul_(root)
        gram.diagonal().add_(self.penalty)
        diagonal = gram.diagonal().clone()
        factor, jitter = cholesky_in_place(gram, where="KernelRidge")
        mean = weighted_mean(y, weight)
        right = root[:, None] * (y - mean)
        solved = solve_factored(factor, right)

        # The residual, from the system's diagonal and what is left of it above the factor.
        product = (diagonal + jitter)[:, None] * solved
        for part in slices(len(gram), _RESIDUAL_ROWS):
            strip = gram[part, part.start :].triu(1)
            product[part] += strip @ solved[part.start :]
            product[part.start :] += strip.mT @ solved[part]
        residual = relative_norm(product - right, right)
        penalty = self.penalty + jitter
        return Solution(kernel, anchors, root[:, None] * solved, mean, penalty, residual, scale=scale)
