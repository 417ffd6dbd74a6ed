"""Choosing landmarks: uniformly, by k-means, by approximate ridge leverage scores."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from .. import checks
from ..distributed import gather_rows, global_slice, sum_over_ranks, take_rows
from ..kernels import Kernel
from ..linalg import block_rows, inverse_root, slices
from ..rows.stored import Readable

SELECTIONS = ("uniform", "kmeans", "leverage")
_KMEANS_ROWS = 20_000  # k-means on a sample of this size; more rows do not move its centres


def select(kernel: Kernel, x: Readable, m: int, selection: str, generator: torch.Generator | None) -> Tensor:
    """``m`` landmarks of the rows of all ranks, ``(n, d)`` or indices ``(n,)``, the same on each; m is at most n."""
    if selection == "kmeans":
        return kmeans(x, m, generator)
    if selection == "leverage":
        return take_rows(x, leverage_sample(kernel, x, m, generator))
    return sample(x, m, generator)


def sample(x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # (n, ...) -> (m, ...)
    """``m`` rows of all ranks, drawn without replacement, on all ranks."""
    return take_rows(x, torch.randperm(global_slice(len(x))[1], generator=generator)[:m].to(x.device))


def kmeans(x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # (n, d) -> (m, d)
    """Centres of k-means on at most 20,000 rows (scikit-learn's), one start by k-means++."""
    if not x.is_floating_point():
        need = "selection='kmeans' needs rows with coordinates"
        raise ValueError(checks.sentence("Nystrom", need, "indices of a precomputed Gram matrix", "Use 'leverage'."))
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    seen = sample(x, max(m, _KMEANS_ROWS), generator)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    with warnings.catch_warnings():  # fewer distinct rows than centres: the rank's own warning says it
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(m, n_init=1, random_state=seed, max_iter=25).fit(seen.cpu().numpy())
    return torch.as_tensor(model.cluster_centers_).to(seen)


def leverage_sample(kernel: Kernel, x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # -> (m,)
    r"""Rows drawn, without replacement, by ridge leverage scores of a pilot with 2 m uniform landmarks.

    .. math:: \ell_i = \varphi_i^\top (\Phi^\top \Phi + \lambda I)^{-1} \varphi_i +
        (k(x_i, x_i) - \|\varphi_i\|^2) / \lambda

    The second term is the part of row i that the pilot does not see (Musco and Musco 2017). :math:`\lambda` is the mean
    of what m directions leave of the trace, :math:`(\mathrm{tr} K - \sum_{j \le m} \mu_j) / m`.
    """
    pilot = sample(x, 2 * m, generator)
    cut = len(pilot) * torch.finfo(torch.float32).eps
    whitener = inverse_root(kernel(pilot).double(), cut, where="Nystrom")
    parts = list(slices(len(x), block_rows(4 * len(pilot) * 8)))
    moment, trace = whitener.new_zeros(whitener.shape[1], whitener.shape[1]), whitener.new_zeros(1)
    for part in parts:
        phi = kernel(x[part], pilot).double() @ whitener  # (b, r)
        moment, trace = moment + phi.mT @ phi, trace + kernel.diag(x[part]).double().sum()
    spectrum, basis = torch.linalg.eigh(sum_over_ranks(moment))
    total = float(sum_over_ranks(trace))
    ridge = max((total - float(spectrum[-m:].sum())) / m, 1e-12 * total, torch.finfo(torch.float64).tiny)
    found = [whitener.new_empty(0)]
    for part in parts:
        phi = kernel(x[part], pilot).double() @ whitener
        seen = ((phi @ basis).square() / (spectrum.clamp_min(0) + ridge)).sum(1)
        found.append(seen + (kernel.diag(x[part]).double() - phi.square().sum(1)).clamp_min(0) / ridge)
    scores = gather_rows(torch.cat(found)).clamp_min(torch.finfo(torch.float64).tiny)
    keys: Tensor = torch.rand(len(scores), dtype=torch.float64, generator=generator).to(scores.device).log() / scores
    return keys.topk(m).indices  # weighted sampling without replacement (Efraimidis and Spirakis 2006)
