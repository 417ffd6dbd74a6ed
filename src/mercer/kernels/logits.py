"""From kernel values to logits: scales, prototypes, bias."""

from __future__ import annotations

from torch import Tensor


def read_out(value: Tensor, log_scale: Tensor | None = None, bias: Tensor | None = None, prototypes: int = 1) -> Tensor:
    r"""Logits of kernel values, by plain operations: (n, m) -> (n, m / prototypes).

    .. math:: \log \sum_{p} \exp \left( e^{\lambda_{jp}} \, k_{i,jp} \right) + b_j

    Args:
        value: :math:`k`.
        log_scale: :math:`\lambda`, ``(m,)``; None for 0.
        bias: b; None for 0.
        prototypes: Columns of ``value`` that are joined, one after the other.
    """
    if log_scale is not None:
        value = value * log_scale.exp()
    if prototypes > 1:
        value = value.unflatten(1, (-1, prototypes)).logsumexp(2)
    return value if bias is None else value + bias
