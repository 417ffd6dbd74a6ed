r"""The largest eigenvalues and their vectors, or their span, by products; and EigenPro's plan with them.

EigenPro: gradient descent is as slow as its step, which the largest eigenvalue bounds. Shrinking each direction above
the tail :math:`\tau` by :math:`s_i = 1 - \tau / \lambda_i` levels them to it. With :math:`\beta` the largest squared
norm of a row that is left, a batch of m rows may take the step :math:`m / (\beta + (m - 1) \tau)` (Ma, Bassily and
Belkin 2018, Theorem 4; the preconditioner of Ma and Belkin 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import checks
from .operators import SymmetricOperator, as_operator

_DENSE = 256  # rows up to which the dense solver is quicker than any iteration
_CHEAP = 4096  # rows up to which two products cost less than one dense solution of the small problem
_BLOCK = 8  # vectors a product: finds multiplicities up to 8 and keeps the product a matrix product
_LOOK = 4  # products between two looks at the residuals, where there is one vector
_PROBE = 8  # products at least of the search for a pair that was passed over; fewer miss some


class TopEigh(NamedTuple):
    r"""Eigenvalues ``(k,)``, descending; vectors ``(n, k)``; residuals :math:`\|A v - \lambda v\|` ``(k,)``."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor


def randomized_range(operator: SymmetricOperator, start: Tensor, *, iterations: int = 1) -> Tensor:  # (n, r) -> (n, r)
    r"""Orthonormal Q near the span of the leading eigenvectors of A: QR of the start, then of A Q, some times.

    Halko, Martinsson and Tropp (2011), Algorithm 4.4. For :math:`A = J^\top J` the natural start is
    :math:`J^\top \Omega` with normal :math:`\Omega`, which is half a step ahead.

    Args:
        operator: A, positive semi-definite.
        start: ``(n, r)``, random columns, or a root of A times random columns.
        iterations: Power steps; each multiplies the decay of the spectrum.
    """
    q: Tensor = torch.linalg.qr(start)[0]
    for _ in range(checks.integer("randomized_range", "iterations", iterations, 0)):
        q = torch.linalg.qr(operator @ q)[0]
    return q


def top_eigh(
    operator: SymmetricOperator | Tensor,
    k: int,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-10,
    relative: float = 0.0,
) -> TopEigh:
    r"""The k largest eigenpairs of a symmetric A by block Lanczos with Rayleigh-Ritz.

    The Krylov basis is kept whole and orthonormal; the run ends when every wanted pair has a residual below
    ``tolerance`` times the largest eigenvalue. A small matrix is decomposed densely.

    Args:
        operator: A, or its matrix.
        k: Pairs wanted, 1..n.
        start: ``(n, b)`` first block; None draws one from a fixed seed, so that equal calls agree. Its
            dtype and device are the run's.
        tolerance: Residual asked for, relative to the largest eigenvalue.
        relative: Residual asked for, relative to a pair's own eigenvalue; meeting either is enough.
    """
    a = as_operator(operator)
    checks.integer("top_eigh", "k", k, 1, a.n, of="the rows of the operator")
    if a.n <= max(_DENSE, 2 * k):
        dense = operator
        if not isinstance(dense, Tensor):
            dense = dense.dense()
        values, vectors = torch.linalg.eigh((dense + dense.mT) / 2)
        values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
        return TopEigh(values, vectors, (dense @ vectors - vectors * values).norm(dim=0))
    if start is None:
        fixed = torch.Generator(device=a.device).manual_seed(0)
        start = torch.randn(a.n, min(_BLOCK, a.n), dtype=a.dtype, device=a.device, generator=fixed)
    if start.ndim == 1:
        start = start[:, None]
    # The basis grows by one block with each product.
    b = start.shape[1]
    interval = b
    if a.n <= _CHEAP:  # a product with few rows costs less than a look at the residuals
        interval = 2 * b

    basis = torch.linalg.qr(start)[0].mT.contiguous()  # (width, n): few long rows multiply faster than few columns
    projected = start.new_zeros(0, 0)  # Q^T A Q
    while True:
        # Multiply the last block, and border Q^T A Q with its products with the whole basis.
        width = len(basis)
        product = (a @ basis[-b:].mT).mT  # (b, n)
        coupling = product @ basis.mT  # (b, width)
        corner = coupling[:, width - b :]
        bordered = projected.new_empty(width, width)
        bordered[: width - b, : width - b] = projected
        bordered[width - b :] = coupling
        bordered[:, width - b :] = coupling.mT
        bordered[width - b :, width - b :] = (corner + corner.mT) / 2
        projected = bordered

        # The next block: the part of the product outside the basis, orthogonalized twice, because once leaves rounding.
        remainder = product - coupling @ basis
        q, tail = torch.linalg.qr((remainder - (remainder @ basis.mT) @ basis).mT)
        if (width < 3 * k or width % interval) and width + b <= a.n:  # no run ends below 3 k
            basis = torch.cat((basis, _replace_lost(q.mT, tail, basis, float(projected.diagonal().abs().max()))))
            continue

        # Ritz pairs. The residual of one is the tail times the last b entries of its vector: nothing else is outside.
        values, rotation = torch.linalg.eigh(projected)
        count = min(k, width)
        top = rotation[:, -count:]
        residuals = (tail @ top[-b:]).norm(dim=0)
        allowed = torch.maximum(tolerance * values[-1:].abs(), relative * values[-count:].abs())
        converged = width >= k and bool((residuals <= allowed).all())
        if converged or width + b > a.n:  # a basis of the whole space is exact
            break
        basis = torch.cat((basis, _replace_lost(q.mT, tail, basis, float(values[-1].abs()))))
    # The Ritz vectors in the space of A.
    vectors = basis.mT @ top
    return TopEigh(values[-count:].flip(0), vectors.flip(1), residuals.flip(0))


def _replace_lost(q: Tensor, tail: Tensor, basis: Tensor, scale: float) -> Tensor:  # (b, n)
    """The next block; directions that were rounding give way to random ones, or the run would stall."""
    sizes, eps = tail.diagonal().abs(), torch.finfo(q.dtype).eps
    if float(sizes.min()) > max(1e3 * eps * scale, eps**0.25 * float(sizes.max())):
        return q  # orthogonal to the basis already, up to eps times the ratio of the sizes
    lost = sizes <= 1e3 * eps * scale
    if bool(lost.any()):
        fixed = torch.Generator(device=q.device).manual_seed(len(basis))
        random = torch.randn(q.mT.shape, dtype=q.dtype, device=q.device, generator=fixed).mT
        q = torch.where(lost[:, None], random, q)
    for _ in range(2):
        q = torch.linalg.qr((q - (q @ basis.mT) @ basis).mT)[0].mT
    return q


def lanczos_eigh(matrix: Tensor, k: int, *, tolerance: float, relative: float) -> TopEigh | None:  # (n, n)
    """The k largest eigenpairs of a symmetric matrix in memory, by Lanczos from one vector: the fewest products.

    One start meets one vector of each eigenspace, so rows on a grid or a circle would lose pairs without a sign of it.
    A second start, in the complement of the pairs, therefore looks for an eigenvalue above the k-th.

    Args:
        matrix: On the CPU, finite; its lower triangle is read.
        k: Pairs wanted, below n.
        tolerance: Residual asked for, relative to the largest eigenvalue.
        relative: Residual asked for, relative to a pair's own eigenvalue; meeting either is enough.

    Returns:
        None where :func:`top_eigh` must decide: an eigenvalue is multiple, the rank is below k, or 8 k + 64 products
        were not enough.
    """
    from scipy.linalg import eigh_tridiagonal

    n, array = len(matrix), matrix.detach().numpy()
    look, probes = 2 * k, 0
    for basis, alphas, betas in _lanczos_steps(array, np.empty((0, n), array.dtype), min(n - 1, 8 * k + 64)):
        # Ritz pairs, once in a while. The residual of one is beta times the last entry of its vector.
        width = len(alphas)
        if width < look and betas[-1] > 0:
            continue
        values, rotation = (part[..., -k:] for part in eigh_tridiagonal(alphas, betas[:-1]))
        residuals = betas[-1] * np.abs(rotation[-1])
        look = width + _LOOK
        if width < k or (residuals > np.maximum(tolerance * values[-1], relative * values)).any():
            continue

        # They have converged. The largest Ritz value of their complement shows whether one was passed over.
        vectors = rotation.astype(array.dtype).T @ basis  # (k, n)
        *_, (_, new_alphas, new_betas) = _lanczos_steps(array, vectors, min(n - k, max(_PROBE, width // 4)))
        hidden = eigh_tridiagonal(new_alphas, new_betas[:-1], eigvals_only=True)[-1]
        if hidden <= values[0] + 10 * max(relative * values[0], tolerance * values[-1]):
            parts = (values[::-1], vectors[::-1].T, residuals[::-1])
            return TopEigh(*(torch.from_numpy(part.copy()).double() for part in parts))

        # More products find a simple eigenvalue that the start was nearly orthogonal to; never a multiple one.
        probes += 1
        if probes == 2:
            break
        look = 3 * width // 2
    return None


def _lanczos_steps(
    array: NDArray[np.floating], fixed: NDArray[np.floating], limit: int
) -> Iterator[tuple[NDArray[np.floating], list[float], list[float]]]:  # (n, n), (f, n)
    """Lanczos from a random vector in the complement of ``fixed``: after each product the basis and T's diagonals.

    In numpy, whose calls are a few times shorter than torch's; BLAS's symv reads half of the matrix.
    """
    from scipy.linalg.blas import get_blas_funcs

    columns = array.T  # BLAS counts by columns
    symv = get_blas_funcs("symv", (columns,))
    n, f, eps = len(array), len(fixed), float(np.finfo(array.dtype).eps)
    basis = np.empty((f + limit, n), array.dtype)
    basis[:f] = fixed
    w = np.random.default_rng(f).standard_normal(n).astype(array.dtype)
    w -= (fixed @ w) @ fixed
    beta, scale = math.sqrt(w @ w), 0.0
    alphas: list[float] = []
    betas: list[float] = []
    for width in range(f + 1, f + limit + 1):
        # Multiply the last vector; take the part along the basis away twice, because once leaves rounding.
        np.divide(w, beta, out=basis[width - 1])
        vectors = basis[:width]
        w = symv(1.0, columns, basis[width - 1])
        coupling = vectors @ w
        w -= coupling @ vectors
        w -= (vectors @ w) @ vectors
        alphas.append(float(coupling[-1]))
        beta = math.sqrt(w @ w)

        # An exhausted Krylov space leaves rounding, which is no direction: it ends here.
        scale = max(scale, abs(alphas[-1]), beta)
        if beta <= 32 * eps * math.sqrt(n) * scale:
            beta = 0.0
        betas.append(beta)
        yield basis[f:width], alphas, betas

        if not beta:
            return


def shrink_directions(
    values: Tensor, energies: Tensor, norms: Tensor, tails: Tensor
) -> tuple[Tensor, Tensor]:  # (k,), (n, k), (n,), (t,) -> (k, t), (t,)
    r"""How far each direction is shrunk for each tail, and the largest squared norm :math:`\beta` that is left.

    Args:
        values: Eigenvalues :math:`\lambda`, above 0.
        energies: Squared coordinates of rows along the eigenvectors.
        norms: Squared norms of the rows.
        tails: :math:`\tau`, one or several to choose from.
    """
    shrink = (1 - tails / values[:, None]).clamp_min(0)
    return shrink, (norms[:, None] - energies @ shrink).amax(0)


def longest_step(beta: float, tail: float, batch: int) -> float:
    r"""The step of fastest descent for the mean over a batch, :math:`m / (\beta + (m - 1) \tau)`."""
    return batch / (beta + (batch - 1) * tail)
