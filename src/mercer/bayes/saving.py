"""A posterior in a file, without the network it belongs to: what stands in for it, and how it is known again."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..checks import sentence
from ..modules import trainable


class Unattached(nn.Module):
    """Stands where the user's network will be, after ``mercer.load``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def error(self, where: str) -> RuntimeError:
        """What to do about it."""
        fix = "Call attach(model) with the network that it was fitted on."
        return RuntimeError(sentence(where, "a network must be attached first", "a posterior from a file", fix))


def weights_of(model: nn.Module) -> dict[str, list[float]]:
    """Number and norm of each parameter that counts, to know the network by."""
    return {name: [p.numel(), _norm(p)] for name, p in trainable(model).items()}


def check_weights(where: str, model: nn.Module, known: Mapping[str, list[float]]) -> None:
    """Refuse a network other than the one the posterior was fitted on.

    Raises:
        ValueError: Other parameters require grad, or their values differ.
    """
    own = trainable(model)
    other = sorted(own.keys() ^ known.keys())
    if other:
        fix = "Freeze and unfreeze as it was at fit."
        raise ValueError(sentence(where, f"parameters that require grad must be {', '.join(known)}", other[0], fix))
    for name, (size, norm) in known.items():
        if own[name].numel() != size or not math.isclose(_norm(own[name]), norm, rel_tol=1e-5, abs_tol=1e-12):
            got = f"{own[name].numel()} numbers of norm {_norm(own[name]):.6g}"
            fix = "Load the weights that the posterior was fitted at."
            raise ValueError(sentence(where, f"{name} must hold {size:.0f} numbers of norm {norm:.6g}", got, fix))


def _norm(p: Tensor) -> float:
    return float(p.double().norm())
