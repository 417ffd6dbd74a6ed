r"""Logits by a radial series between embeddings and weights, in one pass.

Plain autograd keeps a tensor of n x m numbers for every power of the cosines, and copies of all rows on the sphere.
Here only the cosines are kept; the backward pass makes their powers again, a few rows at a time. A small head pays for
the number of operations, not for their size: it keeps the powers, and scale, bias and linear part are in the same pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels.radial_series import gram_of_series
from ..linalg.distances import norms_and_units
from ..linalg.torch_internals import in_batched_backward, is_transforming, records_graph

_BLOCK = 2**15  # cosines worked on at a time: on a CPU their powers stay in the cache
_BLOCK_GPU = 2**21
_USUAL = (1e-15, 1e15)  # norms between these have float32 squares that neither over- nor underflow
_SPEED = 6.0  # of the scale: a gate of 1 adds as much; the study head_safety.py measures it
_LEAST_SUM = 0.1  # of coefficients that are divided by their sum
_SHORTENING = 0.75  # a row of length r >> radius is read as one of length radius^(3/4) r^(1/4)


def series_logits(
    z: Tensor,
    w: Tensor,
    a: Tensor,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    linear: Tensor | None = None,
    start: Tensor | None = None,
    center: Tensor | None = None,
    lift: float = 0.0,
    radius: float = 0.0,
    normalized: bool = False,
) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Logits :math:`s_j \sum_k a_k t_{ij}^k + v_j^T h(x_i) + b_j`, with :math:`x = z - \mu` and :math:`s = S + 6 g`.

    :math:`t_{ij} = \cos((x_i, \ell), (w_j, 0))`, and h is :func:`shorten_long_rows`.

    Args:
        z: Embeddings. A row at the center has the cosine 0 with every weight.
        w: Weights, of the same dtype; their lengths do not matter.
        a: Coefficients of the powers 0, 1, ..., M.
        gate: g, ``(m,)``; None for 0.
        bias: b, ``(m,)``; None for 0.
        linear: v, ``(m, d)``; None for 0.
        start: S, ``(1,)``, a constant; None for 1.
        center: :math:`\mu`, ``(d,)``, a constant; None for 0.
        lift: :math:`\ell`.
        radius: :math:`\rho` of h; 0 for h(x) = x. It needs a lift.
        normalized: Divide the coefficients by their sum, so that only the scale has a size. Those below 0 count as 0;
            they keep their gradient, so that they can return.
    """
    # Compilers fuse the plain form themselves; torch.func and forward mode need operations that they can see through.
    if records_graph() or is_transforming() or z.is_meta:
        return plain_series_logits(z, w, a, gate, bias, linear, start, center, lift, radius, normalized)
    logits: Tensor = _SeriesLogits.apply(z, w, a, gate, bias, linear, start, center, lift, radius, normalized)  # type: ignore[no-untyped-call]
    return logits


def plain_series_logits(
    z: Tensor, w: Tensor, a: Tensor, gate: Tensor | None, bias: Tensor | None, linear: Tensor | None,
    start: Tensor | None, center: Tensor | None, lift: float, radius: float, normalized: bool,
) -> Tensor:  # fmt: skip
    """The same by operations that torch differentiates itself, to any order."""
    x = z
    if center is not None:
        x = z - center
    # Coefficients below 0 count as 0 and keep their gradient.
    if normalized:
        a = a + (a.relu() - a).detach()
        a = a / a.sum().clamp(min=_LEAST_SUM)
    # The series between (x, lift) and (w, 0).
    lifted = x
    if lift:
        lifted, w = F.pad(x, (0, 1), value=lift), F.pad(w, (0, 1))
    logits = gram_of_series(lifted, w, a, None)
    # Scale, bias and linear part.
    if start is not None:
        logits = logits * find_scale(start, gate)
    if bias is not None:
        logits = logits + bias
    if linear is not None:
        logits = torch.addmm(logits, shorten_long_rows(x, radius), linear.mT)
    return logits


def find_scale(start: Tensor, gate: Tensor | None) -> Tensor:  # (1,), (m,) -> (m,)
    """The scale S + 6 g; ``(1,)`` without a gate."""
    if gate is None:
        return start
    return torch.add(start, gate, alpha=_SPEED)


def shorten_long_rows(x: Tensor, radius: float) -> Tensor:  # (n, d) -> (n, d)
    r"""Rows :math:`h(x) = x (1 + |x|^2 / \rho^2)^{-3/8}`: short ones as they are, long ones shorter; 0 for h(x) = x.

    No two rows become one: the length of h(x) grows with that of x, as its fourth root in the end.
    """
    if radius == 0:
        return x
    length = norms_and_units(F.pad(x, (0, 1), value=radius))[0]
    return x * (length / radius).pow(-_SHORTENING).unsqueeze(1)


class _SeriesLogits(torch.autograd.Function):
    """The logits and their gradients by hand: a small head keeps the powers of all cosines, a large one none."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, w: Tensor, a: Tensor, gate: Tensor | None, bias: Tensor | None, linear: Tensor | None,
        start: Tensor | None, center: Tensor | None, lift: float, radius: float, normalized: bool,
    ) -> Tensor:  # fmt: skip
        n, m, order = len(z), len(w), len(a) - 1
        small = n * m <= _BLOCK and order > 0 and z.device.type == "cpu"
        # Embeddings on the sphere, and as the linear part reads them.
        x = z
        if center is not None:
            x = z - center
        inverse_x, factor, share, _ = _measure_rows(x, lift, radius)
        inverse_w, _, _, ctx.usual = _measure_rows(w, 0.0, 0.0)
        unit_x, shortened = x * inverse_x, x
        if factor is not None:
            shortened = x * factor
        scale = None
        if start is not None:
            scale = find_scale(start, gate)
        # Coefficients that are not negative, with the sum 1.
        positive, total, divisor = a, None, None
        if normalized:
            positive = a.relu()
            total = positive.sum()
            divisor = total.clamp(min=_LEAST_SUM)
            positive.div_(divisor)
        # Coefficients of the series and of its derivative, k a_k of t^(k-1).
        exponents = torch.arange(order + 1, dtype=a.dtype, device=a.device)
        table = torch.stack((positive, (positive * exponents).roll(-1)))  # (2, order + 1)

        of_small: list[Tensor | None] = [None] * 6  # what only a small head saves
        if small:
            # One product with all powers of the cosines; the backward pass reads everything again.
            unit_w, powers = w * inverse_w, x.new_empty(order + 1, n * m)
            rows = powers.unbind()
            t = rows[1].view(n, m)
            torch.mm(unit_x, unit_w.mT, out=t).clamp_(-1, 1)
            _fill_powers(rows)
            value, slope = torch.mm(table, powers).view(2, n, m).unbind()
            if scale is not None and bias is not None:
                logits = torch.addcmul(bias, value, scale)
            else:
                logits = value.clone()  # the values are saved for the backward pass
                if scale is not None:
                    logits.mul_(scale)
                if bias is not None:
                    logits.add_(bias)
            of_small = [powers, value, slope, unit_x, unit_w, shortened]
        else:
            t = torch.mm(unit_x, w.mT)  # cosines, once each block has been divided by the lengths of the weights
            logits, coefficients = torch.empty_like(t), positive.unbind()
            for block in _row_blocks(t):
                part, out = t[block].mul_(inverse_w.mT).clamp_(-1, 1), logits[block]
                # Horner: (a_M t + a_{M-1}) t + ...
                if order == 0:
                    out.copy_(coefficients[0].expand_as(out))
                else:
                    torch.addcmul(coefficients[-2], part, coefficients[-1], out=out)
                for coefficient in reversed(coefficients[:-2]):
                    torch.addcmul(coefficient, out, part, out=out)
                if scale is not None:
                    out.mul_(scale)
                if bias is not None:
                    out.add_(bias)
        if linear is not None:
            logits.addmm_(shortened, linear.mT)
        sizes = (scale, inverse_x, inverse_w, factor, share, total, divisor)
        ctx.save_for_backward(z, w, a, gate, bias, linear, start, center, t, table, *sizes, *of_small)
        ctx.options = (lift, radius, normalized)
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors  # read once: checkpointing frees them afterwards
        z, w, a, _, _, linear, _, center, t, table = saved[:10]
        scale, inverse_x, inverse_w, factor, share, total, divisor = saved[10:17]
        powers, value, slope, unit_x, unit_w, shortened = saved[17:]
        needed = ctx.needs_input_grad[:6]
        # A second derivative, or many gradients at once: differentiate the plain form.
        if torch.is_grad_enabled() or in_batched_backward(grads[0]):
            twice = torch.is_grad_enabled()
            with torch.enable_grad():
                logits = plain_series_logits(*saved[:8], *ctx.options)
            inputs = [tensor for tensor, need in zip(saved, needed, strict=False) if need]
            slopes = iter(torch.autograd.grad(logits, inputs, grads[0], create_graph=twice, materialize_grads=True))
            return *(next(slopes) if need else None for need in needed), None, None, None, None, None

        # By hand: first what is a sum over blocks of rows, then the gradient of each argument.
        grad, order, small, sums = grads[0].contiguous(), len(a) - 1, powers is not None, []
        if small:
            grad_t, blocks = t, [(t, grad, t)]
        else:
            grad_t = torch.empty_like(t)
            blocks = [(t[block], grad[block], grad_t[block]) for block in _row_blocks(t)]
        for part, flow, out in blocks:
            if not small:
                # A large head makes the powers of a few rows again, in one buffer.
                if powers is None or powers.shape[1] != part.numel():
                    powers = part.new_empty(order + 1, part.numel())
                rows = powers.unbind()
                if order:
                    rows[1].copy_(part.view(-1))
                _fill_powers(rows)
                value, slope = torch.mm(table, powers).view(2, *part.shape).unbind()
            # What flows back to the scale, to the coefficients and to the cosines.
            scale_flow = (value * flow).sum(0)
            if scale is not None:
                flow = flow * scale
            coefficient_flow = torch.mv(powers, flow.view(-1))
            cosine_flow = slope * flow
            # How much of the last lies along w: its length undoes it.
            if small:
                grad_t, radial = cosine_flow, cosine_flow * part
            else:
                torch.mul(cosine_flow, inverse_w.mT, out=out)
                radial = cosine_flow.mul_(part)
            sums.append((radial.sum(0), coefficient_flow, scale_flow))
        radial_w, grad_a, grad_scale = sums[0]
        if len(sums) > 1:
            radial_w, grad_a, grad_scale = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
        if total is not None:
            # p / sum(p): the slope along p is 0, unless the sum is held at its least.
            free = (total / divisor).floor_()  # 1, or 0 where it is held
            grad_a = torch.addcmul(grad_a, torch.dot(grad_a, table[0]), free, value=-1).div_(divisor)

        grad_z = grad_w = grad_gate = grad_bias = grad_linear = None
        if not small:
            # Not saved by a large head: the rows again, on the sphere and as the linear part reads them.
            x = z
            if center is not None:
                x = z - center
            unit_x, shortened = x * inverse_x, x
            if factor is not None:
                shortened = x * factor
        if needed[0]:
            # The cosines do not feel a step along (x, lift), and h(x) feels less of a step along x than of one across.
            directions = w
            if small:
                directions = unit_w
            flow = radial = torch.mm(grad_t, directions).mul_(inverse_x)
            if linear is not None:
                linear_flow = torch.mm(grad, linear)
                if factor is not None:
                    linear_flow.mul_(factor)
                    radial = torch.addcmul(flow, linear_flow, share, value=_SHORTENING)
                flow = flow + linear_flow
            grad_z = torch.addcmul(flow, unit_x, (radial * unit_x).sum(1, keepdim=True), value=-1)
        if needed[1]:
            # A weight's length does not matter: nothing flows along it.
            grad_w = torch.mm(grad_t.mT, unit_x)
            if small:
                grad_w.addcmul_(unit_w, radial_w[:, None], value=-1).mul_(inverse_w)
            elif ctx.usual:
                grad_w.addcmul_(w, radial_w[:, None] * inverse_w.square(), value=-1)
            else:  # the square of an inverse length may overflow
                grad_w.addcmul_(w * inverse_w, radial_w[:, None] * inverse_w, value=-1)
        if needed[3]:
            grad_gate = grad_scale.mul_(_SPEED)
        if needed[4]:
            grad_bias = grad.sum(0)
        if needed[5]:
            grad_linear = torch.mm(grad.mT, shortened)
        return grad_z, grad_w, grad_a, grad_gate, grad_bias, grad_linear, None, None, None, None, None


def _fill_powers(rows: tuple[Tensor, ...]) -> None:
    """Write the powers 0, 2, 3, ... of the cosines, which are row 1, into the other rows."""
    rows[0].fill_(1.0)
    for k in range(2, len(rows)):
        torch.mul(rows[k - 1], rows[1], out=rows[k])


def _row_blocks(t: Tensor) -> list[slice]:
    """A few rows of the cosines at a time; one block of none where there are no rows."""
    n, m = t.shape
    size = _BLOCK_GPU
    if t.device.type == "cpu":
        size = _BLOCK
    rows = max(1, size // max(1, m))
    return [slice(start, min(start + rows, n)) for start in range(0, max(1, n), rows)]


def _measure_rows(x: Tensor, lift: float, radius: float) -> tuple[Tensor, Tensor | None, Tensor | None, bool]:
    """Four numbers of rows x of length r: the first three of each row, the last of all.

    1 / |(r, lift)|, or 0 where that is too short for a direction; |h(x)| / r and (|(r, lift)| / |(r, radius)|)^2, or
    None for radius 0; and whether the lengths are usual.
    """
    norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (n, 1)
    factor = share = None
    # Where values may be read without waiting for a device, rows of usual lengths need no more than this.
    if x.device.type == "cpu" and norm.numel():
        shortest, longest = torch.aminmax(norm)
        if longest.item() < _USUAL[1] and lift > 0:
            square = norm.square_()
            if radius:
                beyond = square + radius**2  # |(r, radius)|^2
                share = square.add_(lift**2) / beyond
                factor = beyond.mul_(radius**-2).pow_(-_SHORTENING / 2)
            else:
                square.add_(lift**2)
            return square.rsqrt_(), factor, share, True
        if longest.item() < _USUAL[1] and shortest.item() > _USUAL[0]:
            return norm.reciprocal_(), None, None, True
    # Squares of very long or very short rows over- or underflow: a wider dtype, or rows scaled by their largest entry.
    if x.dtype == torch.float64:
        largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
        length = torch.where(largest > torch.finfo(x.dtype).tiny, largest, 1.0)
        norm = length * torch.linalg.vector_norm(x / length, dim=1, keepdim=True)
    else:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
    beyond = torch.hypot(norm, torch.full_like(norm, radius))  # |(r, radius)|
    if lift > 0:
        norm = torch.hypot(norm, torch.full_like(norm, lift))
    if radius:
        factor, share = (beyond / radius).pow(-_SHORTENING).to(x.dtype), (norm / beyond).square().to(x.dtype)
    inverse: Tensor = torch.where(norm > 4 * torch.finfo(x.dtype).tiny, norm.reciprocal(), 0.0)
    return inverse.to(x.dtype), factor, share, False
