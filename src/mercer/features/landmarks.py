"""Landmarks: the features that they make of a kernel, and how they are chosen."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import checks
from ..kernels import Kernel, NetworkKernel
from ..linalg.cholesky import inverse_root
from ..rows.rows import Rows
from ..rows.stored import Readable

SELECTIONS = ("uniform", "kmeans", "leverage")
_KMEANS_ROWS = 20_000  # k-means on a sample of this size; more rows do not move its centers


@dataclass(frozen=True)
class LandmarkFeatures:
    r"""Landmark features :math:`\varphi(x) = K(x, z) \, K(z, z)^{-1/2}`.

    :math:`\varphi(x) \cdot \varphi(y)` approximates k(x, y), and equals it where x or y is a landmark. Everything that
    sees a kernel from landmarks uses these.

    Args:
        kernel: k.
        landmarks: z, ``(m, ...)``.
        whitener: :math:`K(z, z)^{-1/2}` on its r trusted directions, ``(m, r)``, float64.
    """

    kernel: Kernel
    landmarks: Tensor
    whitener: Tensor

    @classmethod
    def at(cls, kernel: Kernel, landmarks: Tensor, *, where: str, cut: float | None = None) -> LandmarkFeatures:
        """The features of these landmarks.

        Args:
            kernel: k.
            landmarks: z.
            where: Who asks, for the warning about an indefinite kernel.
            cut: Directions with eigenvalues below this share of the largest are rounding and are dropped; None is m
                times the resolution of float64.
        """
        if cut is None:
            cut = len(landmarks) * torch.finfo(torch.float64).eps
        return cls(kernel, landmarks, inverse_root(kernel(widen(kernel, landmarks)).double(), cut, where=where))

    def __call__(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, r)
        """The features of rows, in the rows' dtype; where they are whole numbers (indices), in the kernel's."""
        z = self.landmarks
        if x.is_floating_point():
            z = z.to(x.dtype)
        gram = self.kernel(x, z)
        return gram @ self.whitener.to(gram.dtype)


def widen(kernel: Kernel, x: Tensor) -> Tensor:
    """Rows in float64; rows of network kernels, where that would cost twice as much, and indices stay as they are."""
    if isinstance(kernel, NetworkKernel):
        return x
    return checks.cast_floats(x, torch.float64)


def resolution(x: Readable) -> float:
    """Relative rounding of rows; of indices that of float64."""
    return float(torch.finfo(checks.floating_dtype(x, torch.float64)).eps)


def select(kernel: Kernel, x: Readable, m: int, selection: str, generator: torch.Generator | None) -> Tensor:
    """``m`` landmarks of the rows of all ranks, ``(n, d)`` or indices ``(n,)``, the same on each; m is at most n."""
    if selection == "kmeans":
        return kmeans(x, m, generator)
    if selection == "leverage":
        index: Tensor = leverage_sample(kernel, x, m, generator)
        landmarks: Tensor = Rows(x).take(index)
        return landmarks
    return sample(x, m, generator)


def sample(x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # (n, ...) -> (m, ...)
    """``m`` rows of all ranks, drawn without replacement, on all ranks."""
    rows: Tensor = Rows(x).sample(m, generator)
    return rows


def kmeans(x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # (n, d) -> (m, d)
    """Centers of k-means on at most 20,000 rows (scikit-learn's), one start by k-means++."""
    if not x.is_floating_point():
        need = "selection='kmeans' needs rows with coordinates"
        raise ValueError(checks.sentence("Nystrom", need, "indices of a precomputed Gram matrix", "Use 'leverage'."))
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    # Draw rows for it, and a seed for scikit-learn.
    rows = sample(x, max(m, _KMEANS_ROWS), generator)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    with warnings.catch_warnings():  # fewer distinct rows than centers: the rank's own warning says it
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(m, n_init=1, random_state=seed, max_iter=25).fit(rows.cpu().numpy())
    return torch.as_tensor(model.cluster_centers_).to(rows)


def leverage_sample(kernel: Kernel, x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # -> (m,)
    r"""Rows drawn, without replacement, by ridge leverage scores of a pilot with 2 m uniform landmarks.

    .. math:: \ell_i = \varphi_i^\top (\Phi^\top \Phi + \lambda I)^{-1} \varphi_i +
        (k(x_i, x_i) - \|\varphi_i\|^2) / \lambda

    The second term is the part of row i that the pilot does not see (Musco and Musco 2017). :math:`\lambda` is the mean
    of what m directions leave of the trace, :math:`(\mathrm{tr} K - \sum_{j \le m} \mu_j) / m`.
    """
    # The pilot's features, their moment over all rows, and the trace of K.
    rows, pilot = Rows(x), sample(x, 2 * m, generator)
    cut = len(pilot) * torch.finfo(torch.float32).eps
    features = LandmarkFeatures.at(kernel, pilot, where="Nystrom", cut=cut)
    row_bytes = 4 * len(pilot) * 8
    r = features.whitener.shape[1]

    def sum_moments(part: Tensor) -> Tensor:  # (b, ...) -> (r * r + 1,)
        phi = features(widen(kernel, part)).double()
        return torch.cat(((phi.mT @ phi).flatten(), kernel.diag(part).double().sum()[None]))

    sums = rows.sum(sum_moments, row_bytes=row_bytes)
    spectrum, basis = torch.linalg.eigh(sums[:-1].reshape(r, r))
    total = float(sums[-1])
    ridge = max((total - float(spectrum[-m:].sum())) / m, 1e-12 * total, torch.finfo(torch.float64).tiny)

    # The scores of this rank's rows, then of all.
    def score(part: Tensor) -> Tensor:  # (b, ...) -> (b,)
        phi = features(widen(kernel, part)).double()
        explained = ((phi @ basis).square() / (spectrum.clamp_min(0) + ridge)).sum(1)
        unseen: Tensor = (kernel.diag(part).double() - phi.square().sum(1)).clamp_min(0)
        scores: Tensor = explained + unseen / ridge
        return scores

    scores = Rows(rows.map(score, row_bytes=row_bytes)).gather().clamp_min(torch.finfo(torch.float64).tiny)
    keys: Tensor = torch.rand(len(scores), dtype=torch.float64, generator=generator).to(scores.device).log() / scores
    return keys.topk(m).indices  # weighted sampling without replacement (Efraimidis and Spirakis 2006)
