"""Reading states that an earlier version saved."""

from __future__ import annotations

from typing import Any

__all__ = ["as_vector"]


def as_vector(state: dict[str, Any], name: str) -> None:
    """A number that was saved with shape () takes the shape (1,), which sharded training asks of parameters."""
    if name in state and state[name].ndim == 0:
        state[name] = state[name].reshape(1)
