r"""Kernel ridge from landmarks: sums over rows that can grow, part by part and over ranks.

With landmarks z and W such that :math:`W W^T = K_{zz}^{-1}`, a row has features :math:`\varphi(x) = W^T k(z, x)` and

.. math:: \min_\alpha \|y - \bar y - K_{xz} \alpha\|^2 + \lambda \alpha^T K_{zz} \alpha, \qquad
    \alpha = W (\Phi^T \Phi + \lambda I)^{-1} \Phi^T (y - \bar y).

The whitened system has no eigenvalue below :math:`\lambda`: it needs no repair, however close the landmarks are.
Rows of weight w count w times in every sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..distributed import global_slice, sum_over_ranks, take_rows
from ..kernels import Kernel
from ..linalg.blocks import block_rows, slices
from ..linalg.cholesky import cholesky, inverse_root
from ..rows.stored import Readable
from ..storage.savable import Savable
from .dual import PENALTIES, dual_path, walk, weighted_mean

_LEAST, _SHARE, _MOST = 1000, 25, 3000
_JUDGED = 1000  # rows whose leave-one-out error chooses the penalty
_PILOT = 500  # rows whose best penalty the walk starts from


class LandmarkMachine(Savable):
    r"""What ridge on landmarks knows of the rows so far.

    Args:
        landmarks: z, ``(m, ...)``.
        whitener: W, ``(m, r)``.
        second: :math:`\sum_i w_i \varphi_i \varphi_i^T`, ``(r, r)``.
        cross: :math:`\sum_i w_i \varphi_i y_i^T`, ``(r, c)``.
        total: :math:`\sum_i w_i \varphi_i`, ``(r,)``.
        targets: :math:`\sum_i w_i y_i`, ``(c,)``.
        n: :math:`\sum_i w_i`: the number of rows, where they have no weights.
    """

    def __init__(
        self,
        landmarks: Tensor,
        whitener: Tensor,
        second: Tensor,
        cross: Tensor,
        total: Tensor,
        targets: Tensor,
        n: float,
    ) -> None:
        self.landmarks, self.whitener = landmarks, whitener
        self.second, self.cross, self.total, self.targets, self.n = second, cross, total, targets, n

    def get_arguments(self) -> dict[str, object]:
        """The sums as they are now."""
        names = ("landmarks", "whitener", "second", "cross", "total", "targets", "n")
        return {name: getattr(self, name) for name in names}

    def to(self, device: torch.device | str) -> LandmarkMachine:
        """The same machine on a device."""
        landmarks, whitener = self.landmarks.to(device), self.whitener.to(device)
        second, cross, total = self.second.to(device), self.cross.to(device), self.total.to(device)
        return LandmarkMachine(landmarks, whitener, second, cross, total, self.targets.to(device), self.n)

    @classmethod
    def at(cls, kernel: Kernel, landmarks: Tensor, c: int) -> LandmarkMachine:
        """A machine that has seen no rows yet."""
        z = wide(landmarks)
        gram = kernel(z).double()
        whitener = inverse_root(gram, len(z) * torch.finfo(torch.float64).eps, where="KernelRidge")
        r = whitener.shape[1]
        zeros = whitener.new_zeros
        return cls(landmarks, whitener, zeros(r, r), zeros(r, c), zeros(r), zeros(c), 0)

    def add(self, kernel: Kernel, x: Readable, y: Tensor, weight: Tensor | None = None) -> LandmarkMachine:
        """The machine with all ranks' rows added, block by block, in float64: ``(n, ...)``, ``(n, c)``, ``(n,)``."""
        second, cross = torch.zeros_like(self.second), torch.zeros_like(self.cross)
        total = torch.zeros_like(self.total)
        own = y.new_ones(len(x)) if weight is None else weight
        for part, phi in self.features(kernel, x):
            second += symmetric_product(phi if weight is None else own[part].sqrt()[:, None] * phi)
            cross.addmm_(phi.mT, own[part][:, None] * y[part])
            total += own[part] @ phi
        sums = (second, cross, total, own @ y, own.sum())
        second, cross, total, targets, n = (sum_over_ranks(one) for one in sums)
        return LandmarkMachine(
            self.landmarks,
            self.whitener,
            self.second + second,
            self.cross + cross,
            self.total + total,
            self.targets + targets,
            self.n + float(n),
        )

    def features(self, kernel: Kernel, x: Readable) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows with their features phi, ``(b, r)``."""
        z = wide(self.landmarks)
        for part in slices(len(x), block_rows(4 * len(z) * 8)):
            yield part, kernel(wide(x[part]), z).double() @ self.whitener

    def scatter(self, kernel: Kernel) -> Tensor:  # (m, m)
        r""":math:`\sum_i k(z, x_i) k(z, x_i)^T`, from the whitened sums."""
        root = kernel(wide(self.landmarks)).double() @ self.whitener
        return root @ self.second @ root.mT

    @property
    def mean(self) -> Tensor:
        """Mean of the targets, ``(c,)``."""
        return self.targets / (self.n or 1)

    def solve(self, penalty: float) -> LandmarkSolution:
        """Coefficients of the features, and what leave-one-out and variance need."""
        system = self.second.clone()
        system.diagonal().add_(penalty)
        factor = cholesky(system, where="KernelRidge").factor
        right = torch.cat((self.cross - self.total[:, None] * self.mean, self.total[:, None]), 1)
        return LandmarkSolution(factor, torch.cholesky_solve(right, factor), right, penalty)

    def held_out(self, solution: LandmarkSolution, phi: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Leave-one-out predictions of rows in the sums, landmarks as they are: ``(b, r)``, ``(b, c)``, ``(b,)``."""
        weight = y.new_ones(len(y)) if weight is None else weight
        half = torch.linalg.solve_triangular(solution.factor, phi.mT, upper=False)
        room = (1 - weight * half.square().sum(0)).clamp_min(1e-9)  # a row that fixes its own fit has no held-out error
        fitted = phi @ solution.coefficients  # (b, c + 1), the last: the fit to targets of 1
        left = (self.n - weight).clamp_min(torch.finfo(y.dtype).eps * self.n)
        others = (weight / left)[:, None] * (self.mean - y)
        residual = y - self.mean - fitted[:, :-1] - others * (1 - fitted[:, -1:])
        predicted: Tensor = y - residual / room[:, None]
        return predicted

    def known_root(self, penalty: float) -> Tensor:  # -> (m, r)
        r"""R with :math:`|k_x^T R|^2` the variance known at x: :math:`R R^T = W \Phi^T \Phi S^{-1} W^T`."""
        values, vectors = torch.linalg.eigh(self.second)
        share = values.clamp_min(0) / (values.clamp_min(0) + penalty)
        told = share > torch.finfo(share.dtype).eps
        root: Tensor = self.whitener @ (vectors[:, told] * share[told].sqrt())
        return root

    def known_share(self, kernel: Kernel, root: Tensor, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        """The share of the prior variance that is known, from :meth:`known_root`."""
        shares, z = [], wide(self.landmarks)
        for part in slices(len(x), block_rows(4 * len(z) * 8)):
            rows = wide(x[part])
            known = (kernel(rows, z).double() @ root).square().sum(1)
            prior = kernel.diag(rows).double()
            shares.append(torch.where(prior > 0, known / prior.where(prior > 0, torch.ones_like(prior)), 1.0))
        return torch.cat([*shares, self.total.new_empty(0)])


class LandmarkSolution(NamedTuple):
    r"""A solved machine.

    Attributes:
        factor: Cholesky factor of :math:`\Phi^T \Phi + \lambda I`, ``(r, r)``.
        coefficients: Weights of the features, ``(r, c + 1)``; the last column fits targets of 1.
        right: The right-hand side.
        penalty: :math:`\lambda`.
    """

    factor: Tensor
    coefficients: Tensor
    right: Tensor
    penalty: float


def landmark_count(n: int, landmarks: int | None) -> int:
    """Landmarks for n rows: the number asked for, or one that grows with the rows; at most n."""
    if landmarks is not None and landmarks > n:
        checks.warn("KernelRidge", f"landmarks={landmarks} is more than the {n} rows; {n} are used.")
    return min(n, min(_LEAST + n // _SHARE, _MOST) if landmarks is None else landmarks)


def landmark_machine(
    kernel: Kernel,
    x: Readable,
    y: Tensor,
    m: int,
    penalty: float | None,
    generator: torch.Generator | None,
    weight: Tensor | None = None,
) -> tuple[LandmarkMachine, LandmarkSolution]:
    """Sums over the rows of all ranks and their solution; ``penalty`` None: by leave-one-out on 1,000 of the rows."""
    n = global_slice(len(x))[1]
    order = torch.randperm(n, generator=generator).to(y.device)
    machine = LandmarkMachine.at(kernel, take_rows(x, order[:m]), y.shape[1]).add(kernel, x, y, weight)
    if penalty is not None:
        return machine, machine.solve(penalty)
    weight = y.new_ones(len(x)) if weight is None else weight
    judged, known, worth = (take_rows(part, order[-_JUDGED:]) for part in (x, y, weight))
    phi = torch.cat([block for _, block in machine.features(kernel, judged)])
    gram = kernel(wide(judged[:_PILOT])).double()
    start = dual_path(gram, known[:_PILOT], weight=worth[:_PILOT]).penalty

    def attempt(penalty: float) -> tuple[float, LandmarkSolution]:
        solution = machine.solve(penalty)
        squares = (known - machine.held_out(solution, phi, known, worth)).square()
        return float(weighted_mean(squares, worth).mean()), solution

    return machine, walk(attempt, start, PENALTIES[0] * float(gram.diagonal().mean()))


def wide(x: Tensor) -> Tensor:
    """Floats in float64; indices as they are."""
    return x.double() if x.is_floating_point() else x


def symmetric_product(phi: Tensor) -> Tensor:  # (b, r) -> (r, r)
    """``phi.T @ phi``; numpy sees the symmetry and does half the work."""
    if phi.device.type != "cpu":
        return phi.mT @ phi
    array = phi.numpy()
    return torch.from_numpy(array.T @ array)
