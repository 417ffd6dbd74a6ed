"""The k directions of weight space that the data says most about, by products with the Jacobian alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed import global_slice, sum_over_ranks
from ..kernels import Tangents
from ..linalg import slices
from ..modules import Readable
from .likelihood import curvature_product, curvature_root


def leading_directions(
    tangents: Tangents,
    x: Readable,
    f: Tensor,
    k: int,
    *,
    likelihood: str,
    noise: float,
    weighted: bool,
    iterations: int,
    batch_size: int,
    seed: int,
) -> Tensor:  # -> (p, min(k, n c, p))
    r"""Orthonormal Q near the dominant range of :math:`J^\top \Lambda^{1/2}`.

    QR of :math:`J^\top \Lambda^{1/2} \Omega`, then power steps with :math:`J^\top \Lambda J` (Halko, Martinsson and
    Tropp 2011, Algorithm 4.4). A k of n c or more spans all of it; a k of p or more is every direction there is.

    Args:
        tangents: J.
        x: Rows, this rank's; products are summed over ranks.
        f: Outputs at the rows ``(n, c)``.
        k: Directions.
        likelihood: Whose :math:`\Lambda`.
        noise: Variance of a regression's noise.
        weighted: False leaves :math:`\Lambda` out: the range of the NTK's leading eigenfunctions.
        iterations: Power steps.
        batch_size: Rows at a time.
        seed: Decides :math:`\Omega`.
    """
    own, n = global_slice(len(f))
    rank = min(k, n * f.shape[1], tangents.size)
    if rank == tangents.size:
        return torch.eye(rank, dtype=f.dtype, device=f.device)
    draw = torch.Generator(device=f.device).manual_seed(seed)
    probes = torch.randn(n, f.shape[1], rank, dtype=f.dtype, device=f.device, generator=draw)[own]

    def start(part: slice) -> Tensor:
        return curvature_root(likelihood, f[part], probes[part], noise) if weighted else probes[part]

    def powered(part: slice, q: Tensor) -> Tensor:
        psi = tangents.along(x[part], q)
        return curvature_product(likelihood, f[part], psi, noise) if weighted else psi

    parts = list(slices(len(x), batch_size))
    zero = torch.zeros(tangents.size, rank, dtype=f.dtype, device=f.device)
    first = sum((tangents.transposed(x[part], start(part)) for part in parts), zero)
    q: Tensor = torch.linalg.qr(sum_over_ranks(first))[0]
    for _ in range(iterations):
        product = sum((tangents.transposed(x[part], powered(part, q)) for part in parts), zero)
        q = torch.linalg.qr(sum_over_ranks(product))[0]
    return q
