r"""The value of :math:`\sum_m a_m P_m(\langle x, y \rangle / \|x\| \|y\|)` and its gradients, in one pass.

What plain autograd would do costs a tensor of n x m numbers for every power, and copies of all rows on the sphere. Here
norms are folded in, powers are made in a buffer that stays in the cache, and only the cosines are kept for the
backward pass, beside what a matrix product keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..linalg import in_batched_backward, records_graph, transformed, unit_rows
from .cosine_buffer import BLOCK, Factors, Norms, norms, polynomials, row_blocks, scratch, slopes_like
from .logits import read_out


def sphere_series(
    x: Tensor,
    y: Tensor,
    a: Tensor,
    slopes: Tensor,
    factors: Factors,
    log_scale: Tensor | None = None,
    bias: Tensor | None = None,
    prototypes: int = 1,
    *,
    center: Tensor | None = None,
    start: Tensor | None = None,
    relu: bool = False,
    linear: Tensor | None = None,
    factor: float = 1.0,
) -> Tensor:
    """The series at the cosines between rows, read as logits: (n, d), (m, d), (order + 1,) -> (n, m / prototypes).

    Args:
        x: Rows; scale does not matter. A row of zeros has the value a_0 with every row.
        y: Rows likewise, of the same dtype.
        a: Coefficients of :math:`P_0, P_1, ...`.
        slopes: Row m holds the derivative of :math:`P_m` in the polynomials, float64.
        factors: Factors of the polynomials' recurrence; None for powers.
        log_scale: ``(m,)``; see :func:`read_out`, as the next two.
        bias: ``(m / prototypes,)``.
        prototypes: Rows of y that are joined.
        center: ``(d,)``, taken off x.
        start: ``(1,)``, added to ``log_scale``.
        relu: Take the positive part of a.
        linear: ``(m / prototypes, d)``, v: ``factor`` v x is added.
        factor: Of it.
    """
    result: Tensor
    plain = _must_be_plain(x)
    if not plain and factors is None and prototypes == 1 and len(a) > 1 and _is_one_block(x, y):
        result = _SmallSeries.apply(x, y, a, log_scale, bias, center, linear, start, slopes, relu, factor)  # type: ignore[no-untyped-call]
        return result
    z = x if center is None else x - center
    a, log_scale = _begun(a, log_scale, start, relu)
    if plain:
        result = read_out(_plain(z, y, a, factors), log_scale, bias, prototypes)
    else:
        result = _SphereSeries.apply(z, y, a, log_scale, bias, slopes, factors, prototypes)  # type: ignore[no-untyped-call]
    return result if linear is None else torch.addmm(result, x, linear.mT, alpha=factor)


def _is_one_block(x: Tensor, y: Tensor) -> bool:
    return x.device.type == "cpu" and 0 < len(x) * len(y) <= BLOCK


def _begun(a: Tensor, log_scale: Tensor | None, start: Tensor | None, relu: bool) -> tuple[Tensor, Tensor | None]:
    return a.relu() if relu else a, log_scale if log_scale is None or start is None else log_scale + start


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
    return records_graph() or transformed() or x.is_meta


def _plain(x: Tensor, y: Tensor, a: Tensor, factors: Factors) -> Tensor:
    t = unit_rows(x) @ unit_rows(y).mT
    t = t + (t.detach().clamp(-1, 1) - t.detach())
    value = series(t, a, factors)
    here = (x != 0).any(1)[:, None] & (y != 0).any(1)[None]
    return torch.where(here, value, a[0])


class _Pass(NamedTuple):
    """What the backward pass of a small head reads again, with the polynomials in the buffer."""

    x: Norms
    y: Norms
    unit_x: Tensor
    unit_y: Tensor
    a: Tensor
    value: Tensor  # (n, m)
    weights: Tensor | None  # (m,): what the values are multiplied by
    buffer: Tensor
    token: object


def _pass(x: Tensor, y: Tensor, a: Tensor, log_scale: Tensor | None, start: Tensor | None, relu: bool) -> _Pass:
    long_x, long_y = norms(x), norms(y)
    unit_x, unit_y = x * long_x.inverse, y * long_y.inverse
    a, log_scale = _begun(a, log_scale, start, relu)
    buffer = polynomials(torch.mm(unit_x, unit_y.mT), len(a), None)
    value = x.new_empty(len(x), len(y))
    torch.mv(buffer.mT, a, out=value.view(-1))
    weights = None if log_scale is None else log_scale.exp()
    made = scratch.last = _Pass(long_x, long_y, unit_x, unit_y, a, value, weights, buffer, object())
    return made


class _SmallSeries(torch.autograd.Function):
    """A head whose cosines fit one block, where operations cost more than numbers: as few as can be.

    Only the arguments are kept. The rest is still in the buffer unless another head was called in between.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, a: Tensor, log_scale: Tensor | None,
        bias: Tensor | None, center: Tensor | None, linear: Tensor | None, start: Tensor | None, slopes: Tensor,
        relu: bool, factor: float,
    ) -> Tensor:  # fmt: skip
        made = _pass(x if center is None else x - center, y, a, log_scale, start, relu)
        ctx.save_for_backward(x, y, a, log_scale, bias, center, linear, start)
        ctx.slopes, ctx.relu, ctx.factor, ctx.token = slopes, relu, factor, made.token
        if made.weights is None:
            logits = made.value.clone() if bias is None else made.value + bias
        else:
            logits = made.value * made.weights if bias is None else torch.addcmul(bias, made.value, made.weights)
        return logits if linear is None else logits.addmm_(x, linear.mT, alpha=factor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y, a, log_scale, bias, center, linear, start = ctx.saved_tensors
        if torch.is_grad_enabled() or in_batched_backward(grads[0]):
            begin = partial(_begun, start=start, relu=ctx.relu)
            inputs = (x, y, a, log_scale, bias, center, linear)
            return _plain_backward(ctx, inputs, grads[0], None, 1, begin, ctx.factor)
        with _full_precision(x):
            made = scratch.last
            if not isinstance(made, _Pass) or made.token is not ctx.token:
                made = _pass(x if center is None else x - center, y, a, log_scale, start, ctx.relu)
            return _small_backward(ctx, made, grads[0].contiguous(), x, linear)


def _small_backward(ctx: Any, made: _Pass, grad: Tensor, x: Tensor, linear: Tensor | None) -> tuple[Tensor | None, ...]:
    logits, wanted = grad, ctx.needs_input_grad
    buffer, grad_bias = made.buffer, grad.sum(0) if wanted[4] else None
    b = torch.mv(slopes_like(ctx.slopes, made.a).mT, made.a)  # the derivative's coefficients
    grad_scale = None
    if made.weights is not None:
        grad = grad * made.weights
        grad_scale = (made.value * grad).sum(0)
    grad_a = torch.mv(buffer, grad.view(-1))
    if ctx.relu:
        grad_a.mul_(made.a > 0)
    cosines = torch.mv(buffer.mT, b).view(grad.shape).mul_(grad)
    radial = cosines * buffer[1].view(grad.shape)
    along_x, along_y = radial.sum(1, keepdim=True), radial.sum(0)
    grad_x = grad_y = grad_center = grad_linear = None
    if wanted[1]:
        grad_y = torch.mm(cosines.mT, made.unit_x).addcmul_(made.unit_y, along_y[:, None], value=-1)
        grad_y.mul_(made.y.inverse)
    if wanted[0]:
        grad_x = torch.mm(cosines, made.unit_y).addcmul_(made.unit_x, along_x, value=-1).mul_(made.x.inverse)
        grad_center = grad_x.sum(0).neg_() if wanted[5] else None
    elif wanted[5]:  # the embeddings are frozen: two matrix-vector products do
        inverse = made.x.inverse
        grad_center = torch.mv(made.unit_x.mT, along_x.mul_(inverse)[:, 0])
        grad_center.addmv_(made.unit_y.mT, torch.mv(cosines.mT, inverse[:, 0]), alpha=-1)
    if linear is not None:
        grad_linear = torch.mm(logits.mT, x).mul_(ctx.factor) if wanted[6] else None
        if grad_x is not None:
            grad_x.addmm_(logits, linear, alpha=ctx.factor)
    return grad_x, grad_y, grad_a, grad_scale if wanted[3] else None, grad_bias, grad_center, grad_linear, *[None] * 4


def _full_precision(x: Tensor) -> AbstractContextManager[Any]:
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class _SphereSeries(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, a: Tensor, log_scale: Tensor | None,
        bias: Tensor | None, slopes: Tensor, factors: Factors, prototypes: int,
    ) -> Tensor:  # fmt: skip
        long_x, long_y = norms(x), norms(y)
        t = torch.mm(x * long_x.inverse, y.mT)
        column, joined = None if log_scale is None else log_scale.exp(), None
        apart = None if factors is None else _apart(long_x.inverse, long_y.inverse)
        value = _values(t, a, factors, long_y.inverse.mT, apart, column, bias if prototypes == 1 else None)
        if prototypes > 1:
            value = joined = value.view(len(x), len(y) // prototypes, prototypes).logsumexp(2)
            value = value if bias is None else value + bias
        ctx.save_for_backward(
            x, y, a, log_scale, bias,
            t, long_x.inverse, long_y.inverse, column, joined,
        )  # fmt: skip
        ctx.slopes, ctx.factors, ctx.prototypes = slopes, factors, prototypes
        ctx.usual = long_y.usual
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors  # read once: checkpointing frees what was read
        # A second derivative, or many gradients at once, is wanted: the plain form has both.
        if torch.is_grad_enabled() or in_batched_backward(grads[0]):
            begin = partial(_begun, start=None, relu=False)
            return _plain_backward(ctx, saved[:5], grads[0], ctx.factors, ctx.prototypes, begin)
        with _full_precision(saved[0]):
            return _fast_backward(ctx, saved, grads[0])


def _plain_backward(
    ctx: Any, inputs: Sequence[Tensor], grad: Tensor, factors: Factors, prototypes: int, begin: Any, factor: float = 1.0
) -> tuple[Tensor | None, ...]:
    wanted = [i for i in range(len(inputs)) if ctx.needs_input_grad[i]]
    padded: list[Any] = [*inputs, None, None]
    x, y, a, log_scale, bias, center, linear = padded[:7]
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        a, log_scale = begin(a, log_scale)
        z = x if center is None else x - center
        value = read_out(_plain(z, y, a, factors), log_scale, bias, prototypes)
        value = value if linear is None else torch.addmm(value, x, linear.mT, alpha=factor)
    found = torch.autograd.grad(value, [inputs[i] for i in wanted], grad, create_graph=twice, materialize_grads=True)
    grads: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
    for i, each in zip(wanted, found, strict=True):
        grads[i] = each
    return tuple(grads)


def _fast_backward(ctx: Any, saved: Sequence[Any], grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y, a, log_scale, _, t, inverse_x, inverse_y, column, joined = saved
    reading = _Reading(column, joined, ctx.prototypes)
    apart = None if ctx.factors is None else _apart(inverse_x, inverse_y)  # a row of zeros knows the constant only
    b = torch.mv(slopes_like(ctx.slopes, a).mT, a)  # the derivative's coefficients
    found = _gradients(grad.contiguous(), t, a, b, ctx.factors, inverse_y.mT, reading, apart)
    unit = x * inverse_x
    grad_x = grad_y = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.mm(found.cosines, y).addcmul_(unit, found.along_x, value=-1).mul_(inverse_x)
    if ctx.needs_input_grad[1]:
        grad_y, pull = torch.mm(found.cosines.mT, unit), found.along_y[:, None] * inverse_y
        if ctx.usual:  # one pass less; the square of an inverse norm may overflow elsewhere
            grad_y.addcmul_(y, pull.mul_(inverse_y), value=-1)
        else:
            grad_y.addcmul_(y * inverse_y, pull, value=-1)
    grad_scale = None if log_scale is None else found.columns
    grad_bias = grad.sum(0) if ctx.needs_input_grad[4] else None
    return grad_x, grad_y, found.coefficients, grad_scale, grad_bias, None, None, None


class _Reading(NamedTuple):
    """What turns kernel values into logits: factors of columns, and the joined prototypes where several."""

    column: Tensor | None  # (m,)
    joined: Tensor | None  # (n, m / prototypes)
    prototypes: int

    def part(self, rows: slice) -> _Reading:
        return self._replace(joined=None if self.joined is None else self.joined[rows])


class _Gradients(NamedTuple):
    cosines: Tensor  # (n, m), times the scale
    along_x: Tensor  # (n, 1): the part along each x
    along_y: Tensor  # (m,)
    coefficients: Tensor  # (order + 1,)
    columns: Tensor | None  # (m,): of the logarithm of each column's factor


def _values(
    t: Tensor, a: Tensor, factors: Factors, scale: Tensor, apart: Tensor | None, column: Tensor | None,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """The series at the cosines, which are first multiplied by ``scale``, in place; times ``column``, plus ``bias``."""
    value = torch.empty_like(t)  # not a view of something else: sharded training warns of these
    coefficients = a.unbind()
    for rows in row_blocks(t):
        part, out = t[rows].mul_(scale).clamp_(-1, 1), value[rows]
        if factors is not None:
            torch.mv(polynomials(part, len(a), factors).mT, a, out=out.view(-1))
            assert apart is not None
            torch.where(apart[rows], out, a[0], out=out)
        elif len(a) == 1:
            out.copy_(a.expand_as(out))
        else:  # Horner, where only the value is wanted
            torch.addcmul(coefficients[-2], part, coefficients[-1], out=out)
            for each in reversed(coefficients[:-2]):
                torch.addcmul(each, out, part, out=out)
        if column is not None and bias is not None:
            torch.addcmul(bias, out, column, out=out)
        elif column is not None:
            out.mul_(column)
        elif bias is not None:
            out.add_(bias)
    return value


def _gradients(
    grad: Tensor, t: Tensor, a: Tensor, b: Tensor, factors: Factors, scale: Tensor, reading: _Reading,
    apart: Tensor | None,
) -> _Gradients:  # fmt: skip
    cosines, total = torch.empty_like(t), None
    along = t.new_zeros(len(t), 1)
    for part in row_blocks(t):
        own, buffer = None if apart is None else apart[part], polynomials(t[part], len(a), factors)
        found = _block_gradients(buffer, grad[part], t[part], a, b, scale, reading.part(part), own, cosines[part])
        along[part] = found.along_x
        sums = [found.along_y, found.coefficients, t.new_zeros(1) if found.columns is None else found.columns]
        total = sums if total is None else [one.add_(other) for one, other in zip(total, sums, strict=True)]
    if total is None:
        total = [t.new_zeros(t.shape[1]), torch.zeros_like(a), t.new_zeros(t.shape[1])]
    return _Gradients(cosines, along, total[0], total[1], total[2])


def _block_gradients(
    buffer: Tensor, grad: Tensor, t: Tensor, a: Tensor, b: Tensor, scale: Tensor, reading: _Reading,
    apart: Tensor | None, cosines: Tensor,
) -> _Gradients:  # fmt: skip
    """Everything that flows back through one block of cosines, whose polynomials are in the buffer."""
    columns = elsewhere = None
    column, joined, prototypes = reading
    slope, value = torch.mm(torch.stack((b, a)), buffer).view(2, *t.shape)  # at the cost of one of them
    if column is not None or joined is not None:
        if apart is not None:
            value = torch.where(apart, value, a[0])
        if joined is not None:
            scores = (value.clone() if column is None else value * column).view(*joined.shape, prototypes)
            grad = scores.sub_(joined[:, :, None]).exp_().mul_(grad[:, :, None]).view(t.shape)
        if column is not None:
            grad = grad * column
            columns = value.mul_(grad).sum(0)
    if apart is not None:
        elsewhere = torch.where(apart, 0.0, grad).sum()
        grad = torch.where(apart, grad, 0.0)
    coefficients = torch.mv(buffer, grad.view(-1))
    if elsewhere is not None:
        coefficients[0] += elsewhere
    radial = torch.mul(slope, grad, out=cosines) * t
    along_x, along_y = radial.sum(1, keepdim=True), radial.sum(0)
    return _Gradients(cosines.mul_(scale), along_x, along_y, coefficients, columns)


def _apart(inverse_x: Tensor, inverse_y: Tensor) -> Tensor:
    return (inverse_x > 0) & (inverse_y > 0).mT
