"""Choosing landmarks: uniformly, by k-means, by approximate ridge leverage scores."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from .. import checks
from ..kernels import Kernel

SELECTIONS = ("uniform", "kmeans", "leverage")
_KMEANS_ROWS = 20_000  # k-means on a sample of this size; more rows do not move its centres


def select(kernel: Kernel, x: Tensor, m: int, selection: str, generator: torch.Generator | None) -> Tensor:
    """``m`` landmarks of the rows ``x`` ``(n, d)``, or of indices ``(n,)``; m is at most n."""
    if selection == "kmeans":
        return kmeans(x, m, generator)
    if selection == "leverage":
        return x[leverage_sample(kernel, x, m, generator)]
    return x[_draw(len(x), m, generator, x.device)]


def kmeans(x: Tensor, m: int, generator: torch.Generator | None) -> Tensor:  # (n, d) -> (m, d)
    """Centres of k-means on at most 20,000 rows (scikit-learn's), one start by k-means++."""
    if not x.is_floating_point():
        need = "selection='kmeans' needs rows with coordinates"
        raise ValueError(checks.sentence("Nystrom", need, "indices of a precomputed Gram matrix", "Use 'leverage'."))
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    sample = x[_draw(len(x), min(len(x), max(m, _KMEANS_ROWS)), generator, x.device)]
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    with warnings.catch_warnings():  # fewer distinct rows than centres: the rank's own warning says it
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(m, n_init=1, random_state=seed, max_iter=25).fit(sample.cpu().numpy())
    return torch.as_tensor(model.cluster_centers_).to(x)


def leverage_sample(kernel: Kernel, x: Tensor, m: int, generator: torch.Generator | None) -> Tensor:  # -> (m,)
    r"""Rows drawn, without replacement, by ridge leverage scores of a pilot with 2 m uniform landmarks.

    .. math:: \ell_i = \varphi_i^\top (\Phi^\top \Phi + \lambda I)^{-1} \varphi_i +
        (k(x_i, x_i) - \|\varphi_i\|^2) / \lambda

    The second term is the part of row i that the pilot does not see (Musco and Musco 2017). :math:`\lambda` is the mean
    of what m directions leave of the trace, :math:`(\mathrm{tr} K - \sum_{j \le m} \mu_j) / m`.
    """
    pilot = x[_draw(len(x), min(len(x), 2 * m), generator, x.device)]
    inner, across = kernel(pilot).double(), kernel(x, pilot).double()
    values, vectors = torch.linalg.eigh(inner)
    keep = values > len(pilot) * torch.finfo(torch.float32).eps * values[-1].clamp_min(0)
    phi = across @ (vectors[:, keep] / values[keep].sqrt())  # (n, r)
    diag = kernel.diag(x).double()
    spectrum, basis = torch.linalg.eigh(phi.mT @ phi)
    left = float(diag.sum() - spectrum[-m:].sum())
    ridge = max(left / m, 1e-12 * float(diag.sum()), torch.finfo(torch.float64).tiny)
    seen = ((phi @ basis).square() / (spectrum.clamp_min(0) + ridge)).sum(1)
    unseen = (diag - phi.square().sum(1)).clamp_min(0) / ridge
    scores = (seen + unseen).clamp_min(torch.finfo(torch.float64).tiny)
    keys: Tensor = torch.rand(len(x), dtype=torch.float64, generator=generator).to(x.device).log() / scores
    return keys.topk(m).indices  # weighted sampling without replacement (Efraimidis and Spirakis 2006)


def _draw(n: int, m: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    return torch.randperm(n, generator=generator)[:m].to(device)
