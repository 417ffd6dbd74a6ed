"""The inverse square root of a Gram matrix, on the directions that rounding leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks


def inverse_root(gram: Tensor, cut: float, *, where: str) -> Tensor:  # (m, m) -> (m, r)
    r"""W with :math:`W W^\top = K^{-1}` on the eigenvectors whose eigenvalue is above ``cut`` of the largest.

    By Cholesky, K = L L^T, where that is all of them, which the bounds :math:`\lambda_{\min} \ge 1 / (\|L^{-1}\|_1
    \|L^{-1}\|_\infty)` and :math:`\lambda_{\max} \le \|K\|_\infty` prove; else by eigenvectors.
    """
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not bool(failed):
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
        sizes = inverse.abs()
        if float(sizes.sum(0).max() * sizes.sum(1).max() * gram.abs().sum(1).max()) * cut < 1:
            return inverse.mT
    values, vectors = torch.linalg.eigh(gram)
    floor = cut * float(values.abs().max())
    if float(values[0]) < -floor * 10:
        least = f"least eigenvalue {float(values[0]):.2e} of {float(values[-1]):.2e}"
        checks.warn(where, f"the kernel is indefinite on the landmarks, {least}; the negative part is dropped.")
    keep = values > floor
    root: Tensor = vectors[:, keep] / values[keep].sqrt()
    return root
