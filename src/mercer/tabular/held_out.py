"""Kernel ridge on rows it has not seen, beside the same for labels in random order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg import cholesky

__all__ = ["HeldOut", "leave_one_out"]

_CLEAR = 0.3  # share explained that no random order reaches


class HeldOut(NamedTuple):
    """What kernel ridge predicts of rows left out.

    Attributes:
        predicted: ``(n, c)``, each row by the fit without it.
        explained: Share of the columns' variance that it predicts.
        controls: ``(s,)``, the same for each random order of the columns.
    """

    predicted: Tensor
    explained: float
    controls: Tensor


def leave_one_out(gram: Tensor, columns: Tensor, orders: list[Tensor]) -> HeldOut:
    """Kernel ridge at the penalty of least leave-one-out error, for the columns and for each order by itself.

    Penalties 0.01 and 0.1 are tried, then 0.001 or 1, wherever the columns' error falls; the fourth too where they are
    predicted so badly that an order might compete, for which it may be the best.

    Args:
        gram: K, ``(n, n)``, of mean diagonal 1.
        columns: Centred targets, ``(n, c)``.
        orders: s orders of the rows, ``(n,)`` each.
    """
    stacked = torch.stack([columns, *(columns[order] for order in orders)], 1)  # (n, 1 + s, c)
    tried = [_fit(gram, stacked, penalty) for penalty in (0.01, 0.1)]
    rest = [1.0, 0.001] if tried[1].errors[0] < tried[0].errors[0] else [0.001, 1.0]
    tried.append(_fit(gram, stacked, rest[0]))
    if min(float(fit.errors[0]) for fit in tried) > (1 - _CLEAR) * float(columns.square().mean()):
        tried.append(_fit(gram, stacked, rest[1]))
    best = min(tried, key=lambda fit: float(fit.errors[0]))
    least = torch.stack([fit.errors for fit in tried]).amin(0)
    explained = 1 - least / columns.square().mean()
    return HeldOut(best.predicted, float(explained[0]), explained[1:])


class _Fit(NamedTuple):
    predicted: Tensor  # (n, c)
    errors: Tensor  # (1 + s,)


def _fit(gram: Tensor, stacked: Tensor, penalty: float) -> _Fit:
    system = gram.clone()
    system.diagonal().add_(penalty)
    inverse = torch.cholesky_inverse(cholesky(system, where="diagnose").factor)
    columns = stacked.flatten(1)
    held = (columns - inverse @ columns / inverse.diagonal()[:, None]).reshape(stacked.shape)
    return _Fit(held[:, 0], (stacked - held).square().mean((0, 2)))
