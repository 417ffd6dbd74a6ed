"""Pairwise distances and cosines: exact for a point with itself, finite gradients there, large ones in tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .blocks import slices
from .torch_internals import cdist_gradient, differentiated, readable, records_graph, transformed

# A sum of d products carries a rounding error of a few units in the last place of |x|^2 + |y|^2.
_RESOLUTION = 8.0
_FEW_FEATURES = 4
_CENTER_ROWS = 16
_LEVELS = 16  # a column of at most so many values is faster as signs in a matrix product
_PROBE = 64  # rows looked at first: most columns show there that they have more
_TILE_BYTES = 2**20  # a tile and its temporaries stay in the processor's cache


def squared_distances(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Squared distances :math:`\|x_i - y_j\|^2`.

    Up to four features: by differences, exact. More: by one matrix product, the rows centered first, because
    :math:`\|x\|^2 + \|y\|^2 - 2 x \cdot y` loses all its digits when the mean is large. What is left below the
    rounding error of that sum cannot be told from 0 and is returned as 0, so a point has distance 0 to itself and to
    its copies; the gradient there is 0 as well. A row with a NaN is at distance NaN, one whose squares overflow as far
    away as the dtype can say, and neither changes the distances between the others.
    """
    if x.shape[-1] <= _FEW_FEATURES:
        return _by_differences(x, y)
    if not differentiated(x, y):
        left, right = _with_norms_inside(x, y)
        return (left @ right.mT).clamp_min_(0)
    # Derivatives go through the plain sum. NaN is not below the floor, and stays.
    x, y, rows, columns = _with_norms(x, y)
    norms = rows[:, None] + columns[None]  # (n, m)
    squared = torch.addmm(norms, x, y.mT, alpha=-2.0)
    floor = _RESOLUTION * torch.finfo(x.dtype).eps * norms.detach()
    return torch.where(squared < floor, 0.0, squared)


def squared_tiles(x: Tensor, y: Tensor) -> Callable[[slice, slice], Tensor]:
    """The same between some rows and some columns; what all tiles share is computed once."""
    if x.shape[-1] <= _FEW_FEATURES:
        return lambda rows, columns: _by_differences(x[rows], y[columns])
    left, right = _with_norms_inside(x, y)
    return lambda rows, columns: (left[rows] @ right[columns].mT).clamp_min_(0)


def _by_differences(x: Tensor, y: Tensor) -> Tensor:
    total = x.new_zeros(x.shape[0], y.shape[0])  # len() would fix the rows of an exported graph
    for feature in range(x.shape[-1]):
        total = total + (x[:, feature, None] - y[None, :, feature]).square()
    return total


def _with_norms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows around a common center, none so long that its square overflows, and their squared norms."""
    center = _find_center(x.detach(), y.detach())
    x, y = x - center, y - center
    rows, columns = x.square().sum(-1), y.square().sum(-1)
    if readable(rows, columns):  # elsewhere values cannot be looked at
        limit = torch.finfo(rows.dtype).max / 8
        if bool((rows.detach() > limit).any() | (columns.detach() > limit).any()):
            x, y = _shorten_rows(x), _shorten_rows(y)
            rows, columns = x.square().sum(-1), y.square().sum(-1)
    return x, y, rows, columns


def _with_norms_inside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # (n, d), (m, d) -> (n, d + 2), (m, d + 2)
    """Rows whose products are the squared distances: the norms ride along as two more features.

    They are lowered by the rounding error of the sum, so that what cannot be told from 0 falls below it.
    """
    x, y, rows, columns = _with_norms(x, y)
    keep = 1 - _RESOLUTION * torch.finfo(x.dtype).eps
    left = torch.cat((-2 * x, keep * rows[:, None], torch.ones_like(rows)[:, None]), 1)
    return left, torch.cat((y, torch.ones_like(columns)[:, None], keep * columns[:, None]), 1)


def median_distance(x: Tensor, *, p: int = 2, rows: int = 1000) -> float:  # (n, d)
    """Median of the distances above 0 between rows; 0 where all rows are equal. The usual start of a bandwidth.

    Args:
        x: Rows, finite.
        p: 2 for Euclidean distances, 1 for sums of absolute differences.
        rows: Evenly spaced rows that are looked at.
    """
    x = x.detach()[torch.linspace(0, len(x) - 1, min(len(x), rows), device=x.device).round().long()].double()
    # Scale first: squares of tiny values would vanish, those of huge ones overflow.
    largest = float(x.abs().max()) if x.numel() else 0.0
    if not largest > 0:
        return 0.0
    x = x / largest
    distances, power = squared_distances(x, x), 0.5
    if p == 1:
        distances, power = manhattan_distances(x, x), 1.0
    # each pair once: half of what is searched
    distances = distances[tuple(torch.triu_indices(len(x), len(x), 1, device=x.device))]
    positive = distances[distances > 0]
    if not len(positive):
        return 0.0
    return math.pow(float(positive.median()), power) * largest


def _find_center(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (d,)
    """Medians over a few rows: a mean would follow one far row, and take the digits of all the others with it."""
    if records_graph():  # a graph must not know the number of rows, and ONNX has no median
        return y.mean(0).nan_to_num(0.0, 0.0, 0.0)
    # Any point near the rows will do: it only keeps the norms small.
    sample = torch.cat([part[:: max(1, len(part) // _CENTER_ROWS)][:_CENTER_ROWS] for part in (x, y)])
    if not len(sample):
        return sample.new_zeros(x.shape[-1])
    return sample.nanmedian(0).values.nan_to_num(0.0, 0.0, 0.0)


def _shorten_rows(x: Tensor) -> Tensor:
    """Shorten rows whose squares overflow, along their direction; the longer a row was, the longer it stays."""
    limit = math.sqrt(torch.finfo(x.dtype).max / (8 * x.shape[-1]))
    excess = x.detach().abs().amax(-1, keepdim=True) / limit
    factor = (1 + excess.clamp_min(1.0).log2() / 4096) / excess  # at most 5/4 of the limit, even in float64
    return x * torch.where(excess > 1, factor, 1.0)


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root with gradient 0, not infinite, at 0."""
    if not differentiated(squared):
        return squared.clamp_min(0).sqrt_()
    zero = squared <= 0
    return torch.where(zero, torch.zeros_like(squared), torch.where(zero, torch.ones_like(squared), squared).sqrt())


def norms_and_units(x: Tensor) -> tuple[Tensor, Tensor]:  # (n, d) -> (n,), (n, d)
    """Lengths of the rows, and the rows on the unit sphere; a row of zeros stays zero."""
    scale = x.detach().abs().amax(-1, keepdim=True)  # squares of tiny or huge entries would under- or overflow
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    x = x / scale
    norm = safe_sqrt(x.square().sum(-1, keepdim=True))
    return (norm * scale)[..., 0], x / torch.where(norm > 0, norm, torch.ones_like(norm))


def unit_rows(x: Tensor) -> Tensor:  # (n, d) -> (n, d)
    """Rows on the unit sphere; a row of zeros stays zero."""
    return norms_and_units(x)[1]


def scalar_products(x: Tensor, y: Tensor, factor: Tensor | None = None) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Scalar products :math:`\langle x_i, y_j \rangle`, times ``factor``; infinite only where that value overflows.

    A plain product of rows whose squares overflow adds inf and -inf, which is NaN. Such rows are shortened first and
    their products lengthened afterwards. The others are not touched, nor is any row slowed down where none is so long.
    """
    limit = math.sqrt(torch.finfo(x.dtype).max / (8 * x.shape[-1]))
    scales = None
    if not readable(x, y) or not (_all_below(limit, x) and _all_below(limit, y)):
        # One factor of at least 1 for each row; it is a constant to a derivative, because it cancels.
        longest = [rows.detach().abs().amax(-1, keepdim=True) / limit for rows in (x, y)]
        scales = [torch.where((excess > 1) & (excess < math.inf), excess, 1.0) for excess in longest]
        x, y = x / scales[0], y / scales[1]
    products = x @ y.mT
    if factor is not None:  # before the lengths: a small factor may keep the value finite
        products = factor * products
    return products if scales is None else products * scales[0] * scales[1].mT


def _all_below(limit: float, x: Tensor) -> bool:
    if not x.numel():
        return True
    least, most = torch.aminmax(x.detach())
    return bool((least > -limit) & (most < limit))  # False for a NaN


def cosines(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Cosines :math:`\langle x_i, y_j \rangle / (\|x_i\| \|y_j\|)` in [-1, 1], 0 for a row of zeros.

    Within the rounding error of 1 (of -1) they are 1 (-1), so a row has cosine 1 with its copies.
    """
    return clamp_cosines(unit_rows(x) @ unit_rows(y).mT)


def clamp_cosines(t: Tensor) -> Tensor:
    """Cosines, with values within rounding of +-1 set to +-1; the gradient passes as if nothing was set."""
    edge = 1.0 - _RESOLUTION * torch.finfo(t.dtype).eps
    snapped = torch.where(t.detach().abs() > edge, t.detach().sign(), t.detach())
    return t + (snapped - t.detach()) if differentiated(t) else snapped


def angles(t: Tensor) -> Tensor:
    """``arccos`` of cosines, with gradient 0, not infinite, at +-1."""
    edge = t.abs() >= 1
    inner = torch.where(edge, torch.zeros_like(t), t).arccos()
    return torch.where(edge, torch.where(t > 0, torch.zeros_like(t), torch.full_like(t, torch.pi)), inner)


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
    codes = _find_codes(x, y)
    if codes is None:
        return lambda rows, columns: torch.cdist(x[rows], y[columns], p=1.0)
    signs_x, signs_y, half, least, others = codes
    x, y = x[:, others], y[:, others]

    def tile(rows: slice, columns: slice) -> Tensor:
        distances = torch.rsub(signs_x[rows] @ signs_y[columns].mT, half)
        distances = torch.where(distances < least, 0.0, distances)  # rounding: a true one is 1,000 times as large
        if x.shape[1]:
            distances = distances + torch.cdist(x[rows], y[columns], p=1.0)
        return distances

    return tile


class _Codes(NamedTuple):
    x: Tensor  # (n, c): signs times the root of half the gap
    y: Tensor  # (m, c)
    half: float  # half the sum of the gaps
    least: float  # what is below is rounding
    others: Tensor  # columns that are not coded


def _find_codes(x: Tensor, y: Tensor) -> _Codes | None:
    """The signs of all columns of few values; None where there are none, or their scales differ too much."""
    # Columns that may have few values, by a few rows; then all their values.
    both = x if y is x else torch.cat((x, y))
    probe = both[:: max(1, len(both) // _PROBE)].sort(0).values
    candidates = ((probe.diff(dim=0) != 0).sum(0) < _LEVELS) & (both.isfinite().all(0))
    coded, parts = torch.zeros_like(candidates), []
    for column in candidates.nonzero()[:, 0].tolist():
        # The levels l_0 < ... < l_u, and for each row the signs of x - l_j times the root of half the gap.
        levels = both[:, column].unique()
        if len(levels) <= _LEVELS:
            coded[column] = True
            root = (levels.diff() / 2).sqrt()
            parts.append(torch.where(both[:, column, None] > levels[:-1], root, -root))
    signs = torch.cat(parts, 1) if parts else both.new_zeros(len(both), 0)
    if not signs.shape[1]:
        return None

    # Below this, a distance is the rounding of the product; a true one, at least the smallest gap, must be far above.
    gaps = 2 * signs[0].square()
    half = float(gaps.double().sum()) / 2
    least = (8 + signs.shape[1] ** 0.5) * torch.finfo(x.dtype).eps * half
    if 1000 * least > float(gaps.min()):  # columns of too different scales for one product
        return None
    others = (~coded).nonzero()[:, 0]
    if y is x:
        return _Codes(signs, signs, half, least, others)
    return _Codes(signs[: len(x)], signs[len(x) :], half, least, others)


class _Manhattan(torch.autograd.Function):
    """torch's cdist with a second derivative."""

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
        for_x, for_y = None, None
        if ctx.needs_input_grad[0]:
            for_x = cdist_gradient(grad, x, y, distances)
        if ctx.needs_input_grad[1]:
            for_y = cdist_gradient(grad.mT.contiguous(), y, x, distances.mT.contiguous())
        return for_x, for_y


METRICS = {"squared": (squared_distances, squared_tiles), "manhattan": (manhattan_distances, manhattan_tiles)}


def fill_tiles(
    matrices: Sequence[Tensor], tile: Callable[[slice, slice], Sequence[Tensor]], *, symmetric: bool, side: int
) -> None:
    """Write ``tile(rows, columns)`` into every matrix; of symmetric ones the lower triangle is the upper mirrored.

    Args:
        matrices: ``(n, m)`` each, overwritten.
        tile: Gives a part of every matrix.
        symmetric: Only tiles on and above the diagonal are computed.
        side: Rows and columns of a tile.
    """
    n, m = matrices[0].shape
    for rows in slices(n, side):
        for columns in slices(m, side):
            if symmetric and columns.start < rows.start:
                continue
            for matrix, part in zip(matrices, tile(rows, columns), strict=True):
                matrix[rows, columns] = part
                if symmetric and rows != columns:
                    matrix[columns, rows] = part.mT


def map_distances(
    metric: str, x: Tensor, y: Tensor, profile: Callable[[Tensor], Tensor], hyper: Sequence[Tensor] = ()
) -> Tensor:  # (n, d), (m, d) -> (n, m)
    """``profile`` of the distances between rows, elementwise.

    Where a derivative may be asked for, the distances are held whole; elsewhere only the result is.

    Args:
        metric: ``"squared"``, Euclidean distances squared, or ``"manhattan"``, sums of absolute differences.
        x: Rows.
        y: Rows; ``x`` itself makes the matrix symmetric, and half the work.
        profile: Function of a matrix of distances.
        hyper: Tensors that ``profile`` uses, for their derivatives.
    """
    compute, tiles = METRICS[metric]
    side = math.isqrt(_TILE_BYTES // x.element_size())
    if differentiated(x, y, *hyper) or x.device.type != "cpu" or x.shape[0] * y.shape[0] <= side**2:
        return profile(compute(x, y))
    distances = tiles(x, y)
    out = torch.empty(len(x), len(y), dtype=x.dtype)
    fill_tiles([out], lambda rows, columns: (profile(distances(rows, columns)),), symmetric=y is x, side=side)
    return out
