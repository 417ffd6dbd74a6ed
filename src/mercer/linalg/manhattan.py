r"""Sums of absolute differences :math:`\|x_i - y_j\|_1`, with all derivatives, and fast for columns of few values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .torch_internals import cdist_gradient, records_graph, transformed

_LEVELS = 16  # a column of at most so many values is faster as signs in a matrix product
_PROBE = 64  # rows looked at first: most columns show there that they have more


def manhattan_distances(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Distances :math:`\sum_k |x_{ik} - y_{jk}|`; the derivative at equal entries is 0.

    A second derivative, a forward-mode one or a ``torch.func`` transform holds all n m d differences.
    """
    if records_graph() or transformed():  # ONNX has no cdist; a compiler fuses these three
        return (x[:, None] - y[None]).abs().sum(-1)
    result: Tensor = _Manhattan.apply(x, y)  # type: ignore[no-untyped-call]
    return result


def manhattan_tiles(x: Tensor, y: Tensor) -> Callable[[slice, slice], Tensor]:
    r"""The distances between some rows and some columns, without derivatives.

    A column with the values :math:`l_0 < \dots < l_u` is :math:`l_0 + \sum_j w_j [x > l_j]` with the gaps :math:`w_j`.
    Its share of a distance is :math:`\sum_j w_j (1 - s_j t_j) / 2` for the signs s, t of the two rows: a matrix
    product, some thirty times as fast as differences. Indicators of categories are such columns.
    """
    codes = _codes(x, y)
    if codes is None:
        return lambda rows, columns: torch.cdist(x[rows], y[columns], p=1.0)
    signs_x, signs_y, half, least, rest = codes
    x, y = x[:, rest], y[:, rest]

    def tile(rows: slice, columns: slice) -> Tensor:
        coded = torch.rsub(signs_x[rows] @ signs_y[columns].mT, half)
        coded = torch.where(coded < least, 0.0, coded)  # rounding; the least distance above 0 is 1,000 times as large
        return coded + torch.cdist(x[rows], y[columns], p=1.0) if x.shape[1] else coded

    return tile


class _Codes(NamedTuple):
    x: Tensor  # (n, c): signs times the root of half the gap
    y: Tensor  # (m, c)
    half: float  # half the sum of the gaps
    least: float  # what is below is rounding
    rest: Tensor  # columns that are not coded


def _codes(x: Tensor, y: Tensor) -> _Codes | None:
    both = x if y is x else torch.cat((x, y))
    probe = both[:: max(1, len(both) // _PROBE)].sort(0).values
    few = ((probe.diff(dim=0) != 0).sum(0) < _LEVELS) & (both.isfinite().all(0))
    chosen, parts = torch.zeros_like(few), []
    for column in few.nonzero()[:, 0].tolist():
        levels = both[:, column].unique()
        if len(levels) <= _LEVELS:
            chosen[column] = True
            root = (levels.diff() / 2).sqrt()
            parts.append(torch.where(both[:, column, None] > levels[:-1], root, -root))
    signs = torch.cat(parts, 1) if parts else both.new_zeros(len(both), 0)
    if not signs.shape[1]:
        return None
    gaps = 2 * signs[0].square()
    half = float(gaps.double().sum()) / 2
    least = (8 + signs.shape[1] ** 0.5) * torch.finfo(x.dtype).eps * half
    if 1000 * least > float(gaps.min()):  # columns of too different scales for one product
        return None
    own = signs if y is x else signs[: len(x)]
    return _Codes(own, signs if y is x else signs[len(x) :], half, least, (~chosen).nonzero()[:, 0])


class _Manhattan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        distances = torch.cdist(x, y, p=1.0)
        ctx.save_for_backward(x, y, distances)
        return distances

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y, distances = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed():  # a second derivative, or many at once
            pulled = grads[0][..., None] * (x[:, None] - y[None]).sign()
            return pulled.sum(1), -pulled.sum(0)
        grad = grads[0].contiguous()
        wanted = ctx.needs_input_grad
        return (
            cdist_gradient(grad, x, y, distances) if wanted[0] else None,
            cdist_gradient(grad.mT.contiguous(), y, x, distances.mT.contiguous()) if wanted[1] else None,
        )
