r"""Rayleigh-Ritz: the best eigenpairs that the span of given functions holds.

A function is its values at the n rows, ``(n,)``; with c outputs, ``(n * c,)``. The inner product is the mean over rows,
:math:`\langle f, g \rangle = f^\top g / n`, and the operator is :math:`K / n`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..kernels import Kernel, NetworkKernel
from ..linalg.eigen import top_eigh
from ..linalg.operators import SymmetricOperator
from ..rows.agreement import map_shared_rows


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

    def pad(self, k: int) -> Pairs:
        """Add zeros up to k pairs."""
        parts = (self.values, self.rotation, self.residuals)
        return Pairs(*(nn.functional.pad(part, (0, k - part.shape[-1])) for part in parts))


def kernel_operator(kernel: Kernel, x: Tensor) -> SymmetricOperator:
    """K / n for rows that all ranks hold, ``(n c, n c)``, each rank computing its share.

    Explicit features and the Gram matrices of networks are computed once; of other kernels no Gram matrix is held.
    """
    n = len(x)
    features = _explicit_features(kernel, x)
    if features is not None:
        return SymmetricOperator(lambda v: features @ (features.mT @ v) / n, len(features), device=x.device)
    if isinstance(kernel, NetworkKernel):
        gram = map_shared_rows(lambda part: kernel(part, None if part is x else x), x).double()
        if gram.ndim == 4:  # (n, n, c, c): a matrix for each pair, as (n c, n c)
            gram = gram.transpose(1, 2).flatten(2).flatten(0, 1)
        return SymmetricOperator(lambda v: gram @ v / n, len(gram), device=x.device)
    return SymmetricOperator(
        lambda v: map_shared_rows(lambda part: kernel.matmul(part, x, v), x).double() / n, n, device=x.device
    )


def ritz(operator: SymmetricOperator, basis: Tensor, k: int, *, rows: int, floor: float) -> Pairs:  # basis (n c, m)
    r"""The k largest Ritz pairs of the operator on the span of the columns.

    Args:
        operator: K / n.
        basis: Functions H, at the rows; need not be independent.
        k: Pairs wanted.
        rows: n.
        floor: Directions with singular values below this share of the largest are rounding noise and are left out,
            and so are eigenvalues below it.
    """
    left, sizes, right = torch.linalg.svd(basis.double(), full_matrices=False)
    keep = sizes > floor * sizes[:1]
    scale = math.sqrt(rows)
    q = left[:, keep] * scale  # orthonormal for the mean over rows
    product = operator @ q
    projected = q.mT @ product / rows
    values, vectors = torch.linalg.eigh((projected + projected.mT) / 2)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    residuals = (product @ vectors - q @ vectors * values).norm(dim=0) / scale
    alive = values > floor * values[:1].clamp_min(0)
    to_orthonormal = right[keep].mT * (scale / sizes[keep])  # (m, r)
    return Pairs(values * alive, to_orthonormal @ vectors * alive, residuals * alive).pad(k)


def exact_functions(kernel: NetworkKernel, x: Tensor, k: int, *, floor: float) -> tuple[Tensor, Tensor]:
    """The exact top pairs on the rows: values ``(k,)`` and functions ``(n c, k)`` of mean square 1, zero-padded."""
    n = len(x)
    features = _explicit_features(kernel, x)
    if features is not None and features.shape[1] < len(features):
        values, right = torch.linalg.eigh(features.mT @ features / n)
        values, right = values.flip(0)[:k], right.flip(1)[:, :k]
        alive = values > floor * values[:1].clamp_min(0)
        functions = features @ (right * alive / torch.where(alive, values, 1.0).sqrt())
    else:
        operator = kernel_operator(kernel, x)
        values, vectors, _ = top_eigh(operator, min(k, operator.n))
        alive = values > floor * values[:1].clamp_min(0)
        functions = vectors * alive * math.sqrt(n)
    pairs = Pairs(values * alive, functions, values).pad(k)
    return pairs.values, pairs.rotation


def _explicit_features(kernel: Kernel, x: Tensor) -> Tensor | None:  # -> (n c, S)
    if not isinstance(kernel, NetworkKernel) or getattr(kernel, "method", "") == "exact":
        return None
    features = map_shared_rows(kernel.features, x).double()  # (n, c, S)
    return features.flatten(0, 1) if kernel.matrix_valued else features.flatten(1)
