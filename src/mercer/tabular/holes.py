r"""Blank cells in columns that had none in training: answers widen to what is known without these columns.

With the cells :math:`x_h` blank and :math:`x_o` known, the answer is the mixture
:math:`p(y | x_o) = E[p(y | x_o, x_h) | x_o]`, the expectation over the values that the training rows nearest in
:math:`x_o` have in the blank cells (a nearest-neighbor hot deck; several cells are drawn together, from one row).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg.blocks import block_rows, slices
from .learner import Learner

_DRAWS = 39  # training rows that lend their values: ranks 2 and 38 are the ends of an interval of level 0.9
_BLANK_DRAWS = 500  # for a row that is blank throughout: its answer is the same each time, and computed once
_DONORS = 4000  # training rows that the lenders are chosen from
_POINTS = 41  # quantiles that stand for the error of one draw
_MATTERS = 0.25  # variance between draws, over that within them, from which on the blank cells mattered
_SAME = 0.005  # variance between draws of class probabilities that never matters


class Widened(NamedTuple):
    """Answers for rows with blank cells.

    Attributes:
        answer: Probabilities ``(n, c)``, or numbers ``(n,)``: means over the draws.
        low: Lower end of each interval, ``(n,)``: a quantile of the mixture; minus infinity for classes.
        high: Upper end.
        mattered: ``(n,)``, rows whose answer depends on the blank cells.
        completed: The rows with the values of the nearest training row, ``(n, d)``.
    """

    answer: Tensor
    low: Tensor
    high: Tensor
    mattered: Tensor
    completed: Tensor


def widen(learner: Learner, x: Tensor, holes: Tensor, level: float) -> Widened:
    """Answers for prepared rows ``(n, d)`` whose features ``holes``, ``(n, d)``, are unknown.

    Each answer depends on its own row only, and on no random number.

    Args:
        learner: Fitted; it keeps the training rows that lend their values.
        x: The rows; what stands in a hole does not matter.
        holes: True where a feature is unknown.
        level: For numbers, the level of the intervals.
    """
    whole = holes.all(1)
    parts = []
    if bool(whole.any()):  # one answer for all rows that are blank throughout
        one = _widen_block(learner, x[whole][:1], holes[whole][:1], level, _BLANK_DRAWS)
        parts.append(Widened(*(value.expand(int(whole.sum()), *value.shape[1:]) for value in one)))
    donors = min(_DONORS, len(learner.rows))
    some, gaps = x[~whole], holes[~whole]
    for rows in slices(len(some), block_rows(8 * (3 * donors + _DRAWS * (x.shape[1] + 2 * _POINTS)))):
        parts.append(_widen_block(learner, some[rows], gaps[rows], level, _DRAWS))
    joined = [torch.cat(values) for values in zip(*parts, strict=True)]
    place = torch.cat((whole.nonzero()[:, 0], (~whole).nonzero()[:, 0])).argsort()
    return Widened(*(value[place] for value in joined))


def _widen_block(learner: Learner, x: Tensor, holes: Tensor, level: float, draws: int) -> Widened:
    # the training rows that may lend, and an order among those at the same distance that does not follow the table
    every = learner.rows
    donors = every[torch.linspace(0, len(every) - 1, min(len(every), _DONORS)).round().long()]
    shuffle = torch.rand(len(donors), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    # squared distances over the known features: sum_j m_ij (z_ij - z'_lj)^2, m = 1 where known
    distance = torch.zeros(len(x), len(donors), dtype=torch.float64)
    if isinstance(learner, Learner):
        known = (~holes).double()
        z, other = learner.seen(x).double(), learner.seen(donors).double()
        distance = (known * z.square()).sum(1, keepdim=True) - 2 * (known * z) @ other.mT + known @ other.square().mT
    k = min(draws, len(donors))
    lenders = (distance + 1e-6 * shuffle).topk(k, largest=False).indices  # (n, k)

    # the k completed rows of each row, and their answers
    filled = torch.where(holes[:, None], donors[lenders], x[:, None])  # (n, k, d)
    flat = filled.flatten(0, 1)
    answers = learner.predict(flat).unflatten(0, filled.shape[:2])  # (n, k, c) or (n, k)
    mean = answers.mean(1)
    endless = torch.full((len(x),), torch.inf, dtype=torch.float64)

    # total variance = within the draws + between them: the cells mattered where the second counts
    if answers.ndim == 3:
        within = 1 - answers.square().sum(2).mean(1)
        between = (answers - mean[:, None]).square().sum(2).mean(1)
        return Widened(mean, -endless, endless, (between > _MATTERS * within) & (between > _SAME), filled[:, 0])
    between = answers.var(1, correction=0)
    if not isinstance(learner, Learner) or not bool(learner.half_widths(x[:1], level).isfinite().all()):
        return Widened(
            mean, -endless, endless, between > 0, filled[:, 0]
        )  # no errors, or too few of them for this level
    scale = learner.spreads(flat).unflatten(0, filled.shape[:2])  # (n, k)
    within = (scale.square() * learner.errors.square().mean()).mean(1)

    # quantiles of the mixture: each draw's answer with the errors of left-out rows, both signs, around it. One of
    # k + 1 draws is the true one, so of rank r in k + 1 it lies below with probability r / (k + 1); what lies beyond
    # the outermost draws is bounded by the targets' range.
    grid = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) / _POINTS
    errors = torch.cat((-learner.errors, learner.errors)).quantile(grid)
    points = (answers[:, :, None] + scale[:, :, None] * errors).flatten(1).sort(1).values  # (n, k * points)
    below = ((1 - level) / 2 * (k + 1) - 1) * _POINTS
    if below < 0:
        low, high = points[:, 0].clamp(max=learner.low), points[:, -1].clamp(min=learner.high)
    else:
        low, high = points[:, int(below)], points[:, -1 - int(below)]
    return Widened(mean, low, high, between > _MATTERS * within, filled[:, 0])
