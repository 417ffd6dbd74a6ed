r"""Kernel ridge from landmarks: ridge on landmark features, from sums over rows that can grow.

With landmarks z and W such that :math:`W W^T = K_{zz}^{-1}`, a row has features :math:`\varphi(x) = W^T k(z, x)`
(:class:`~mercer.features.landmarks.LandmarkFeatures`) and

.. math:: \min_\alpha \|y - \bar y - K_{xz} \alpha\|^2 + \lambda \alpha^T K_{zz} \alpha, \qquad
    \alpha = W (\Phi^T \Phi + \lambda I)^{-1} \Phi^T (y - \bar y).

The whitened system has no eigenvalue below :math:`\lambda`: it needs no repair, however close the landmarks are.
Only :math:`M = \sum_i w_i u_i u_i^T` of :math:`u = (\varphi, y, 1)` is kept of the rows; their weights are w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..features.landmarks import LandmarkFeatures
from ..kernels import Kernel
from ..linalg.blocks import block_rows, slices
from ..linalg.cholesky import cholesky
from ..rows.agreement import take_share
from ..rows.rows import Rows
from ..rows.stored import Readable
from .dual import PENALTIES, dual_path, relative_norm, walk, weighted_mean
from .eigenpro import EigenProSolution
from .solution import Solution, divide_by_prior, widen_floats

_LEAST, _SHARE, _MOST = 1000, 25, 3000  # landmarks of n rows: 1000 + n / 25, at most 3000
_JUDGED = 1000  # rows whose leave-one-out error chooses the penalty
_PILOT = 500  # rows whose best penalty the walk starts from


class LandmarkSolution(Solution):
    r"""A solution that more rows can be added to, exactly.

    Args:
        kernel: k.
        anchors: Landmarks z, ``(m, ...)``.
        weights: :math:`\alpha`, ``(m, c)``.
        mean: Mean of the targets, ``(c,)``.
        penalty: :math:`\lambda`.
        residual: Relative residual of the whitened system.
        whitener: W, ``(m, r)``.
        moments: M, ``(r + c + 1, r + c + 1)``.
        left_out: Leave-one-out predictions of all rows, landmarks as they are, ``(n, c)``; None after rows were added.
    """

    whitener: Tensor
    moments: Tensor

    def __init__(
        self,
        kernel: Kernel,
        anchors: Tensor,
        weights: Tensor,
        mean: Tensor,
        penalty: float,
        residual: float,
        whitener: Tensor,
        moments: Tensor,
        left_out: Tensor | None = None,
    ) -> None:
        super().__init__(kernel, anchors, weights, mean, penalty, residual, left_out=left_out)
        self.hold(whitener=whitener, moments=moments)

    @property
    def features(self) -> LandmarkFeatures:
        """The features of the landmarks."""
        return LandmarkFeatures(self.kernel, self.anchors, self.whitener)

    @override
    def predict_left_out(self) -> Tensor | None:
        return self.left_out

    @override
    def explain_variance(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        r"""By the deterministic training conditional: :math:`|k_x^T R|^2`, :math:`R R^T = W \Phi^T \Phi S^{-1} W^T`."""
        if self._factor is None:
            r = self.whitener.shape[1]
            values, vectors = torch.linalg.eigh(self.moments[:r, :r])
            share = values.clamp_min(0) / (values.clamp_min(0) + self.penalty)
            informed = share > torch.finfo(share.dtype).eps
            self._factor = self.whitener @ (vectors[:, informed] * share[informed].sqrt())
        x = widen_floats(x)
        shares = [self.weights.new_empty(0)]
        for part in slices(len(x), block_rows(4 * len(self.anchors) * 8)):
            known = (self.kernel(x[part], self.anchors).double() @ self._factor).square().sum(1)
            shares.append(divide_by_prior(known, self.kernel.diag(x[part])))
        return torch.cat(shares)


@dataclass(frozen=True)
class Landmarks:
    r"""Solver on m landmarks, rows drawn at random; all rows teach it, in memory or in a file.

    Attributes:
        m: Number of landmarks; None for one that grows with the rows.
        penalty: :math:`\lambda`; None for the one of least leave-one-out error on 1,000 of the rows.
        generator: Randomness, the same on all ranks.
    """

    m: int | None = None
    penalty: float | None = None
    generator: torch.Generator | None = None

    def solve(self, kernel: Kernel, x: Readable, y: Tensor, weight: Tensor | None = None) -> LandmarkSolution:
        """The machine of all ranks' rows: ``(n, ...)``, ``(n, c)``, weights ``(n,)`` or None."""
        rows = Rows(x)
        if self.m is not None and self.m > rows.n:
            checks.warn("KernelRidge", f"landmarks={self.m} is more than the {rows.n} rows; {rows.n} are used.")
        m = min(rows.n, min(_LEAST + rows.n // _SHARE, _MOST) if self.m is None else self.m)
        checks.memory("KernelRidge", f"{m} landmarks", 6 * m * m * 8, "Give fewer landmarks.")
        if weight is not None and not isinstance(x, Tensor) and not bool((weight > 0).all()):
            need, fix = "weights of rows in a file must be above 0", "Leave those rows out of the file."
            raise ValueError(checks.sentence("KernelRidge", need, float(weight.min()), fix))

        # The landmarks, their features, and the moments of all rows.
        order = torch.randperm(rows.n, generator=self.generator).to(y.device)
        features = LandmarkFeatures.at(kernel, widen_floats(rows.take(order[:m])), where="KernelRidge")
        moments = sum_moments(features, x, y, weight)
        worth = y.new_ones(len(y)) if weight is None else weight

        # The ridge: at the penalty given, or where the leave-one-out error of some rows stops falling.
        if self.penalty is not None:
            ridge = solve_ridge(moments, y.shape[1], self.penalty)
        else:
            judged, known, counts = Rows(x, y, worth).take(order[-_JUDGED:])
            phi = features(widen_floats(judged)).double()
            gram = kernel(widen_floats(judged[:_PILOT])).double()
            start = dual_path(gram, known[:_PILOT], weight=counts[:_PILOT]).penalty

            def attempt(penalty: float) -> tuple[float, Ridge]:
                ridge = solve_ridge(moments, y.shape[1], penalty)
                squares = (known - ridge.predict_left_out(moments, phi, known, counts)).square()
                return float(weighted_mean(squares, counts).mean()), ridge

            ridge = walk(attempt, start, PENALTIES[0] * float(gram.diagonal().mean()))

        # Leave-one-out predictions of rows in memory; those in a file would be read once more.
        left_out: Tensor | None = None
        if isinstance(x, Tensor) and rows.n > 1:

            def predict(x: Tensor, y: Tensor, worth: Tensor) -> Tensor:
                return ridge.predict_left_out(moments, features(widen_floats(x)).double(), y, worth)

            predictions = Rows(x, y, worth).map(predict, row_bytes=4 * m * 8)
            left_out = Rows(predictions).gather()
        return make_solution(features, moments, ridge, left_out)


def add_rows(
    solution: Solution, x: Readable, y: Tensor, weight: Tensor | None = None, *, where: str = "KernelRidge"
) -> LandmarkSolution:
    """The ridge of all rows so far and these of all ranks; kernel, penalty and landmarks stay.

    All rows of another solution become landmarks: its system gives their targets back, unless early stopping took the
    place of a penalty.
    """
    if isinstance(solution, EigenProSolution) and solution.rows is not None:
        need, fix = "partial_fit needs landmarks", "Give landmarks=2000, or start with partial_fit."
        raise ValueError(checks.sentence(where, need, f"{len(solution.anchors)} rows by eigenpro", fix))
    if isinstance(solution, LandmarkSolution):
        features, moments = solution.features, solution.moments
    else:
        anchors, weights = widen_floats(solution.anchors), solution.weights.double()
        counts = weights.new_ones(len(anchors)) if solution.scale is None else solution.scale.double().square()
        noise = solution.penalty * weights / torch.where(counts > 0, counts, 1.0)[:, None]
        known = solution(solution.anchors).double() + noise
        features = LandmarkFeatures.at(solution.kernel, anchors, where=where)
        # Every rank holds all anchors.
        moments = sum_moments(features, take_share(anchors), take_share(known), take_share(counts))
    moments = moments + sum_moments(features, x, y, weight)
    return make_solution(features, moments, solve_ridge(moments, y.shape[1], solution.penalty), None)


class Ridge(NamedTuple):
    r"""Ridge on landmark features.

    Attributes:
        factor: Cholesky factor of :math:`\Phi^T \Phi + \lambda I`, ``(r, r)``.
        coefficients: Weights of the features, ``(r, c + 1)``; the last column fits targets of 1.
        residual: Relative residual of the system.
        penalty: :math:`\lambda`.
    """

    factor: Tensor
    coefficients: Tensor
    residual: float
    penalty: float

    def predict_left_out(self, moments: Tensor, phi: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Leave-one-out predictions of rows in the moments: ``(b, r)``, ``(b, c)``, ``(b,)`` -> ``(b, c)``."""
        r, n = phi.shape[1], moments[-1, -1]
        mean = moments[r:-1, -1] / n
        half = torch.linalg.solve_triangular(self.factor, phi.mT, upper=False)
        room = (1 - weight * half.square().sum(0)).clamp_min(1e-9)  # a row that fixes its own fit has no held-out error
        fitted = phi @ self.coefficients  # (b, c + 1)
        # The mean of the other rows' targets differs from that of all.
        others = (n - weight).clamp_min(torch.finfo(y.dtype).eps * float(n))
        shift = (weight / others)[:, None] * (mean - y)
        residual = y - mean - fitted[:, :-1] - shift * (1 - fitted[:, -1:])
        predicted: Tensor = y - residual / room[:, None]
        return predicted


def sum_moments(features: LandmarkFeatures, x: Readable, y: Tensor, weight: Tensor | None) -> Tensor:
    r""":math:`M = \sum_i w_i u_i u_i^T` over all ranks' rows, block by block, in float64."""
    worth = y.new_ones(len(y)) if weight is None else weight

    def sum_block(x: Tensor, y: Tensor, worth: Tensor) -> Tensor:
        u = torch.cat((features(widen_floats(x)).double(), y, torch.ones_like(y[:, :1])), 1)
        u = worth.sqrt()[:, None] * u
        if u.device.type != "cpu":
            return u.mT @ u
        array = u.numpy()
        return torch.from_numpy(array.T @ array)  # numpy sees the symmetry and does half the work

    return Rows(x, y, worth).sum(sum_block, row_bytes=4 * len(features.landmarks) * 8)


def solve_ridge(moments: Tensor, c: int, penalty: float) -> Ridge:
    """The ridge of these moments at one penalty."""
    r = len(moments) - c - 1
    second, cross, total = moments[:r, :r], moments[:r, r:-1], moments[:r, -1:]
    system = second.clone()
    system.diagonal().add_(penalty)
    factor = cholesky(system, where="KernelRidge").factor
    mean = moments[r:-1, -1] / moments[-1, -1]
    right = torch.cat((cross - total * mean, total), 1)
    coefficients = torch.cholesky_solve(right, factor)
    residual = relative_norm(second @ coefficients + penalty * coefficients - right, right)
    return Ridge(factor, coefficients, residual, penalty)


def make_solution(
    features: LandmarkFeatures, moments: Tensor, ridge: Ridge, left_out: Tensor | None
) -> LandmarkSolution:
    """The ridge as weights on the landmarks."""
    whitener, r = features.whitener, features.whitener.shape[1]
    weights, mean = whitener @ ridge.coefficients[:, :-1], moments[r:-1, -1] / moments[-1, -1]
    return LandmarkSolution(
        features.kernel,
        features.landmarks,
        weights,
        mean,
        ridge.penalty,
        ridge.residual,
        whitener,
        moments,
        left_out,
    )
