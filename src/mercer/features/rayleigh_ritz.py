r"""Rayleigh-Ritz: the best eigenpairs that the span of given functions holds.

A function is its values at the n rows, ``(n,)``; with c outputs, ``(n * c,)``. The inner product is the mean over rows,
:math:`\langle f, g \rangle = f^\top g / n`, and the operator is :math:`K / n`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..distributed import map_rows
from ..kernels import Kernel, NetworkKernel
from ..linalg import top_eigh

_log = logging.getLogger("mercer")


@dataclass(frozen=True)
class Operator:
    """The integral operator of a kernel for the empirical measure of rows, known by its products.

    Args:
        apply: ``(n c, b) -> (n c, b)``: K / n times columns.
        n: Rows.
        outputs: c.
        norm: A bound of the rounding of a product, relative.
    """

    apply: Callable[[Tensor], Tensor]
    n: int
    outputs: int
    features: Tensor | None = None  # (n c, S) where K = features features^T


def operator(kernel: Kernel, x: Tensor) -> Operator:
    """The operator of any kernel on rows that all ranks hold, each rank computing its share of a product.

    Explicit features are computed once, a Gram matrix is never held.
    """
    n = len(x)
    if isinstance(kernel, NetworkKernel) and getattr(kernel, "method", "") != "exact":
        features = map_rows(kernel.features, x).double()  # (n, c, S)
        c = features.shape[1] if kernel.matrix_valued else 1
        flat = features.flatten(0, 1) if kernel.matrix_valued else features.flatten(1)
        return Operator(lambda v: flat @ (flat.mT @ v) / n, n, c, flat)
    if isinstance(kernel, NetworkKernel) and kernel.matrix_valued:
        gram = map_rows(lambda part: kernel(part, None if part is x else x), x).double()  # (n, n, c, c)
        c = gram.shape[-1]
        whole = gram.transpose(1, 2).reshape(n * c, n * c)
        return Operator(lambda v: whole @ v / n, n, c)
    return Operator(lambda v: map_rows(lambda part: kernel.matmul(part, x, v), x).double() / n, n, 1)


@dataclass(frozen=True)
class Pairs:
    r"""Eigenpairs in the span of m functions.

    Args:
        values: :math:`\mu` ``(k,)``, descending, 0 beyond the rank.
        rotation: ``(m, k)``; the functions times it are the eigenfunctions, of mean square 1, 0 beyond the rank.
        residuals: :math:`\|K \psi / n - \mu \psi\|` ``(k,)``, root mean square over rows.
    """

    values: Tensor
    rotation: Tensor
    residuals: Tensor


def ritz(op: Operator, basis: Tensor, k: int, *, floor: float) -> Pairs:  # basis (n c, m)
    r"""The k largest Ritz pairs of the operator on the span of the columns.

    Args:
        op: K / n.
        basis: Functions H, at the rows; need not be independent.
        k: Pairs wanted.
        floor: Directions with singular values below this share of the largest are rounding noise and are left out,
            and so are eigenvalues below it.
    """
    left, sizes, right = torch.linalg.svd(basis.double(), full_matrices=False)
    keep = sizes > floor * sizes[:1]
    scale = math.sqrt(op.n)
    q = left[:, keep] * scale  # orthonormal for the mean over rows
    product = op.apply(q)
    projected = q.mT @ product / op.n
    values, vectors = torch.linalg.eigh((projected + projected.mT) / 2)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    residuals = (product @ vectors - q @ vectors * values).norm(dim=0) / scale
    alive = values > floor * values[:1].clamp_min(0)
    whitener = right[keep].mT * (scale / sizes[keep])  # (m, r)
    rotation = whitener @ vectors * alive
    return _padded(Pairs(values * alive, rotation, residuals * alive), k)


def spectrum(op: Operator, k: int, *, floor: float, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """The exact top pairs on the rows: values ``(k,)`` and functions ``(n c, k)`` of mean square 1, zero-padded."""
    size = op.n * op.outputs
    wanted = min(k, size)
    if op.features is not None and op.features.shape[1] < size:
        values, right = torch.linalg.eigh(op.features.mT @ op.features / op.n)
        values, right = values.flip(0)[:wanted], right.flip(1)[:, :wanted]
        alive = values > floor * values[:1].clamp_min(0)
        vectors = op.features @ (right[:, alive] / values[alive].sqrt())
        functions = vectors.new_zeros(size, k)
        functions[:, : vectors.shape[1]] = vectors
        return _pad(values * alive, k), functions
    values, vectors, _ = top_eigh(op.apply, wanted, n=size, generator=generator)
    alive = values > floor * values[:1].clamp_min(0)
    functions = vectors.new_zeros(size, k)
    functions[:, :wanted] = vectors * alive * math.sqrt(op.n)
    return _pad(values * alive, k), functions


def _padded(pairs: Pairs, k: int) -> Pairs:
    rotation = pairs.rotation.new_zeros(len(pairs.rotation), k)
    rotation[:, : pairs.rotation.shape[1]] = pairs.rotation
    return Pairs(_pad(pairs.values, k), rotation, _pad(pairs.residuals, k))


def _pad(values: Tensor, k: int) -> Tensor:
    out = values.new_zeros(k)
    out[: len(values)] = values
    return out
