"""Views of a table's columns: what a kernel sees of them, each column on a scale where distances mean something."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from ..storage.savable import SavableModule

_CLIP = 8.0  # deviations at which a value is held: one absurd cell must not outweigh all other columns
_FEW_VALUES = 3  # columns of so few different values are indicators
_LEAST_DEVIATION = 0.2  # of an indicator: one that is 1 in a hundred rows must not count for ten others
_SKEW = 2.0  # from here on a column has a long tail
_KNOTS = 256
_EDGE = 1e-4  # ranks of the least and the largest value


class View(SavableModule):
    r"""Columns on one scale, :math:`z_j = w_j \, \mathrm{clip}((g_j(x_j) - m_j) / s_j)`, held within 8 deviations.

    :math:`g_j` is the identity, or takes a column with a long tail to the normal distribution by its quantiles. A
    matrix W in place of w turns the columns, too: :math:`z W`.

    Args:
        mean: :math:`m`, ``(d,)``.
        scale: :math:`s`, ``(d,)``.
        weight: :math:`w`, ``(d,)``, or W, ``(d, d)``.
        columns: Those that go through their quantiles, ``(q,)``.
        knots: Values of these columns, ``(q, p)``, ascending.
        normal: What they become, ``(q, p)``.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    columns: Tensor
    knots: Tensor
    normal: Tensor

    def __init__(
        self, mean: Tensor, scale: Tensor, weight: Tensor, columns: Tensor, knots: Tensor, normal: Tensor
    ) -> None:
        super().__init__()
        self.hold(mean=mean, scale=scale, weight=weight, columns=columns, knots=knots, normal=normal)

    @classmethod
    def of(cls, x: Tensor, *, straighten: bool = False) -> Self:  # (n, d)
        """Learn means, deviations and, where asked for, the quantiles of columns with a long tail."""
        x = x.double()
        few = torch.tensor([len(column.unique()) <= _FEW_VALUES for column in x.mT], dtype=torch.bool)
        columns = _long_tails(x, ~few) if straighten else torch.zeros(0, dtype=torch.int64)
        knots, normal = _quantiles(x[:, columns])
        x = _straightened(x, columns, knots, normal)
        deviation = (x / _size(x)).std(0, correction=0) * _size(x)
        least = torch.where(few, _LEAST_DEVIATION, 0.0)
        scale = torch.where(deviation > least, deviation, torch.where(few, _LEAST_DEVIATION, 1.0))
        return cls(x.mean(0), scale, torch.ones_like(scale), columns, knots, normal)

    def weighted(self, weight: Tensor) -> View:  # (d,) or (d, d)
        """The same view with other weights."""
        return View(self.mean, self.scale, weight, self.columns, self.knots, self.normal)

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, d) -> (n, d)
        x = _straightened(x.double(), self.columns, self.knots, self.normal)
        z = ((x - self.mean) / self.scale).clamp(-_CLIP, _CLIP)
        return self.weight * z if self.weight.ndim == 1 else z @ self.weight


def _long_tails(x: Tensor, numeric: Tensor) -> Tensor:  # (n, d), (d,) -> (q,)
    """Columns whose skewness is beyond 2."""
    x = x / _size(x)
    centred = x - x.mean(0)
    deviation = centred.square().mean(0).sqrt()
    skew = (centred / torch.where(deviation > 0, deviation, 1)).pow(3).mean(0).abs()
    return ((skew > _SKEW) & numeric).nonzero()[:, 0]


def _size(x: Tensor) -> Tensor:  # (n, d) -> (d,)
    """Largest absolute values: squares of what is divided by them neither under- nor overflow."""
    return x.abs().amax(0).clamp_min(torch.finfo(x.dtype).tiny)


def _quantiles(x: Tensor) -> tuple[Tensor, Tensor]:  # (n, q) -> (q, p), (q, p)
    """Knots at evenly spaced ranks, and the normal quantiles of the middle rank of each; all ends repeat."""
    p = min(_KNOTS, len(x))
    if x.shape[1] == 0:
        return x.new_zeros(0, p), x.new_zeros(0, p)
    ordered = x.mT.sort(1).values.contiguous()  # (q, n)
    knots = ordered[:, torch.linspace(0, len(x) - 1, p).round().long()].contiguous()
    below, upto = torch.searchsorted(ordered, knots), torch.searchsorted(ordered, knots, right=True)
    ranks = (below + upto).double() / 2 / len(x)
    return knots, torch.special.ndtri(ranks.clamp(_EDGE, 1 - _EDGE))


def _straightened(x: Tensor, columns: Tensor, knots: Tensor, normal: Tensor) -> Tensor:
    """Piecewise linear from the knots to the normal quantiles; constant outside them."""
    if len(columns) == 0:
        return x
    values = x[:, columns].mT.contiguous()  # (q, n)
    right = torch.searchsorted(knots, values).clamp(1, knots.shape[1] - 1)
    x0, x1 = knots.gather(1, right - 1), knots.gather(1, right)
    y0, y1 = normal.gather(1, right - 1), normal.gather(1, right)
    share = torch.where(x1 > x0, (values - x0) / (x1 - x0).clamp_min(1e-300), 1.0).clamp(0, 1)
    out = x.clone()
    out[:, columns] = (y0 + share * (y1 - y0)).mT
    return out
