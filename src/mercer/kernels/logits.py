"""From kernel values to logits: scales, the length of a row, prototypes, bias."""

from __future__ import annotations

from torch import Tensor

__all__ = ["LEAST_LENGTH", "read_out"]

LEAST_LENGTH = 1e-3  # of a row over sqrt(d), where its length counts at all; and the inverse of the largest


def read_out(
    value: Tensor,
    x: Tensor,
    exponent: Tensor | None = None,
    log_scale: Tensor | None = None,
    bias: Tensor | None = None,
    prototypes: int = 1,
) -> Tensor:
    r"""Logits of kernel values, by plain operations: (n, m) -> (n, m / prototypes).

    .. math:: \log \sum_{p} \exp \left( e^{\lambda_{jp}} r_i^{\rho} \, k_{i,jp} \right) + b_j,
        \quad r_i = \|x_i\| / \sqrt d

    Args:
        value: :math:`k`.
        x: Rows ``(n, d)``, for their length; :math:`r` is held between 1e-3 and 1e3.
        exponent: :math:`\rho`, ``(1,)``; None for 0.
        log_scale: :math:`\lambda`, ``(m,)``; None for 0.
        bias: b; None for 0.
        prototypes: Columns of ``value`` that are joined, one after the other.
    """
    if exponent is not None:
        squared = x.square().mean(1, keepdim=True).clamp(LEAST_LENGTH**2, LEAST_LENGTH**-2)
        value = value * (0.5 * exponent * squared.log()).exp()
    if log_scale is not None:
        value = value * log_scale.exp()
    if prototypes > 1:
        value = value.unflatten(1, (-1, prototypes)).logsumexp(2)
    return value if bias is None else value + bias
