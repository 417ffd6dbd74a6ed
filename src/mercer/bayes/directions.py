"""The k directions of weight space that the data says most about, and outputs of new rows seen through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from typing_extensions import override

from ..linalg.blocks import slices
from ..linalg.eigen import randomized_range
from ..linalg.operators import SymmetricOperator
from ..rows.rows import Rows
from ..rows.stored import Readable
from .eigenfunction_network import EigenfunctionNetwork, read_embedding
from .jacobian import Jacobian, LastLayerJacobian, RowwiseJacobian
from .layer_signals import MisalignedRowsError
from .likelihood import Likelihood
from .network import zero_row

_RANGE_ROWS = 1024  # directions of more rows differ little: the Gauss-Newton matrix in them is of all rows
_PSI_BYTES = 256 * 2**20
_ONE_PASS_ROWS = 512  # rows at a time, at least, where one forward pass gives all


def leading_directions(
    jacobian: Jacobian,
    x: Readable,
    f: Tensor,
    k: int,
    density: Likelihood,
    *,
    weighted: bool,
    iterations: int,
    batch_size: int,
    seed: int,
) -> Tensor:  # -> (p, min(k, n c, p))
    r"""Orthonormal Q near the dominant range of :math:`J^\top \Lambda^{1/2}`.

    `mercer.linalg.randomized_range` of :math:`J^\top \Lambda J` from :math:`J^\top \Lambda^{1/2} \Omega`. A k of n c or
    more spans all of it; a k of p or more is every direction there is. A smaller k is found on at most 1,024 rows, or
    4 k, spread evenly.

    Args:
        jacobian: J.
        x: Rows, this rank's; products are summed over ranks.
        f: Outputs at the rows ``(n, c)``.
        k: Directions.
        density: Whose :math:`\Lambda`.
        weighted: False leaves :math:`\Lambda` out: the range of the NTK's leading eigenfunctions.
        iterations: Power steps.
        batch_size: Rows at a time.
        seed: Decides :math:`\Omega`.
    """
    rows = Rows(f)
    first, n, c = rows.place.start, rows.n, f.shape[1]
    rank = min(k, n * c, jacobian.size)
    if rank == jacobian.size:  # every direction there is
        return torch.eye(rank, dtype=f.dtype, device=f.device)

    # Choose rows that are spread evenly over those of all ranks, and keep this rank's. A k of n c spans the range of
    # all rows, so none may be left out.
    count = min(n, max(_RANGE_ROWS, 4 * k))
    if rank == n * c:
        count = n
    spread = torch.linspace(0, n - 1, count, dtype=torch.float64).round().long().unique()
    of_this_rank = ((spread >= first) & (spread < first + len(f))).nonzero()[:, 0]
    places = spread[of_this_rank] - first

    # Draw Omega for all chosen rows on every rank: the directions then do not depend on the number of ranks.
    generator = torch.Generator(device=f.device).manual_seed(seed)
    omega = torch.randn(len(spread), c, rank, dtype=f.dtype, device=f.device, generator=generator)[of_this_rank]

    def sum_over_rows(q: Tensor | None) -> Tensor:  # -> (p, rank)
        """J^T Lambda J q; without q the start of the range finder, J^T Lambda^1/2 Omega."""
        total = torch.zeros(jacobian.size, rank, dtype=f.dtype, device=f.device)
        for part in slices(len(places), batch_size):
            # The rows come in ascending order: a file is read as one stretch.
            index = places[part]
            block = x[int(index[0]) : int(index[-1]) + 1]
            if len(block) > len(index):
                block = block[index - index[0]]
            if q is None:
                u = omega[part]
                if weighted:
                    u = density.curvature_root(f[index], u)
            else:
                u = jacobian.along(block, q)
                if weighted:
                    u = density.curvature_product(f[index], u)
            total += jacobian.pull(block, u)
        return rows.total(total)

    operator = SymmetricOperator(sum_over_rows, jacobian.size, dtype=f.dtype, device=f.device)
    return randomized_range(operator, sum_over_rows(None), iterations=iterations)


class Curvature:
    r"""The Gauss-Newton matrix in k directions, :math:`\sum_i \Psi_i^\top \Lambda_i \Psi_i`, for any likelihood.

    :math:`\Psi_i = J(x_i) Q` is kept for as many rows as fit 256 MiB, spread evenly. Of a whole last layer it is
    :math:`\sum_i \Lambda_i \otimes \phi_i \phi_i^\top`, from the features alone.

    Args:
        jacobian: J.
        x: Rows, this rank's.
        f: Outputs at the rows ``(n, c)``.
        q: Directions ``(p, k)``.
        batch_size: Rows at a time.
    """

    def __init__(self, jacobian: Jacobian, x: Readable, f: Tensor, q: Tensor, batch_size: int) -> None:
        self.jacobian, self.x, self.f, self.q, self.batch_size = jacobian, x, f, q, batch_size
        self.k = q.shape[1]
        self.features: Tensor | None = None
        # A whole last layer needs no Psi: J is made of the features.
        if isinstance(jacobian, LastLayerJacobian) and self.k == jacobian.size:  # Q is the identity
            no_rows = f.new_zeros(0, self.k // f.shape[1])
            self.features = torch.cat([no_rows, *(jacobian.features(x[p])[1] for p in slices(len(x), batch_size))])
            return
        # Keep Psi of every row, or of every second, third, ... where all would not fit.
        room = max(1, _PSI_BYTES // (f.shape[1] * self.k * f.dtype.itemsize))
        self.stride = max(1, -(-len(f) // room))
        blocks = [psi[-part.start % self.stride :: self.stride] for part, psi in self._read_psi()]
        self.psi = torch.cat([f.new_zeros(0, f.shape[1], self.k), *blocks])  # (n / stride, c, k)

    def at(self, density: Likelihood, *, every_row: bool = False) -> Tensor:  # -> (k, k), float64
        """The matrix for this likelihood; rows that were not kept count by those that were, unless ``every_row``."""

        def product(f: Tensor, psi: Tensor) -> Tensor:  # (n, c), (n, c, k) -> (k, k)
            return (psi.flatten(0, 1).mT @ density.curvature_product(f, psi).flatten(0, 1)).double()

        total = torch.zeros(self.k, self.k, dtype=torch.float64, device=self.f.device)
        if self.features is not None and isinstance(self.jacobian, LastLayerJacobian):
            eye = torch.eye(self.f.shape[1], dtype=self.f.dtype, device=self.f.device)
            hessians = density.curvature_product(self.f, eye.expand(len(self.f), -1, -1))  # (n, c, c)
            total = self.jacobian.curvature(self.features, hessians).double()
        elif every_row and self.stride > 1:
            for part, psi in self._read_psi():
                total += product(self.f[part], psi)
        else:
            f = self.f[:: self.stride]
            for part in slices(len(f), 1024):
                total += product(f[part], self.psi[part])
            # Rows that were not kept count as the kept ones do on average.
            total *= len(self.f) / max(1, len(f))
        total = Rows(self.f).total(total)
        return (total + total.mT) / 2

    def eigenvalues(self, density: Likelihood) -> Tensor:  # -> (k,)
        """Of the matrix, descending."""
        return eigenpairs(self.at(density))[0]

    def spread_of(self, psi: Tensor, outside: Tensor) -> Callable[[Likelihood], Callable[[float], Tensor]]:
        """Covariances of rows' outputs as a function of the likelihood, then of the prior precision.

        Args:
            psi: The rows' Psi ``(n, c, k)``.
            outside: What they have outside the directions ``(n, c)``, for variances alone, or ``(n, c, c)``.
        """

        def at(density: Likelihood) -> Callable[[float], Tensor]:
            values, vectors = eigenpairs(self.at(density))
            rotated = psi @ vectors.to(psi.dtype)
            if outside.ndim == 3:
                return lambda precision: covariance(rotated, outside, values, precision)
            # The squares are most of the cost, and all that variances need.
            squares = rotated.square()
            return lambda precision: squares @ (1 / (values + precision)).to(squares.dtype) + outside / precision

        return at

    def _read_psi(self) -> Iterator[tuple[slice, Tensor]]:  # -> (b, c, k) each
        for part in slices(len(self.x), self.batch_size):
            yield part, self.jacobian.along(self.x[part], self.q)


class Span:
    r"""Outputs of new rows, with weights that vary in the span of Q alone: :math:`N(\theta, Q D Q^\top)`.

    :math:`D = \mathrm{diag}(1 / (\lambda + \delta))` for the eigenvalues :math:`\lambda` of the Gauss-Newton matrix
    in Q and the prior precision :math:`\delta`. So it is where Q are all directions, or without the complement.
    Classes below change what is not so in their mode; all give the same posterior where two modes meet.

    Args:
        jacobian: J.
        directions: Q ``(p, k)``.
        batch_size: Rows at a time.
    """

    def __init__(self, jacobian: Jacobian, directions: Tensor, batch_size: int) -> None:
        self.jacobian, self.directions, self.batch_size = jacobian, directions, batch_size

    def parts(
        self, x: Tensor, *, full: bool, gradients: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:  # -> (n, c), (n, c, k), (n, c) or (n, c, c)
        r"""Outputs, :math:`\Psi`, and :math:`K(x, x) - \Psi \Psi^\top`, its diagonal unless ``full``."""
        if not len(x):  # a rank without rows: the shapes alone
            f, psi, outside = self.parts(zero_row(x), full=full)
            return f[:0], psi[:0], outside[:0]
        blocks = [self.block(x[part], full, gradients) for part in slices(len(x), self.batch_size)]
        f, psi, outside = (torch.cat(column) for column in zip(*blocks, strict=True))
        return f, psi, outside

    def block(self, x: Tensor, full: bool = False, gradients: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """The same for few rows at once."""
        f = self.jacobian.outputs(x)
        outside = torch.zeros_like(f)
        if full:
            outside = f.new_zeros(*f.shape, f.shape[1])
        return f, self.jacobian.along(x, self.directions), outside

    def moments(
        self, x: Tensor, values: Tensor, precision: float, *, full: bool, gradients: bool
    ) -> tuple[Tensor, Tensor]:  # -> (n, c), (n, c) or (n, c, c)
        """Outputs and their variance, or covariance where ``full``.

        Args:
            x: Rows.
            values: Eigenvalues ``(k,)`` of the Gauss-Newton matrix, whose eigenvectors the directions are.
            precision: The prior's.
            full: Covariances of a row's outputs.
            gradients: Keep the graph.
        """
        f, psi, outside = self.parts(x, full=full, gradients=gradients)
        return f, covariance(psi, outside, values, precision)

    def joint(self, x: Tensor, values: Tensor, precision: float) -> tuple[Tensor, Tensor]:  # -> (n, c), (n, n, c, c)
        """Outputs and the covariance of all rows with each other."""
        return self.jacobian.outputs(x), self._joint_within(x, 1 / (values + precision))

    def _joint_within(self, x: Tensor, weights: Tensor) -> Tensor:
        psi = self.jacobian.along(x, self.directions)
        return torch.einsum("nck,k,mdk->nmcd", psi, weights.to(psi.dtype), psi)

    def draw(
        self, x: Tensor, n: int, values: Tensor, precision: float, generator: torch.Generator | None
    ) -> Tensor:  # (rows, ...) -> (n, rows, c)
        """Outputs for n draws of the weights: one forward-mode derivative along each."""
        q = self.directions
        p, k = q.shape
        deviations = (1 / (values + precision)).sqrt().to(q.dtype)
        draws = []
        for part in slices(n, max(1, 2**24 // p)):
            size = part.stop - part.start
            # theta + Q D^1/2 z, and the prior's draw outside Q; the outputs are linear in it.
            z = torch.randn(k, size, generator=generator, dtype=q.dtype, device=x.device)
            weights = q @ (deviations[:, None] * z) + self._draw_outside(size, precision, generator)
            outputs = [self.jacobian.along(x[rows], weights) for rows in slices(len(x), self.batch_size)]
            draws.append(torch.cat(outputs).permute(2, 0, 1))
        return self.jacobian.outputs_of(x, self.batch_size) + torch.cat(draws)

    def _draw_outside(self, n: int, precision: float, generator: torch.Generator | None) -> Tensor | float:
        """What n draws of the weights have outside Q, ``(p, n)``."""
        return 0.0


class SpanAndComplement(Span):
    r"""The same with the prior's variance outside Q: :math:`N(\theta, Q D Q^\top + (I - Q Q^\top) / \delta)`."""

    @override
    def block(self, x: Tensor, full: bool = False, gradients: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        jacobian, q = self.jacobian, self.directions
        try:
            f, psi, kernel = jacobian.parts(x, q, diagonal=not full, gradients=gradients)
        except MisalignedRowsError:  # by these rows' values, unlike those of the check at fit
            plain = RowwiseJacobian(jacobian.network)
            f, psi, kernel = plain.parts(x, q, diagonal=not full, gradients=gradients)
        # K - Psi Psi^T is a difference: rounding may take its diagonal below 0
        if not full:
            return f, psi, (kernel - psi.square().sum(2)).clamp_min(0)
        outside = kernel - psi @ psi.mT
        negative = outside.diagonal(dim1=1, dim2=2).clamp_max(0)
        return f, psi, outside - torch.diag_embed(negative)

    @override
    def joint(self, x: Tensor, values: Tensor, precision: float) -> tuple[Tensor, Tensor]:
        # J J^T / delta is the prior's covariance in all directions; within Q the posterior's takes its place
        within = self._joint_within(x, 1 / (values + precision) - 1 / precision)
        return self.jacobian.outputs(x), within + self.jacobian.joint_kernel(x) / precision

    @override
    def _draw_outside(self, n: int, precision: float, generator: torch.Generator | None) -> Tensor | float:
        q = self.directions
        free = torch.randn(len(q), n, generator=generator, dtype=q.dtype, device=q.device)
        return (free - q @ (q.mT @ free)) / math.sqrt(precision)


class LastLayerSpan(Span):
    r"""The weights of a last linear layer: an output's variance is :math:`\phi^\top \Sigma_{ii} \phi`, features alone.

    Args:
        jacobian: Of the last layer.
        directions: Q ``(p, k)``.
        batch_size: Rows at a time.
        blocks: Where the blocks :math:`\Sigma_{ii}` are kept from call to call, by prior precision.
    """

    jacobian: LastLayerJacobian

    def __init__(
        self, jacobian: LastLayerJacobian, directions: Tensor, batch_size: int, blocks: dict[float, Tensor]
    ) -> None:
        super().__init__(jacobian, directions, batch_size)
        self.blocks = blocks

    @override
    def moments(
        self, x: Tensor, values: Tensor, precision: float, *, full: bool, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        if full:
            return super().moments(x, values, precision, full=full, gradients=gradients)
        # Each output's own block of the covariance is all that its variance needs.
        if precision not in self.blocks:
            self.blocks[precision] = self.jacobian.covariance_blocks(self.directions, 1 / (values + precision))
        step = max(_ONE_PASS_ROWS, self.batch_size)
        parts = [self.jacobian.variances(x[part], self.blocks[precision]) for part in slices(len(x), step)]
        return torch.cat([f for f, _ in parts]), torch.cat([variance for _, variance in parts])


class DistilledSpan(Span):
    r"""A small network gives :math:`\Psi` and the variance outside in one pass; covariances come by derivatives.

    Args:
        exact: The same span by derivatives.
        student: The small network.
        complement: Whether the variance outside counts.
        rotation: Turns the directions that the student learned to the eigenvectors found afterwards; None before.
    """

    def __init__(
        self, exact: Span, student: EigenfunctionNetwork, complement: bool, rotation: Tensor | None = None
    ) -> None:
        super().__init__(exact.jacobian, exact.directions, exact.batch_size)
        self.exact, self.student, self.complement, self.rotation = exact, student, complement, rotation

    @override
    def parts(self, x: Tensor, *, full: bool, gradients: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        if full or gradients:
            return self.exact.parts(x, full=full, gradients=gradients)
        outputs, psis, variances = [], [], []
        rows = x
        if not len(x):  # a rank without rows: the shapes alone
            rows = zero_row(x)
        for part in slices(len(rows), max(_ONE_PASS_ROWS, self.batch_size)):
            f, embedding = read_embedding(self.jacobian.network, rows[part])
            psi, outside = self.student.parts(embedding)
            if self.rotation is not None:
                psi = psi @ self.rotation
            if not self.complement:
                outside = torch.zeros_like(outside)
            outputs.append(f)
            psis.append(psi)
            variances.append(outside)
        n = len(x)
        return torch.cat(outputs)[:n], torch.cat(psis)[:n], torch.cat(variances)[:n]

    @override
    def joint(self, x: Tensor, values: Tensor, precision: float) -> tuple[Tensor, Tensor]:
        return self.exact.joint(x, values, precision)

    @override
    def draw(self, x: Tensor, n: int, values: Tensor, precision: float, generator: torch.Generator | None) -> Tensor:
        return self.exact.draw(x, n, values, precision, generator)


def covariance(psi: Tensor, outside: Tensor, values: Tensor, precision: float) -> Tensor:
    r""":math:`\Psi D \Psi^\top` and the prior's variance outside: ``(n, c, c)``, or ``(n, c)`` if ``outside`` is."""
    weights = (1 / (values + precision)).to(psi.dtype)
    if outside.ndim == 3:
        return (psi * weights) @ psi.mT + outside / precision
    return psi.square() @ weights + outside / precision


def eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:  # (k, k) -> (k,), (k, k)
    """Of a symmetric matrix, descending, none below 0."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0).clamp_min(0), vectors.flip(1)
