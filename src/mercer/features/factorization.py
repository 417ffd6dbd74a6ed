"""Matrix-valued kernels under the factorisation assumption: k(x, y) ~ trace kernel times one matrix of outputs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from ..kernels import NetworkKernel
from .bases import Basis
from .rayleigh_ritz import Pairs
from .task import Task


class ProductBasis(Basis):
    r"""Functions :math:`\psi_i(x) e_l` of a kernel that is a scalar kernel times one matrix of outputs.

    Args:
        scalar: Where the functions of the scalar kernel come from.
        rotation: ``(m, k)``: those times it are its eigenfunctions.
        picks: i ``(k,)``.
        mixing: Directions of outputs e ``(c, k)``, 0 for functions beyond the rank.
    """

    rotation: Tensor
    picks: Tensor
    mixing: Tensor

    def __init__(self, scalar: Basis, rotation: Tensor, picks: Tensor, mixing: Tensor) -> None:
        super().__init__()
        self.scalar = scalar
        self.register_buffer("rotation", rotation)
        self.register_buffer("picks", picks)
        self.register_buffer("mixing", mixing)
        self.outputs = len(mixing)

    @property
    @override
    def width(self) -> int | None:
        return self.scalar.width

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n c, k)
        values = self.scalar(x)
        functions = (values @ self.rotation.to(values.dtype))[:, self.picks]  # (n, k)
        return (functions[:, None] * self.mixing.to(functions.dtype)).flatten(0, 1)


def fit_factorized(task: Task, fitter: Callable[[Task], tuple[Basis, Pairs]]) -> tuple[Basis, Pairs]:
    """The eigenfunctions of the trace kernel by any fitter, times the eigenvectors of the matrix of outputs."""
    assert isinstance(task.kernel, NetworkKernel)
    basis, pairs = fitter(dataclasses.replace(task, kernel=trace_outputs(task.kernel)))
    values, picks, mixing = top_products(pairs.values, output_matrix(task.kernel, task.sample), task.k)
    product = ProductBasis(basis, pairs.rotation, picks, mixing * (values > 0))
    functions = product(task.sample).double()
    eye = torch.eye(task.k, dtype=torch.float64, device=functions.device)
    return product, Pairs(values, eye, task.residuals(functions, values))


def trace_outputs(kernel: NetworkKernel) -> NetworkKernel:
    """A copy of the kernel that sums over outputs."""
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
