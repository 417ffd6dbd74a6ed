"""Nystrom features: the kernel seen from landmarks, turned into its eigenfunctions."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..kernels import Kernel
from ..rows.rows import Rows
from ..rows.stored import Readable
from .base import FeatureMap
from .landmarks import SELECTIONS, LandmarkFeatures, resolution, select


class Nystrom(FeatureMap):
    r"""Nystrom features from m landmarks z, in the basis of the operator's eigenfunctions.

    .. math:: \varphi(x) = K(x, z) \, K(z, z)^{-1/2} V, \qquad
        \tfrac1n \sum_i \varphi(x_i) \varphi(x_i)^\top = \mathrm{diag}(\mu).

    The rotation V makes column j the eigenfunction :math:`\psi_j` of the approximate operator times
    :math:`\sqrt{\mu_j}`; it leaves :math:`\varphi(x) \cdot \varphi(y)` as it is.

    Eigenvalues of K(z, z) below ``m * eps`` of the largest (eps of the data's dtype) are rounding noise that
    :math:`K(z, z)^{-1/2}` would blow up. They are dropped: ``rank`` says how many features are left, the surplus
    columns are 0, with one warning.

    Args:
        kernel: The kernel k. With ``Precomputed`` the rows are indices.
        m: Number of landmarks and features; above n it is reduced to n, with a warning, the surplus columns 0.
        selection: ``"uniform"`` rows, ``"kmeans"`` centers, rows by approximate ridge ``"leverage"`` scores, or the
            landmarks themselves.
        generator: Source of randomness, or a seed.

    Attributes:
        eigenvalues: :math:`\mu` ``(m,)``, descending, of K / n.
        rank: How many of them are above 0.
        residual: :math:`1 - \sum \mu / \mathrm{mean} \, k(x, x)`, the share of the trace not captured, in [0, 1].

    Use it first: it fits the data and needs the fewest features.

    >>> from mercer.kernels import RBF
    >>> x = torch.randn(100, 3)
    >>> Nystrom(RBF(0.5), 20).fit(x)(x).shape
    torch.Size([100, 20])
    """

    FITTED = ("landmarks", "projection", "eigenvalues", "residual")
    landmarks: Tensor
    projection: Tensor
    eigenvalues: Tensor
    residual: Tensor

    def __init__(
        self,
        kernel: Kernel,
        m: int,
        *,
        selection: str | Tensor = "uniform",
        generator: torch.Generator | int | None = None,
    ) -> None:
        super().__init__(kernel, generator)
        self.m = checks.integer("Nystrom", "m", m, 1)
        if isinstance(selection, Tensor):
            if len(selection) != m:
                raise ValueError(checks.sentence("Nystrom", f"m must be {len(selection)}, the rows of selection", m))
        else:
            checks.choice("Nystrom", "selection", selection, SELECTIONS)
        self.selection = selection

    @property
    def rank(self) -> int:
        """The number of eigenvalues above 0."""
        self._check_fitted()
        return int((self.eigenvalues > 0).sum())

    def eigenfunctions(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        r""":math:`\psi_j(x)`, with mean square 1 over the fitted rows; 0 where the eigenvalue is."""
        # The features are sqrt(mu) psi.
        roots = self.eigenvalues.sqrt()
        inverse = torch.where(roots > 0, 1 / torch.where(roots > 0, roots, torch.ones_like(roots)), 0.0)
        features = self(x)
        return features * inverse.to(features.dtype)

    @override
    def learn(self, x: Readable) -> None:  # (n, d)
        features = self._place_landmarks(x)

        def sum_moments(block: Tensor) -> Tensor:  # (b, d) -> (r * r + 1,)
            phi = features(block)
            moment = (phi.mT @ phi).double()  # a block in the data's dtype, the sum over blocks in float64
            return torch.cat((moment.flatten(), self.exact.diag(block).double().sum()[None]))

        self._rotate(x, features, Rows(x).sum(sum_moments, row_bytes=4 * len(features.landmarks) * 8))

    @override
    def _learn_features(self, data: Tensor) -> Tensor:  # (n, d) -> (n, m), from one pass over the kernel
        features = self._place_landmarks(data)
        phi = features(data)
        trace = self.exact.diag(data).double().sum()
        sums = Rows(data).total(torch.cat(((phi.mT @ phi).double().flatten(), trace[None])))
        return phi @ self._rotate(data, features, sums).to(phi.dtype)

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, m)
        return LandmarkFeatures(self.exact, self.landmarks, self.projection)(x)

    @override
    def _width(self) -> int | None:
        if self.landmarks.ndim != 2:
            return None
        return self.landmarks.shape[1]

    def _place_landmarks(self, x: Readable) -> LandmarkFeatures:
        """Choose the landmarks, and their features on the directions that the data's dtype can tell from 0."""
        if isinstance(self.selection, Tensor):
            landmarks = self.exact.prepare("selection", self.selection).detach().clone()
            self.landmarks = checks.finite("Nystrom", "selection", landmarks)
        else:
            self.landmarks = select(self.exact, x, min(self.m, Rows(x).n), self.selection, self.generator)
        cut = len(self.landmarks) * resolution(x)
        return LandmarkFeatures.at(self.exact, self.landmarks, where="Nystrom", cut=cut)

    def _rotate(self, x: Readable, features: LandmarkFeatures, sums: Tensor) -> Tensor:  # -> (r, m)
        """Store everything in the basis of the eigenfunctions; the rotation, padded to m columns."""
        n, diag, r = Rows(x).n, sums[-1], features.whitener.shape[1]
        dtype = checks.floating_dtype(x, torch.float64)

        # Eigenvectors of the features' moment turn them into eigenfunctions, times the root of the eigenvalue.
        values, vectors = torch.linalg.eigh(sums[:-1].reshape(r, r) / n)
        values, vectors = values.flip(0), vectors.flip(1)

        # Drop directions that the data's dtype cannot tell from 0; their columns stay 0.
        rank = int((values > resolution(x) * values[:1].clamp_min(0)).sum())
        rotation: Tensor = vectors.new_zeros(len(vectors), self.m)
        rotation[:, :rank] = vectors[:, :rank]
        spectrum = values.new_zeros(self.m)
        spectrum[:rank] = values[:rank]
        if rank < self.m:
            rows = ""
            if n < self.m:
                rows = f", the rows of x are {n}"
            checks.warn("Nystrom", f"rank {rank} below m = {self.m}{rows}; the other {self.m - rank} features are 0.")

        # What the map needs: eigenvalues, one projection K(., z) -> features, the share of the trace left out.
        self.eigenvalues = spectrum.to(dtype)
        self.projection = (features.whitener @ rotation).to(dtype)
        residual = spectrum.new_zeros(())
        if diag > 0:
            residual = 1 - spectrum.sum() * n / diag
        self.residual = residual.clamp(0, 1).to(dtype)
        return rotation
