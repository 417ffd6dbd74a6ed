"""Matrix-valued kernels under the factorisation assumption: k(x, y) ~ trace kernel times one matrix of outputs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..kernels import NetworkKernel


def traced(kernel: NetworkKernel) -> NetworkKernel:
    """The same kernel, summed over outputs."""
    scalar = copy.copy(kernel)
    scalar.outputs = "trace"
    return scalar


def output_matrix(kernel: NetworkKernel, x: Tensor) -> Tensor:  # (n, ...) -> (c, c)
    r"""The matrix A of :math:`k(x, y) \approx \mathrm{tr} k(x, y) \, A`: the mean of k(x, x) over rows, of trace 1."""
    mean = kernel.diag(x).double().mean(0)
    trace = mean.trace()
    return mean / torch.where(trace > 0, trace, 1.0)


def top_products(values: Tensor, matrix: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""The k largest products :math:`\mu_i a_l` of eigenvalues ``(k,)`` and A's: products, i ``(k,)``, e_l ``(c, k)``.

    The eigenfunctions of a product kernel are :math:`\psi_i(x) e_l`.
    """
    weights, vectors = torch.linalg.eigh(matrix)
    table = values.double()[:, None] * weights.clamp_min(0)[None]  # (k, c)
    best = table.flatten().topk(k)
    picks = best.indices // len(weights)
    return best.values, picks, vectors[:, best.indices % len(weights)]
