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
from ..linalg.torch_internals import in_batched_backward, records_graph, transformed

_BLOCK = 2**15  # cosines worked on at a time: on a CPU their powers stay in the cache
_BLOCK_GPU = 2**21
_USUAL = (1e-15, 1e15)  # norms between these have float32 squares that neither over- nor underflow
_LEAST_SUM = 0.1  # of coefficients that are divided by their sum
_SHORTENING = 0.75  # a row of length r >> radius is read as one of length radius^(3/4) r^(1/4)


def series_logits(
    z: Tensor,
    w: Tensor,
    a: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    linear: Tensor | None = None,
    center: Tensor | None = None,
    lift: float = 0.0,
    radius: float = 0.0,
    normalized: bool = False,
) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Logits :math:`s_j \sum_k a_k t_{ij}^k + v_j^T h(x_i) + b_j`, with :math:`x = z - \mu`.

    :math:`t_{ij} = \cos((x_i, \ell), (w_j, 0))`, and h is :func:`shorten_long_rows`.

    Args:
        z: Embeddings. A row at the center has the cosine 0 with every weight.
        w: Weights, of the same dtype; their lengths do not matter.
        a: Coefficients of the powers 0, 1, ..., M.
        scale: s, ``(m,)``; None for 1.
        bias: b, ``(m,)``; None for 0.
        linear: v, ``(m, d)``; None for 0.
        center: :math:`\mu`, ``(d,)``, a constant; None for 0.
        lift: :math:`\ell`.
        radius: :math:`\rho` of h; 0 for h(x) = x. It needs a lift.
        normalized: Divide the coefficients by their sum, so that only the scale has a size. Those below 0 count as 0;
            they keep their gradient, so that they can return.
    """
    # Compilers fuse the plain form themselves; torch.func and forward mode need operations that they can see through.
    if records_graph() or transformed() or z.is_meta:
        return plain_series_logits(z, w, a, scale, bias, linear, center, lift, radius, normalized)
    logits: Tensor = _SeriesLogits.apply(z, w, a, scale, bias, linear, center, lift, radius, normalized)  # type: ignore[no-untyped-call]
    return logits


def plain_series_logits(
    z: Tensor, w: Tensor, a: Tensor, scale: Tensor | None, bias: Tensor | None, linear: Tensor | None,
    center: Tensor | None, lift: float, radius: float, normalized: bool,
) -> Tensor:  # fmt: skip
    """The same by operations that torch differentiates itself, to any order."""
    x = z if center is None else z - center
    if normalized:
        a = a + (a.relu() - a).detach()
        a = a / a.sum().clamp(min=_LEAST_SUM)
    if lift:
        w = F.pad(w, (0, 1))
    logits = gram_of_series(F.pad(x, (0, 1), value=lift) if lift else x, w, a, None)
    if scale is not None:
        logits = logits * scale
    if bias is not None:
        logits = logits + bias
    if linear is not None:
        logits = torch.addmm(logits, shorten_long_rows(x, radius), linear.mT)
    return logits


def shorten_long_rows(x: Tensor, radius: float) -> Tensor:  # (n, d) -> (n, d)
    r"""Rows :math:`h(x) = x (1 + |x|^2 / \rho^2)^{-3/8}`: short ones as they are, long ones shorter; 0 for h(x) = x.

    No two rows become one: the length of h(x) grows with that of x, as its fourth root in the end.
    """
    if radius == 0:
        return x
    length = norms_and_units(F.pad(x, (0, 1), value=radius))[0]
    return x * (length / radius).pow(-_SHORTENING).unsqueeze(1)


class _SeriesLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, w: Tensor, a: Tensor, scale: Tensor | None, bias: Tensor | None, linear: Tensor | None,
        center: Tensor | None, lift: float, radius: float, normalized: bool,
    ) -> Tensor:  # fmt: skip
        x = z if center is None else z - center
        inverse_x, inverse_far, _ = _inverse_norms(x, lift, radius)
        inverse_w, _, ctx.usual = _inverse_norms(w, 0.0, 0.0)
        unit_x = x * inverse_x
        t = torch.mm(unit_x, w.mT)  # cosines, once each block has been divided by the lengths of the weights
        blocks, powers, value = _row_blocks(t), None, None
        if normalized:
            positive = a.relu()
            ctx.sum = positive.sum()
            ctx.divisor = ctx.sum.clamp(min=_LEAST_SUM)
            positive.div_(ctx.divisor)
        else:
            positive = a
        if len(blocks) == 1 and len(a) > 1 and t.device.type == "cpu":
            # A small head: one product with the powers, which the backward pass reads again.
            powers = _make_powers(t.mul_(inverse_w.mT).clamp_(-1, 1), len(a) - 1)
            logits = value = torch.mv(powers.mT, positive).view(t.shape)
            if scale is not None:
                logits = value * scale
            elif bias is not None or linear is not None:
                logits = value.clone()
        else:
            logits, coefficients = torch.empty_like(t), positive.unbind()
            for rows in blocks:
                part, out = t[rows].mul_(inverse_w.mT).clamp_(-1, 1), logits[rows]
                # Horner: (a_M t + a_{M-1}) t + ...
                if len(coefficients) == 1:
                    out.copy_(coefficients[0].expand_as(out))
                else:
                    torch.addcmul(coefficients[-2], part, coefficients[-1], out=out)
                for coefficient in reversed(coefficients[:-2]):
                    torch.addcmul(coefficient, out, part, out=out)
                if scale is not None:
                    out.mul_(scale)
        if bias is not None:
            logits.add_(bias)
        read, factor = x, None
        if inverse_far is not None:
            factor = (radius * inverse_far).pow_(_SHORTENING)  # |h(x)| / |x|
            read = x * factor
        if linear is not None:
            logits.addmm_(read, linear.mT)
        # A small head keeps its rows too; a large one makes them again.
        kept = (unit_x, read) if powers is not None else (None, None)
        lengths = (inverse_x, inverse_w, inverse_far, factor)
        ctx.save_for_backward(z, w, a, scale, bias, linear, center, t, *lengths, positive, powers, value, *kept)
        ctx.options = (lift, radius, normalized)
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors  # read once: checkpointing frees them afterwards
        z, w, a, scale, _, linear, center, t, inverse_x, inverse_w, inverse_far, factor = saved[:12]
        positive, powers, value, unit_x, read = saved[12:]
        wanted = ctx.needs_input_grad[:6]
        # A second derivative, or many gradients at once: differentiate the plain form.
        if torch.is_grad_enabled() or in_batched_backward(grads[0]):
            twice = torch.is_grad_enabled()
            with torch.enable_grad():
                logits = plain_series_logits(*saved[:7], *ctx.options)
            asked = [each for each, want in zip(saved, wanted, strict=False) if want]
            slopes = iter(torch.autograd.grad(logits, asked, grads[0], create_graph=twice, materialize_grads=True))
            return *(next(slopes) if want else None for want in wanted), None, None, None, None

        grad, order, sums = grads[0].contiguous(), len(a) - 1, []
        # The derivative of the series has the coefficients k a_k of t^(k-1).
        derivative = positive[1:] * torch.arange(1, order + 1, dtype=a.dtype, device=a.device)
        grad_t, small = torch.empty_like(t), powers is not None
        for rows in _row_blocks(t):
            part, flow = t[rows], grad[rows]
            if not small:
                powers = _make_powers(part, order, powers)
                value = torch.mv(powers.mT, positive).view(part.shape)
            # What flows back to the scale, to the coefficients and to the cosines.
            scale_flow = (value * flow).sum(0)
            if scale is not None:
                flow = flow * scale
            coefficient_flow = torch.mv(powers, flow.view(-1))
            cosine_flow = torch.mv(powers[:order].mT, derivative).view(part.shape)
            torch.mul(cosine_flow.mul_(flow), inverse_w.mT, out=grad_t[rows])
            # How much of the last lies along x and along w: their lengths undo it.
            radial = cosine_flow.mul_(part)
            sums.append((radial.sum(1, keepdim=True), radial.sum(0), coefficient_flow, scale_flow))
        radial_x, radial_w, grad_a, grad_scale = sums[0]
        if len(sums) > 1:
            radial_x = torch.cat([each[0] for each in sums])
            radial_w = torch.stack([each[1] for each in sums]).sum(0)
            grad_a = torch.stack([each[2] for each in sums]).sum(0)
            grad_scale = torch.stack([each[3] for each in sums]).sum(0)
        if ctx.options[2]:
            # p / sum(p): the slope along p is 0, unless the sum is held at its least.
            along = torch.dot(grad_a, positive) * (ctx.sum >= _LEAST_SUM)
            grad_a = grad_a.sub_(along).div_(ctx.divisor)

        grad_z = grad_w = grad_bias = grad_linear = None
        if unit_x is None:
            x = z if center is None else z - center
            unit_x, read = x * inverse_x, x if factor is None else x * factor
        if wanted[0]:
            radial_x = radial_x * inverse_x
            grad_z = torch.mm(grad_t, w).mul_(inverse_x)
            if linear is not None and factor is None:
                grad_z.addmm_(grad, linear)
            elif linear is not None:
                # h(x) = x |(x, rho) / rho|^(-3/4) grows less along x than across it.
                flow = torch.mm(grad, linear)
                grad_z.addcmul_(flow, factor)
                along = flow.mul_(unit_x).sum(1, keepdim=True).mul_(factor)
                radial_x.addcmul_(along, (inverse_far / inverse_x).square_(), value=_SHORTENING)
            grad_z.addcmul_(unit_x, radial_x, value=-1)
        if wanted[1]:
            grad_w, pull = torch.mm(grad_t.mT, unit_x), radial_w[:, None] * inverse_w
            if ctx.usual:
                grad_w.addcmul_(w, pull.mul_(inverse_w), value=-1)
            else:  # the square of an inverse length may overflow
                grad_w.addcmul_(w * inverse_w, pull, value=-1)
        if wanted[4]:
            grad_bias = grad.sum(0)
        if wanted[5]:
            grad_linear = torch.mm(grad.mT, read)
        if scale is None:
            grad_scale = None
        return grad_z, grad_w, grad_a, grad_scale, grad_bias, grad_linear, None, None, None, None


def _make_powers(t: Tensor, order: int, buffer: Tensor | None = None) -> Tensor:  # (n, m) -> (order + 1, n m)
    """The powers 0 to M of every number, in a buffer that an equal block left if there is one."""
    if buffer is None or buffer.shape[1] != t.numel():
        buffer = t.new_empty(order + 1, t.numel())
        buffer[0] = 1.0
    if order:
        buffer[1] = t.reshape(-1)
    # The powers up to k times the k-th are those up to 2 k.
    done = 1
    while done < order:
        count = min(done, order - done)
        torch.mul(buffer[1 : 1 + count], buffer[done], out=buffer[done + 1 : done + 1 + count])
        done += count
    return buffer


def _row_blocks(t: Tensor) -> list[slice]:
    """A few rows of the cosines at a time; one block of none where there are no rows."""
    n, m = t.shape
    rows = max(1, (_BLOCK if t.device.type == "cpu" else _BLOCK_GPU) // max(1, m))
    return [slice(start, min(start + rows, n)) for start in range(0, max(1, n), rows)]


def _inverse_norms(x: Tensor, lift: float, radius: float) -> tuple[Tensor, Tensor | None, bool]:
    """1 / |(x, lift)| of each row, 0 where that is too short for a direction; 1 / |(x, radius)|; are lengths usual?"""
    norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (n, 1)
    # Where values may be read without waiting for a device, rows of usual lengths need no more than this.
    if x.device.type == "cpu" and norm.numel():
        least, most = torch.aminmax(norm)
        if most.item() < _USUAL[1] and lift > 0:
            far = (norm.square_() + radius**2).rsqrt_() if radius else None
            return norm.add_(lift**2).rsqrt_(), far, True
        if most.item() < _USUAL[1] and least.item() > _USUAL[0]:
            return norm.reciprocal_(), None, True
    # Squares of very long or very short rows over- or underflow: a wider dtype, or rows scaled by their largest entry.
    if x.dtype == torch.float64:
        largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
        length = torch.where(largest > torch.finfo(x.dtype).tiny, largest, 1.0)
        norm = length * torch.linalg.vector_norm(x / length, dim=1, keepdim=True)
    else:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
    far = torch.hypot(norm, torch.full_like(norm, radius)).reciprocal().to(x.dtype) if radius else None
    if lift > 0:
        norm = torch.hypot(norm, torch.full_like(norm, lift))
    inverse: Tensor = torch.where(norm > 4 * torch.finfo(x.dtype).tiny, norm.reciprocal(), 0.0)
    return inverse.to(x.dtype), far, False
