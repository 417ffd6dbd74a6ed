r"""EigenPro's plan: how far the leading directions are shrunk, and the step that this allows.

Gradient descent is as slow as its step, which the largest eigenvalue bounds. Shrinking each direction above the tail
:math:`\tau` by :math:`s_i = 1 - \tau / \lambda_i` levels them to it. With :math:`\beta` the largest squared norm of a
row that is left, a batch of m rows may take the step :math:`m / (\beta + (m - 1) \tau)` (Ma, Bassily and Belkin 2018,
Theorem 4; the preconditioner of Ma and Belkin 2017).
"""

from __future__ import annotations

from torch import Tensor


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
