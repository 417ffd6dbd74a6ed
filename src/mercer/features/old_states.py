"""States that version 0.1 saved, read by today's names."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["upgrade"]

_OWN = ("landmarks", "centre", "spread", "mixing", "picks")


def upgrade(state: dict[str, Any], prefix: str, *, factorized: bool, landmarks: bool) -> None:
    """Rename in place what version 0.1 of ``NeuralEigenfunctions`` kept beside its basis; today's stay as they are."""
    if prefix + "spread" not in state:
        return
    old = {name: state.pop(prefix + name) for name in _OWN}
    inner = {key: state.pop(key) for key in list(state) if key.startswith(prefix + "inner.")}
    network = {key: state.pop(key) for key in list(state) if key.startswith(prefix + "network.")}
    start = prefix + "basis."
    if factorized and inner:
        state[start + "picks"], state[start + "mixing"] = old["picks"], old["mixing"]
        old = {name: inner[f"{prefix}inner.{name}"] for name in _OWN}
        network = {
            key.replace("inner.", "", 1): v for key, v in inner.items() if key.startswith(f"{prefix}inner.network.")
        }
        state[start + "rotation"] = inner[prefix + "inner.projection"]
        state[prefix + "projection"] = torch.eye(len(state[prefix + "eigenvalues"]), dtype=torch.float64)
        start += "scalar."
    for name in ("landmarks",) if landmarks else ("centre", "spread"):
        state[start + name] = old[name]
    for key, value in network.items():
        state[start + key.removeprefix(prefix)] = value
