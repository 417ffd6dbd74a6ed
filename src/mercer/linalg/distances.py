"""Pairwise distances and cosines: exact for a point with itself, finite gradients there, large ones in tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .blocks import slices
from .torch_internals import cdist_gradient, is_transforming, may_be_differentiated, readable, records_graph

# A sum of d products carries a rounding error of a few units in the last place of |x|^2 + |y|^2.
_RESOLUTION = 8.0
_FEW_FEATURES = 4
_CENTER_ROWS = 16
_LEVELS = 16  # most values of a column that is faster as signs in a matrix product
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
        return _sum_differences(x, y)
    if not may_be_differentiated(x, y):
        extended_x, extended_y = _append_norms(x, y)
        return (extended_x @ extended_y.mT).clamp_min_(0)
    # Derivatives go through the plain sum. NaN is not below the floor, and stays.
    x, y, rows, columns = _center_and_square(x, y)
    norms = rows[:, None] + columns[None]  # (n, m)
    squared = torch.addmm(norms, x, y.mT, alpha=-2.0)
    floor = _RESOLUTION * torch.finfo(x.dtype).eps * norms.detach()
    return torch.where(squared < floor, 0.0, squared)


def squared_tiles(x: Tensor, y: Tensor) -> Callable[[slice, slice], Tensor]:
    """Squared distances between some rows and some columns; work that all tiles share is done once."""
    if x.shape[-1] <= _FEW_FEATURES:
        return lambda rows, columns: _sum_differences(x[rows], y[columns])
    extended_x, extended_y = _append_norms(x, y)
    return lambda rows, columns: (extended_x[rows] @ extended_y[columns].mT).clamp_min_(0)


def _sum_differences(x: Tensor, y: Tensor) -> Tensor:
    total = x.new_zeros(x.shape[0], y.shape[0])  # len() would fix the rows of an exported graph
    for feature in range(x.shape[-1]):
        total = total + (x[:, feature, None] - y[None, :, feature]).square()
    return total


def _center_and_square(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows around a common center, none so long that its square overflows, and their squared norms."""
    # Any point near the rows will do as the center: it only keeps the norms small. Medians over a few rows, because a
    # mean would follow one far row, and take the digits of all the others with it.
    if records_graph():  # a graph must not know the number of rows, and ONNX has no median
        center = y.detach().mean(0)
    else:
        few = [part.detach()[:: max(1, len(part) // _CENTER_ROWS)][:_CENTER_ROWS] for part in (x, y)]
        sample = torch.cat(few)
        center = sample.new_zeros(x.shape[-1])
        if len(sample):
            center = sample.nanmedian(0).values
    center = center.nan_to_num(0.0, 0.0, 0.0)

    # Squares; where some overflow, of rows that are shortened.
    x, y = x - center, y - center
    rows, columns = x.square().sum(-1), y.square().sum(-1)
    if readable(rows, columns):  # elsewhere values cannot be looked at
        limit = torch.finfo(rows.dtype).max / 8
        if bool((rows.detach() > limit).any() | (columns.detach() > limit).any()):
            x, y = _shorten_rows(x), _shorten_rows(y)
            rows, columns = x.square().sum(-1), y.square().sum(-1)
    return x, y, rows, columns


def _append_norms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # (n, d), (m, d) -> (n, d + 2), (m, d + 2)
    """Rows whose products are the squared distances: the norms ride along as two more features.

    They are lowered by the rounding error of the sum, so that what cannot be told from 0 falls below it.
    """
    x, y, rows, columns = _center_and_square(x, y)
    keep = 1 - _RESOLUTION * torch.finfo(x.dtype).eps
    extended_x = torch.cat((-2 * x, keep * rows[:, None], torch.ones_like(rows)[:, None]), 1)
    return extended_x, torch.cat((y, torch.ones_like(columns)[:, None], keep * columns[:, None]), 1)


def median_distance(x: Tensor, *, p: int = 2, rows: int = 1000) -> float:  # (n, d)
    """Median of the distances above 0 between rows; 0 where all rows are equal. The usual start of a bandwidth.

    Args:
        x: Rows, finite.
        p: 2 for Euclidean distances, 1 for sums of absolute differences.
        rows: Evenly spaced rows that are looked at.
    """
    x = x.detach()[torch.linspace(0, len(x) - 1, min(len(x), rows), device=x.device).round().long()].double()
    # Scale first: squares of tiny values would vanish, those of huge ones overflow.
    largest = 0.0
    if x.numel():
        largest = float(x.abs().max())
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


def _shorten_rows(x: Tensor) -> Tensor:
    """Shorten rows whose squares overflow, along their direction; the longer a row was, the longer it stays."""
    limit = math.sqrt(torch.finfo(x.dtype).max / (8 * x.shape[-1]))
    excess = x.detach().abs().amax(-1, keepdim=True) / limit
    factor = (1 + excess.clamp_min(1.0).log2() / 4096) / excess  # at most 5/4 of the limit, even in float64
    return x * torch.where(excess > 1, factor, 1.0)


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root with gradient 0, not infinite, at 0."""
    if not may_be_differentiated(squared):
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
    if scales is not None:
        products = products * scales[0] * scales[1].mT
    return products


def _all_below(limit: float, x: Tensor) -> bool:
    if not x.numel():
        return True
    low, high = torch.aminmax(x.detach())
    return bool((low > -limit) & (high < limit))  # False for a NaN


def cosines(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Cosines :math:`\langle x_i, y_j \rangle / (\|x_i\| \|y_j\|)` in [-1, 1], 0 for a row of zeros.

    Within the rounding error of 1 (of -1) they are 1 (-1), so a row has cosine 1 with its copies.
    """
    return clamp_cosines(unit_rows(x) @ unit_rows(y).mT)


def clamp_cosines(t: Tensor) -> Tensor:
    """Cosines, with values within rounding of +-1 set to +-1; the gradient passes as if nothing was set."""
    edge = 1.0 - _RESOLUTION * torch.finfo(t.dtype).eps
    snapped = torch.where(t.detach().abs() > edge, t.detach().sign(), t.detach())
    if not may_be_differentiated(t):
        return snapped
    return t + (snapped - t.detach())


def angles(t: Tensor) -> Tensor:
    """``arccos`` of cosines, with gradient 0, not infinite, at +-1."""
    edge = t.abs() >= 1
    inner = torch.where(edge, torch.zeros_like(t), t).arccos()
    return torch.where(edge, torch.where(t > 0, torch.zeros_like(t), torch.full_like(t, torch.pi)), inner)


def manhattan_distances(x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Distances :math:`\sum_k |x_{ik} - y_{jk}|`; the derivative at equal entries is 0.

    A second derivative, a forward-mode one or a ``torch.func`` transform holds all n m d differences.
    """
    if records_graph() or is_transforming():  # ONNX has no cdist; a compiler fuses these three
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
    signs_x, signs_y, half, rounding, uncoded = codes
    x, y = x[:, uncoded], y[:, uncoded]

    def tile(rows: slice, columns: slice) -> Tensor:
        distances = torch.rsub(signs_x[rows] @ signs_y[columns].mT, half)
        distances = torch.where(distances < rounding, 0.0, distances)  # a true one is 1,000 times as large
        if x.shape[1]:
            distances = distances + torch.cdist(x[rows], y[columns], p=1.0)
        return distances

    return tile


class _Codes(NamedTuple):
    x: Tensor  # (n, c): signs times the root of half the gap
    y: Tensor  # (m, c)
    half: float  # half the sum of the gaps
    rounding: float  # smaller distances are 0
    uncoded: Tensor  # the other columns


def _find_codes(x: Tensor, y: Tensor) -> _Codes | None:
    """The signs of columns of few values; None where there are none."""
    # Columns that may have few values, by a few rows; then all their values.
    both = x
    if y is not x:
        both = torch.cat((x, y))
    probe = both[:: max(1, len(both) // _PROBE)].sort(0).values
    candidates = ((probe.diff(dim=0) != 0).sum(0) < _LEVELS) & (both.isfinite().all(0))
    coded, parts = torch.zeros_like(candidates), {}
    for column in candidates.nonzero()[:, 0].tolist():
        # The levels l_0 < ... < l_u, and for each row the signs of x - l_j times the root of half the gap.
        levels = both[:, column].unique()
        if len(levels) <= _LEVELS:
            coded[column] = True
            root = (levels.diff() / 2).sqrt()
            parts[column] = torch.where(both[:, column, None] > levels[:-1], root, -root)

    # Below `rounding`, a distance is the rounding of the product; a true one, at least the smallest gap, must be far
    # above. A column of much smaller gaps than the others is no part of the product; without it the rounding is less.
    while parts:
        signs = torch.cat(list(parts.values()), 1)
        half = float((2 * signs[0].square()).double().sum()) / 2
        rounding = (8 + signs.shape[1] ** 0.5) * torch.finfo(x.dtype).eps * half
        narrow = [column for column, part in parts.items() if bool((2 * part[0].square() < 1000 * rounding).any())]
        if not narrow:
            break
        for column in narrow:
            # The rounding of the product must not drown the gaps of this column either.
            if bool((2 * parts[column][0].square() < 20 * rounding).any()):
                return None
            coded[column] = False
            del parts[column]
    if not parts:
        return None
    uncoded = (~coded).nonzero()[:, 0]
    if y is x:
        return _Codes(signs, signs, half, rounding, uncoded)
    return _Codes(signs[: len(x)], signs[len(x) :], half, rounding, uncoded)


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
        if torch.is_grad_enabled() or is_transforming():  # a second derivative, or many at once
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

    Where a derivative may follow, all distances are held; elsewhere only the result is.

    Args:
        metric: ``"squared"``, Euclidean distances squared, or ``"manhattan"``, sums of absolute differences.
        x: Rows.
        y: Rows; ``x`` itself makes the matrix symmetric, and half the work.
        profile: Function of a matrix of distances.
        hyper: Tensors that ``profile`` uses, for their derivatives.
    """
    compute, tiles = METRICS[metric]
    side = math.isqrt(_TILE_BYTES // x.element_size())
    if may_be_differentiated(x, y, *hyper) or x.device.type != "cpu" or x.shape[0] * y.shape[0] <= side**2:
        return profile(compute(x, y))
    distances = tiles(x, y)
    out = torch.empty(len(x), len(y), dtype=x.dtype)
    fill_tiles([out], lambda rows, columns: (profile(distances(rows, columns)),), symmetric=y is x, side=side)
    return out
