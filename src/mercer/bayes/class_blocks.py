"""The exact posterior of a last linear layer with many outputs, without a matrix of weights times weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from ..linalg.blocks import block_rows, slices
from ..linalg.cholesky import cholesky
from ..rows.rows import Rows
from ..rows.stored import Readable
from ..storage.savable import Savable
from .directions import Span
from .jacobian import LastLayerJacobian
from .likelihood import Likelihood
from .network import zero_row

_ROWS = 4096  # rows in U; the matrix of these rows is inverted
_COUPLINGS = 2**22  # numbers b of these rows
_PRODUCTS = 2 * 10**9  # multiplications that the couplings may take
_NUMBERS = 2**25  # of the blocks of all outputs
_HELD_BYTES = 256 * 2**20


@dataclasses.dataclass
class ClassBlocks(Savable):
    r"""Covariance of the weights of a last layer with features :math:`\phi`, a 1 appended for the bias.

    With :math:`\Lambda_i = \mathrm{diag}(a_i) - b_i b_i^\top` the Gauss-Newton matrix and the prior's precision are

    .. math:: \sum_i \Lambda_i \otimes \phi_i \phi_i^\top + \delta I = B - U U^\top, \qquad
        B_j = \sum_i a_{ij} \phi_i \phi_i^\top + \delta I, \qquad U_i = b_i \otimes \phi_i

    a block for each output j, less one column for each row i. By Woodbury's identity the inverse is

    .. math:: \Sigma = B^{-1} + B^{-1} U M^{-1} U^\top B^{-1}, \qquad M = I - U^\top B^{-1} U

    Args:
        inverses: :math:`B_j^{-1}`, ``(c, d, d)``.
        covariances: The blocks :math:`\Sigma_{jj}`, ``(c, d, d)``: all that variances need.
        features: :math:`\phi` of the rows in U, ``(m, d)``.
        couplings: b of the rows in U, ``(m, c)``.
        inner: :math:`M^{-1}`, ``(m, m)``.
        log_determinant: :math:`\log \det (\Sigma^{-1} / \delta)`.
    """

    inverses: Tensor
    covariances: Tensor
    features: Tensor
    couplings: Tensor
    inner: Tensor
    log_determinant: float


def fits_class_blocks(c: int, d: int) -> bool:
    """Whether the blocks of c outputs of d features each can be held."""
    return c * d * d <= _NUMBERS


class ClassCurvature:
    r"""The Gauss-Newton matrix :math:`\sum_i \Lambda_i \otimes \phi_i \phi_i^\top` of a last layer, for any likelihood.

    Args:
        jacobian: Of the last layer.
        x: Rows, this rank's.
        f: Outputs at the rows ``(n, c)``.
        batch_size: Rows at a time.
    """

    def __init__(self, jacobian: LastLayerJacobian, x: Readable, f: Tensor, batch_size: int) -> None:
        self.jacobian, self.f, self.batch_size = jacobian, f, batch_size
        self.phi = self._read_features(x)  # (n, d)

    def eigenvalues(self, density: Likelihood) -> Tensor:  # -> (c d,)
        """Of its diagonal blocks: they stand for the whole matrix where the evidence chooses the prior precision."""
        return self._diagonal_eigenpairs(density)[0].flatten()

    def spread_of(self, x: Tensor) -> Callable[[Likelihood], Callable[[float], Tensor]]:
        """Variances ``(n, c)`` of rows' outputs as a function of the likelihood, then of the prior precision.

        By the diagonal blocks alone, whose eigenvectors serve all precisions.
        """
        phi = self._read_features(x)

        def at(density: Likelihood) -> Callable[[float], Tensor]:
            values, vectors = self._diagonal_eigenpairs(density)
            # Squares of the rows in the eigenvectors serve every precision, where all of them can be held.
            squares = None
            if len(phi) * values.numel() * phi.element_size() <= _HELD_BYTES:
                squares = (phi @ vectors).square()  # (c, n, d)

            def spread(precision: float) -> Tensor:
                weights = (1 / (values + precision)).to(phi.dtype)
                if squares is not None:
                    return torch.einsum("cnd,cd->nc", squares, weights)
                return torch.stack([(phi @ v).square() @ w for v, w in zip(vectors, weights, strict=True)], 1)

            return spread

        return at

    def invert(self, density: Likelihood, precision: float) -> ClassBlocks:
        r"""The inverse of the matrix with the prior precision :math:`\delta` on its diagonal.

        It is exact up to 4,096 rows, 4 million couplings b and 2 10^9 multiplications. Beyond, only the rows whose
        outputs are coupled most, and in each only its largest couplings, are in U. A coupling :math:`b_{ij}` that is
        left out is set to 0, and :math:`a_{ij}` to :math:`a_{ij} - b_{ij}^2`: the diagonal blocks stay exact, and the
        matrix stays positive.
        """
        phi, f = self.phi, self.f
        dtype, c, d = phi.dtype, f.shape[1], phi.shape[1]

        # The rows whose outputs are coupled most: the sum of b_j b_k |phi|^2 over two different outputs.
        def measure(phi: Tensor, f: Tensor) -> Tensor:
            b = density.curvature_parts(f.double())[1]
            return (b.sum(1).square() - b.square().sum(1)) * phi.double().square().sum(1)

        strength = Rows(phi, f).map(measure, row_bytes=4 * 8 * c)
        strengths = Rows(strength).gather()  # of all ranks
        m = min(_ROWS, _COUPLINGS // c, int((strengths > 0).sum()))
        features, outputs = (part.double() for part in Rows(phi, f).take(strengths.topk(m).indices.sort().values))

        # In each row its largest couplings: an output that n_j rows are coupled to costs n_j^2 d multiplications.
        couplings = density.curvature_parts(outputs)[1]
        width = int(math.sqrt(_PRODUCTS * c / (d * max(m, 1) ** 2)))
        if width < c:
            largest = couplings.topk(max(1, width), 1)
            couplings = torch.zeros_like(couplings).scatter_(1, largest.indices, largest.values)

        # B, and its inverse.
        eye = torch.eye(d, dtype=torch.float64, device=f.device)
        blocks = self._sum_diagonal(density, torch.float64) + _weigh_squares(features, couplings.square())
        roots = torch.linalg.cholesky(blocks + precision * eye)
        inverses = torch.cholesky_inverse(roots)
        log_determinant = 2 * float(roots.diagonal(dim1=1, dim2=2).log().sum()) - c * d * math.log(precision)

        # M = I - U^T B^-1 U, one output after the other, each with its own rows.
        matrix = torch.eye(m, dtype=torch.float64, device=f.device)
        members = [couplings[:, j].nonzero()[:, 0] for j in range(c)]
        for j, rows in enumerate(members):
            weighted = features[rows] * couplings[rows, j, None]
            product = weighted @ inverses[j] @ weighted.mT
            if len(rows) == m:
                matrix -= product
            else:
                matrix[rows[:, None], rows] -= product
        root = cholesky(matrix, where="LinearizedLaplace").factor
        del matrix
        log_determinant += 2 * float(root.diagonal().log().sum())

        # The blocks of Sigma: B_j^-1 + B_j^-1 U_j M^-1 U_j^T B_j^-1.
        inner = torch.cholesky_inverse(root)
        del root
        covariances = torch.empty(c, d, d, dtype=dtype, device=f.device)
        for j, rows in enumerate(members):
            columns = (features[rows] * couplings[rows, j, None]) @ inverses[j]  # (n_j, d)
            part = inner
            if len(rows) < m:
                part = inner[rows[:, None], rows]
            covariances[j] = (inverses[j] + columns.mT @ part @ columns).to(dtype)
        inverses, features, couplings, inner = (part.to(dtype) for part in (inverses, features, couplings, inner))
        return ClassBlocks(inverses, covariances, features, couplings, inner, log_determinant)

    def _diagonal_eigenpairs(self, density: Likelihood) -> tuple[Tensor, Tensor]:  # -> (c, d), (c, d, d)
        values, vectors = torch.linalg.eigh(self._sum_diagonal(density, self.phi.dtype))
        return values.double().clamp_min(0), vectors

    def _sum_diagonal(self, density: Likelihood, dtype: torch.dtype) -> Tensor:  # -> (c, d, d)
        """The diagonal blocks, over the rows of all ranks."""

        def add(phi: Tensor, f: Tensor) -> Tensor:
            a, b = density.curvature_parts(f.to(dtype))
            return _weigh_squares(phi.to(dtype), a - b.square())

        return Rows(self.phi, self.f).sum(add, row_bytes=4 * 8 * self.f.shape[1])

    def _read_features(self, x: Readable) -> Tensor:  # (n, ...) -> (n, d)
        if not len(x):
            return self.jacobian.features(zero_row(x))[1][:0]
        return torch.cat([self.jacobian.features(x[part])[1] for part in slices(len(x), self.batch_size)])


def _weigh_squares(phi: Tensor, weights: Tensor) -> Tensor:  # (n, d), (n, c) -> (c, d, d)
    """The sum of w_ij phi_i phi_i^T over the rows i for each output j: one matrix product for some rows at a time."""
    c, d = weights.shape[1], phi.shape[1]
    total = weights.new_zeros(c, d * d)
    for part in slices(len(phi), block_rows(d * d * phi.element_size())):
        total += weights[part].mT @ (phi[part, :, None] * phi[part, None]).flatten(1)
    return total.reshape(c, d, d)


class ClassBlocksSpan(Span):
    """Outputs of new rows under the posterior of :class:`ClassBlocks`.

    Args:
        jacobian: Of the last layer.
        blocks: The posterior.
        batch_size: Rows at a time.
    """

    jacobian: LastLayerJacobian

    def __init__(self, jacobian: LastLayerJacobian, blocks: ClassBlocks, batch_size: int) -> None:
        super().__init__(jacobian, blocks.features.new_zeros(jacobian.size, 0), batch_size)
        self.blocks = blocks

    @override
    def moments(
        self, x: Tensor, values: Tensor, precision: float, *, full: bool, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        blocks = self.blocks
        c, m = len(blocks.inverses), len(blocks.features)
        # Covariances take a matrix of the rows in U times the outputs for each row.
        step = max(512, self.batch_size)
        if full:
            step = block_rows(2 * c * max(m, c) * blocks.inner.element_size(), budget=_HELD_BYTES)
        means, spreads = [], []
        for part in slices(max(1, len(x)), step):
            if not full:
                f, spread = self.jacobian.variances(x[part], blocks.covariances)
            else:
                f, phi = self.jacobian.features(x[part])
                columns = self._couple(phi)  # (n, c, m)
                spread = columns @ blocks.inner @ columns.mT
                spread = spread + torch.diag_embed(((phi @ blocks.inverses) * phi).sum(2).mT)
            means.append(f)
            spreads.append(spread)
        return torch.cat(means), torch.cat(spreads)

    @override
    def joint(self, x: Tensor, values: Tensor, precision: float) -> tuple[Tensor, Tensor]:
        f, phi = self.jacobian.features(x)
        n, c = f.shape
        columns = self._couple(phi).flatten(0, 1)
        coupled = (columns @ self.blocks.inner @ columns.mT).reshape(n, c, n, c).transpose(1, 2)
        within_output = phi @ self.blocks.inverses @ phi.mT  # (c, n, n)
        return f, coupled + torch.diag_embed(within_output.permute(1, 2, 0))

    @override
    def draw(
        self, x: Tensor, n: int, values: Tensor, precision: float, generator: torch.Generator | None
    ) -> Tensor:  # (rows, ...) -> (n, rows, c)
        blocks = self.blocks
        c, d, _ = blocks.inverses.shape
        dtype = blocks.inverses.dtype

        # Weights B^-1/2 z + B^-1 U M^-1/2 z' have the covariance B^-1 + B^-1 U M^-1 U^T B^-1.
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=dtype, device=x.device)

        within_output = torch.linalg.cholesky(blocks.inverses.double()).to(dtype) @ normal(c, d, n)
        shared = torch.linalg.cholesky(blocks.inner.double()).to(dtype) @ normal(len(blocks.inner), n)
        pulled = [blocks.features.mT @ (blocks.couplings[:, j, None] * shared) for j in range(c)]
        weights = within_output + blocks.inverses @ torch.stack(pulled)  # (c, d, n)

        draws, means = [], []
        for part in slices(len(x), self.batch_size):
            f, phi = self.jacobian.features(x[part])
            means.append(f)
            draws.append(torch.einsum("rd,cdn->nrc", phi, weights))
        return torch.cat(means) + torch.cat(draws, 1)

    def _couple(self, phi: Tensor) -> Tensor:  # (n, d) -> (n, c, m)
        """The rows of J B^-1 U: how each output of a new row moves with each row in U."""
        blocks = self.blocks
        return (phi @ blocks.inverses @ blocks.features.mT).transpose(0, 1) * blocks.couplings.mT
