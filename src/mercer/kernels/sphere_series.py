r"""The value of :math:`\sum_m a_m P_m(\langle x, y \rangle / \|x\| \|y\|)` and its gradients, in one pass.

What plain autograd would do costs a tensor of n x m numbers for every power, and copies of all rows on the sphere. Here
norms are folded in, powers are made in a buffer that stays in the cache, and only the cosines are kept for the
backward pass, beside what a matrix product keeps.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from ..linalg import unit_rows
from .logits import LEAST_LENGTH, read_out

__all__ = ["Factors", "series", "sphere_series"]

Factors = tuple[tuple[float, float], ...] | None  # of the Gegenbauer recurrence; None for powers
_Workspace = tuple[Tensor, Tensor | None, list[Callable[[], object]]]
_kept = threading.local()
_BLOCK = 2**15  # cosines worked on at a time on a CPU: their powers stay in the cache
_BLOCK_GPU = 2**21
_LONGEST = -math.log(LEAST_LENGTH)
_USUAL = (1e-15, 1e15)  # norms between these have float32 squares that neither over- nor underflow


def sphere_series(
    x: Tensor,
    y: Tensor,
    a: Tensor,
    slopes: Tensor,
    factors: Factors,
    exponent: Tensor | None = None,
    log_scale: Tensor | None = None,
    bias: Tensor | None = None,
    prototypes: int = 1,
) -> Tensor:
    """The series at the cosines between rows, read as logits: (n, d), (m, d), (order + 1,) -> (n, m / prototypes).

    Args:
        x: Rows; scale does not matter. A row of zeros has the value a_0 with every row.
        y: Rows likewise, of the same dtype.
        a: Coefficients of :math:`P_0, P_1, ...`.
        slopes: Row m holds the derivative of :math:`P_m` in the polynomials, float64.
        factors: Of the recurrence of the polynomials; None for powers.
        exponent: See :func:`read_out`, as the next three.
        log_scale: ``(m,)``.
        bias: ``(m / prototypes,)``.
        prototypes: Rows of y that are joined.
    """
    if _must_be_plain(x):
        return read_out(_plain(x, y, a, factors), x, exponent, log_scale, bias, prototypes)
    result: Tensor = _SphereSeries.apply(x, y, a, exponent, log_scale, bias, slopes, factors, prototypes)  # type: ignore[no-untyped-call]
    return result


def series(t: Tensor, a: Tensor, factors: Factors) -> Tensor:
    """The series at given t, by plain differentiable operations: Horner for powers, Clenshaw for Gegenbauer."""
    order = len(a) - 1
    if factors is None:
        value = torch.zeros_like(t) + a[order]
        for m in range(order - 1, -1, -1):
            value = value * t + a[m]
        return value
    if order == 0:
        return torch.zeros_like(t) + a[0]
    later, value = torch.zeros_like(t), torch.zeros_like(t)
    for m in range(order, 0, -1):  # Clenshaw: b_m = a_m + A_m t b_{m+1} - B_{m+1} b_{m+2}
        up = factors[m - 1][0] if m < order else 0.0
        down = factors[m][1] if m + 1 < order else 0.0
        later, value = value, a[m] + up * t * value - down * later
    down = factors[0][1] if order > 1 else 0.0
    return a[0] + t * value - down * later


def _must_be_plain(x: Tensor) -> bool:
    # Compilers fuse the plain form themselves; torch.func and forward mode need operations that they can see through.
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or x.is_meta
    )


def _plain(x: Tensor, y: Tensor, a: Tensor, factors: Factors) -> Tensor:
    t = unit_rows(x) @ unit_rows(y).mT
    t = t + (t.detach().clamp(-1, 1) - t.detach())
    value = series(t, a, factors)
    here = (x != 0).any(1)[:, None] & (y != 0).any(1)[None]
    return torch.where(here, value, a[0])


class _SphereSeries(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, a: Tensor, exponent: Tensor | None, log_scale: Tensor | None,
        bias: Tensor | None, slopes: Tensor, factors: Factors, prototypes: int,
    ) -> Tensor:  # fmt: skip
        (inverse_x, _), (inverse_y, usual) = _inverse_norms(x), _inverse_norms(y)
        t = torch.mm(x * inverse_x, y.mT)
        value = _values(t, a, factors, inverse_y.mT)
        if factors is not None:
            value = torch.where(_apart(inverse_x, inverse_y), value, a[0])
        length = None if exponent is None else _log_length(inverse_x, x.shape[1])
        row, column = _scales(length, exponent, log_scale)
        _scaled_(value, row, column)
        joined = None
        if prototypes > 1:
            value = joined = value.view(len(x), len(y) // prototypes, prototypes).logsumexp(2)
        if bias is not None:
            value = value.add_(bias) if joined is None else value + bias
        ctx.save_for_backward(x, y, a, t, inverse_x, inverse_y, exponent, log_scale, bias, length, joined)
        ctx.slopes, ctx.factors, ctx.usual, ctx.prototypes = slopes, factors, usual, prototypes
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors  # read once: checkpointing frees what was read
        # A second derivative, or many gradients at once, is wanted: the plain form has both.
        if torch.is_grad_enabled() or is_legacy_batchedtensor(grads[0]):
            return _plain_backward(ctx, (*saved[:3], *saved[6:9]), grads[0])
        device = saved[0].device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return _fast_backward(ctx, saved, grads[0])
        return _fast_backward(ctx, saved, grads[0])


def _plain_backward(ctx: Any, inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted = [i for i in range(6) if ctx.needs_input_grad[i]]
    x, y, a, exponent, log_scale, bias = inputs
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        value = read_out(_plain(x, y, a, ctx.factors), x, exponent, log_scale, bias, ctx.prototypes)
    found = torch.autograd.grad(value, [inputs[i] for i in wanted], grad, create_graph=twice, materialize_grads=True)
    grads: list[Tensor | None] = [None] * 9
    for i, each in zip(wanted, found, strict=True):
        grads[i] = each
    return tuple(grads)


def _fast_backward(ctx: Any, saved: Sequence[Any], grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y, a, t, inverse_x, inverse_y, exponent, log_scale, _, length, joined = saved
    row, column = _scales(length, exponent, log_scale)
    reading = _Reading(row, column, joined, ctx.prototypes)
    apart = None if ctx.factors is None else _apart(inverse_x, inverse_y)  # a row of zeros knows the constant only
    found = _gradients(grad.contiguous(), t, a, ctx.slopes, ctx.factors, inverse_y.mT, reading, apart)
    unit, along_x = x * inverse_x, found.along_x
    grad_exponent = None
    if length is not None and found.rows is not None:  # a longer row has larger logits
        grad_exponent = torch.mm(found.rows.mT, length).view(1)
        inside = found.rows.mul_(length.abs() < _LONGEST)
        along_x = torch.addcmul(along_x, inside, exponent, value=-1)
    grad_x = grad_y = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.mm(found.cosines, y).addcmul_(unit, along_x, value=-1).mul_(inverse_x)
    if ctx.needs_input_grad[1]:
        grad_y, pull = torch.mm(found.cosines.mT, unit), found.along_y[:, None] * inverse_y
        if ctx.usual:  # one pass less; the square of an inverse norm may overflow elsewhere
            grad_y.addcmul_(y, pull * inverse_y, value=-1)
        else:
            grad_y.addcmul_(y * inverse_y, pull, value=-1)
    grad_scale = None if log_scale is None else found.columns
    grad_bias = grad.sum(0) if ctx.needs_input_grad[5] else None
    return grad_x, grad_y, found.coefficients, grad_exponent, grad_scale, grad_bias, None, None, None


class _Reading(NamedTuple):
    """What turns kernel values into logits: factors of rows and columns, and the joined prototypes where several."""

    row: Tensor | None  # (n, 1)
    column: Tensor | None  # (m,)
    joined: Tensor | None  # (n, m / prototypes)
    prototypes: int

    def part(self, start: int, stop: int) -> _Reading:
        row = None if self.row is None else self.row[start:stop]
        return self._replace(row=row, joined=None if self.joined is None else self.joined[start:stop])


class _Gradients(NamedTuple):
    cosines: Tensor  # (n, m), times the scale
    along_x: Tensor  # (n, 1): the part along each x
    along_y: Tensor  # (m,)
    coefficients: Tensor  # (order + 1,)
    rows: Tensor | None  # (n, 1): of the logarithm of each row's factor
    columns: Tensor | None  # (m,)


def _log_length(inverse: Tensor, d: int) -> Tensor:  # (n, 1) -> (n, 1)
    # A row of zeros has the inverse 0, whose logarithm is clamped with those of rows too long: turn it around first.
    short = torch.where(inverse > 0, inverse, math.inf)
    return short.log_().neg_().sub_(0.5 * math.log(d)).clamp_(-_LONGEST, _LONGEST)


def _scales(length: Tensor | None, exponent: Any, log_scale: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    row = None if length is None else (length * exponent).exp()
    return row, None if log_scale is None else log_scale.exp()


def _scaled_(value: Tensor, row: Tensor | None, column: Tensor | None) -> Tensor:
    if row is not None:
        value.mul_(row)
    return value if column is None else value.mul_(column)


def _values(t: Tensor, a: Tensor, factors: Factors, scale: Tensor) -> Tensor:
    """The series at the cosines, which are first multiplied by ``scale`` and clamped, in place."""
    value = torch.empty_like(t)  # not a view of something else: sharded training warns of these
    if _is_one_block(t):
        buffer = _polynomials(t.mul_(scale).clamp_(-1, 1), len(a), factors)
        torch.mv(buffer.mT, a, out=value.view(-1))
        return value
    for start, stop, buffer in _blocks(t, len(a), factors, scale):
        torch.mv(buffer.mT, a, out=value[start:stop].view(-1))
    return value


def _gradients(
    grad: Tensor, t: Tensor, a: Tensor, slopes: Tensor, factors: Factors, scale: Tensor, reading: _Reading,
    apart: Tensor | None,
) -> _Gradients:  # fmt: skip
    b = torch.mv(slopes.to(a).mT, a)  # the derivative's coefficients
    if _is_one_block(t):
        return _block_gradients(_polynomials(t, len(a), factors), grad, t, a, b, scale, reading, apart)
    cosines, total = torch.empty_like(t), None
    along, rows = t.new_zeros(len(t), 1), t.new_zeros(len(t), 1)
    for start, stop, buffer in _blocks(t, len(a), factors, None):
        own = None if apart is None else apart[start:stop]
        found = _block_gradients(buffer, grad[start:stop], t[start:stop], a, b, scale, reading.part(start, stop), own)
        cosines[start:stop], along[start:stop] = found.cosines, found.along_x
        if found.rows is not None:
            rows[start:stop] = found.rows
        sums = [found.along_y, found.coefficients, t.new_zeros(1) if found.columns is None else found.columns]
        total = sums if total is None else [one.add_(other) for one, other in zip(total, sums, strict=True)]
    if total is None:
        total = [t.new_zeros(t.shape[1]), torch.zeros_like(a), t.new_zeros(t.shape[1])]
    return _Gradients(cosines, along, total[0], total[1], rows, total[2])


def _block_gradients(
    buffer: Tensor, grad: Tensor, t: Tensor, a: Tensor, b: Tensor, scale: Tensor, reading: _Reading,
    apart: Tensor | None,
) -> _Gradients:  # fmt: skip
    """Everything that flows back through one block of cosines, whose polynomials are in the buffer."""
    rows = columns = value = elsewhere = None
    if reading.row is not None or reading.column is not None or reading.joined is not None:
        value = torch.mv(buffer.mT, a).view(t.shape)
        if apart is not None:
            value = torch.where(apart, value, a[0])
        if reading.joined is not None:
            scores = _scaled_(value.clone(), reading.row, reading.column).view(
                *reading.joined.shape, reading.prototypes
            )
            weights = scores.sub_(reading.joined[:, :, None]).exp_()
            grad = weights.mul_(grad[:, :, None]).view(t.shape)
        if reading.column is not None:
            grad = grad * reading.column
        if reading.row is not None:
            grad = grad.mul_(reading.row) if reading.column is not None else grad * reading.row
        radial = value.mul_(grad)
        rows, columns = radial.sum(1, keepdim=True), radial.sum(0)
    if apart is not None:
        elsewhere = torch.where(apart, 0.0, grad).sum()
        grad = torch.where(apart, grad, 0.0)
    coefficients = torch.mv(buffer, grad.view(-1))
    if elsewhere is not None:
        coefficients[0] += elsewhere
    cosines = torch.mv(buffer.mT, b).view(t.shape).mul_(grad)
    radial = cosines * t
    along_x, along_y = radial.sum(1, keepdim=True), radial.sum(0)
    return _Gradients(cosines.mul_(scale), along_x, along_y, coefficients, rows, columns)


def _is_one_block(t: Tensor) -> bool:
    """Whether all cosines fit one block: in small heads a loop with its slices costs as much as the numbers."""
    return 0 < t.numel() <= _BLOCK and t.device.type == "cpu"


def _polynomials(t: Tensor, count: int, factors: Factors) -> Tensor:
    """All polynomials at a block of cosines, a row each, in the buffer that is used again."""
    buffer, first, steps = _workspace(t, count, t.numel(), factors)
    if first is not None:
        first.copy_(t.view(-1))
    for step in steps:
        step()
    return buffer


def _blocks(t: Tensor, count: int, factors: Factors, scale: Tensor | None) -> Iterator[tuple[int, int, Tensor]]:
    """A few rows of the cosines at a time, with all polynomials at them, in one buffer that is used again.

    With a ``scale`` the rows are first multiplied by it and clamped, in place, while they are in the cache.
    """
    n, m = t.shape
    rows = max(1, (_BLOCK if t.device.type == "cpu" else _BLOCK_GPU) // max(1, m))
    rows = min(rows, max(1, n))
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        part = t[start:stop]
        if scale is not None:
            part.mul_(scale).clamp_(-1, 1)
        yield start, stop, _polynomials(part, count, factors)


def _workspace(t: Tensor, count: int, size: int, factors: Factors) -> _Workspace:
    """A buffer whose row 0 is 1, its row 1, and the steps that fill the others; kept for the next call of its thread.

    In small heads the views cost more than the numbers in them.
    """
    key = (count, size, t.dtype, t.device, factors)
    if getattr(_kept, "key", None) != key:
        with torch.inference_mode(False):  # else a later call outside that mode could not write into it
            buffer = torch.empty(count, size, dtype=t.dtype, device=t.device)
            buffer[0].fill_(1.0)
            _kept.made = (buffer, buffer[1] if count > 1 else None, _steps(buffer, factors))
        _kept.key = key
    made: _Workspace = _kept.made
    return made


def _steps(buffer: Tensor, factors: Factors) -> list[Callable[[], object]]:
    """What fills rows 2, 3, ... of the buffer from row 1; the views are made once, not for every block."""
    order = len(buffer) - 1
    if order < 2:
        return []
    if factors is not None:
        t = buffer[1]
        return [
            partial(_next_polynomial, t, buffer[m - 1], buffer[m], buffer[m + 1], *factors[m - 1])
            for m in range(1, order)
        ]
    steps: list[Callable[[], object]] = []
    done = 1
    while done < order:  # rows 1..k times row k are rows k+1..2k
        count = min(done, order - done)
        left, right, out = buffer[1 : 1 + count], buffer[done], buffer[done + 1 : done + 1 + count]
        steps.append(partial(torch.mul, left, right, out=out))
        done += count
    return steps


def _next_polynomial(t: Tensor, before: Tensor, now: Tensor, after: Tensor, a: float, b: float) -> None:
    torch.mul(t, now, out=after)
    after.mul_(a).sub_(before, alpha=b)


def _apart(inverse_x: Tensor, inverse_y: Tensor) -> Tensor:
    return (inverse_x > 0) & (inverse_y > 0).mT


def _inverse_norms(x: Tensor) -> tuple[Tensor, bool]:  # (n, d) -> (n, 1)
    """1 / |x| for each row, 0 for rows too short to have a direction, and whether all are of a usual size."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if x.device.type == "cpu" and norm.numel():
        least, most = torch.aminmax(norm)
        if least.item() > _USUAL[0] and most.item() < _USUAL[1]:
            return norm.reciprocal_(), True
    if x.dtype == torch.float64:
        largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
        scale = torch.where(largest > torch.finfo(x.dtype).tiny, largest, 1.0)
        norm = scale * torch.linalg.vector_norm(x / scale, dim=1, keepdim=True)
    else:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
    return torch.where(norm > 4 * torch.finfo(x.dtype).tiny, norm.reciprocal(), 0.0).to(x.dtype), False
