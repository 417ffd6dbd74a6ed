"""What a candidate's machine predicts of rows left out, beside the same for labels in random order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...machines.stacking import ridge_factor, solve_left_out
from .candidates import Candidate

_CLEAR = 0.3  # share explained that no random order reaches
_STRONG = 1.0  # ridge, over the mean of k(x, x), that noise asks for


class HeldOut(NamedTuple):
    """What kernel ridge predicts of rows left out.

    Attributes:
        predicted: ``(n, c)``, each row by the fit without its fold.
        explained: Share of the columns' variance that it predicts.
        controls: ``(s,)``, the same for each random order of the columns.
    """

    predicted: Tensor
    explained: float
    controls: Tensor


def leave_folds_out(candidate: Candidate, columns: Tensor, fold: Tensor, orders: list[Tensor]) -> HeldOut:
    """The machine at its own ridge; where it predicts so badly that an order might compete, at a strong one too.

    Args:
        candidate: With its rows and its ridge.
        columns: Centred targets, ``(n, c)``.
        fold: Fold of each row, ``(n,)``, as ``fit`` scores.
        orders: s orders of the rows, ``(n,)`` each.
    """
    stacked = torch.stack([columns, *(columns[order] for order in orders)], 1)  # (n, 1 + s, c)
    tried = [_fit(candidate, stacked, fold, candidate.penalty)]
    if float(_errors(tried[0], stacked)[0]) > (1 - _CLEAR) * float(columns.square().mean()):
        strong = _STRONG * float(candidate.kernel.diag(candidate.x).mean())
        tried.append(_fit(candidate, stacked, fold, strong))
    errors = torch.stack([_errors(held, stacked) for held in tried])  # (p, 1 + s)
    best = tried[int(errors[:, 0].argmin())]
    explained = 1 - errors.amin(0) / columns.square().mean()
    return HeldOut(best[:, 0], float(explained[0]), explained[1:])


def _errors(held: Tensor, stacked: Tensor) -> Tensor:  # (n, 1 + s, c) -> (1 + s,)
    return (stacked - held).square().mean((0, 2))


def _fit(candidate: Candidate, stacked: Tensor, fold: Tensor, penalty: float) -> Tensor:  # (n, 1 + s, c)
    """Predictions of every fold by the others, those of the rows that taught the view through a view without them."""
    targets, every = stacked.flatten(1), torch.arange(len(stacked))

    def through(x: Tensor) -> Tensor:
        with torch.no_grad():
            return solve_left_out(ridge_factor(candidate.kernel, x, penalty), targets, every, fold)[2]

    held = through(candidate.x)
    for rows, x in candidate.honest:
        held[rows] = through(x)[rows]
    return held.reshape(stacked.shape)
