"""Reading states that an earlier version saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LEAST_LENGTH = 1e-3


def as_vector(state: dict[str, Any], name: str) -> None:
    """A number that was saved with shape () takes the shape (1,), which sharded training asks of parameters."""
    if name in state and state[name].ndim == 0:
        state[name] = state[name].reshape(1)


def by_length(value: Tensor, z: Tensor, exponent: Tensor) -> Tensor:
    """Kernel values times (|z| / sqrt d)^tanh(exponent), for heads that learned it: they had no linear part."""
    squared = z.square().mean(1, keepdim=True).clamp(_LEAST_LENGTH**2, _LEAST_LENGTH**-2)
    return value * (0.5 * exponent.tanh().to(z.dtype) * squared.log()).exp()


def fill_missing(state: dict[str, Any], prefix: str, own: dict[str, Tensor | None]) -> None:
    """Zeros for what a head learns now: before the learned scale, T was 1, and without a bias."""
    if f"{prefix}log_scale" in state:
        own = {name: own[name] for name in ("center", "linear")}
    for name, tensor in own.items():
        if tensor is not None and (name != "bias" or own["log_scale"] is not None):
            state.setdefault(prefix + name, torch.zeros_like(tensor))
