r"""Values of a radial series between embeddings and weights, times a scale for each weight, in one pass.

Plain autograd keeps a tensor of n x m numbers for every power of the cosines, and copies of all rows on the sphere.
Here only the cosines are kept; the backward pass makes their powers again, a few rows at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.radial_series import gram_of_series
from ..linalg.torch_internals import in_batched_backward, records_graph, transformed

_BLOCK = 2**15  # cosines worked on at a time: on a CPU their powers stay in the cache
_BLOCK_GPU = 2**21
_USUAL = (1e-15, 1e15)  # norms between these have float32 squares that neither over- nor underflow


def scaled_series(x: Tensor, y: Tensor, a: Tensor, scale: Tensor | None) -> Tensor:  # (n, d), (m, d) -> (n, m)
    r"""Series in the cosines between rows: :math:`s_j \sum_k a_k t_{ij}^k`, with :math:`t_{ij} = \cos(x_i, y_j)`.

    Args:
        x: Rows; their lengths do not matter. A row of zeros has the value :math:`a_0` with every row.
        y: Rows likewise, of the same dtype.
        a: Coefficients of the powers 0, 1, ..., M.
        scale: s, ``(m,)``; None for 1.
    """
    # Compilers fuse the plain form themselves; torch.func and forward mode need operations that they can see through.
    if records_graph() or transformed() or x.is_meta:
        return _plain(x, y, a, scale)
    value: Tensor = _ScaledSeries.apply(x, y, a, scale)  # type: ignore[no-untyped-call]
    return value


def _plain(x: Tensor, y: Tensor, a: Tensor, scale: Tensor | None) -> Tensor:
    value = gram_of_series(x, y, a, None)
    return value if scale is None else value * scale


class _ScaledSeries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, a: Tensor, scale: Tensor | None) -> Tensor:
        inverse_x, inverse_y = _inverse_norms(x), _inverse_norms(y)
        t = torch.mm(x * inverse_x, (y * inverse_y).mT).clamp_(-1, 1)
        ctx.save_for_backward(x, y, a, scale, t, inverse_x, inverse_y)
        value = torch.empty_like(t)
        coefficients = a.unbind()
        for rows in _row_blocks(t):
            part, out = t[rows], value[rows]
            # Horner: (a_M t + a_{M-1}) t + ...
            if len(coefficients) == 1:
                out.copy_(a.expand_as(out))
            else:
                torch.addcmul(coefficients[-2], part, coefficients[-1], out=out)
            for coefficient in reversed(coefficients[:-2]):
                torch.addcmul(coefficient, out, part, out=out)
            if scale is not None:
                out.mul_(scale)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y, a, scale, t, inverse_x, inverse_y = ctx.saved_tensors  # read once: checkpointing frees them afterwards
        inputs, wanted = (x, y, a, scale), ctx.needs_input_grad
        # A second derivative, or many gradients at once: differentiate the plain form.
        if torch.is_grad_enabled() or in_batched_backward(grads[0]):
            twice = torch.is_grad_enabled()
            with torch.enable_grad():
                value = _plain(*inputs)
            asked = [each for each, want in zip(inputs, wanted, strict=True) if want]
            slopes = iter(torch.autograd.grad(value, asked, grads[0], create_graph=twice, materialize_grads=True))
            return tuple(next(slopes) if want else None for want in wanted)

        grad = grads[0].contiguous()
        order = len(a) - 1
        # The derivative in t has the coefficients k a_k of t^(k-1); one product gives it and the series itself.
        derivative = torch.zeros_like(a)
        derivative[:order] = a[1:] * torch.arange(1, order + 1, dtype=a.dtype, device=a.device)
        both = torch.stack((derivative, a))
        grad_t, radial_x = torch.empty_like(t), t.new_zeros(len(t), 1)
        radial_y, grad_a = t.new_zeros(t.shape[1]), torch.zeros_like(a)
        grad_scale = None if scale is None else torch.zeros_like(scale)
        powers = t.new_empty(0)
        for rows in _row_blocks(t):
            part, flow = t[rows], grad[rows]
            if powers.shape[1:] != (part.numel(),):
                powers = t.new_empty(order + 1, part.numel())
                powers[0] = 1.0
            # Powers of this block's cosines: those up to k times the k-th are those up to 2 k.
            if order:
                powers[1] = part.reshape(-1)
            done = 1
            while done < order:
                count = min(done, order - done)
                torch.mul(powers[1 : 1 + count], powers[done], out=powers[done + 1 : done + 1 + count])
                done += count
            slope, value = torch.mm(both, powers).view(2, *part.shape)
            if scale is not None and grad_scale is not None:
                grad_scale += value.mul_(flow).sum(0)
                flow = flow * scale
            grad_a += torch.mv(powers, flow.view(-1))
            # What flows into the cosines, and how much of it lies along x and along y, which their lengths undo.
            torch.mul(slope, flow, out=grad_t[rows])
            radial = slope.mul_(flow).mul_(part)
            radial_x[rows] = radial.sum(1, keepdim=True)
            radial_y += radial.sum(0)
        grad_x = grad_y = None
        unit_x, unit_y = x * inverse_x, y * inverse_y
        if wanted[0]:
            grad_x = torch.mm(grad_t, unit_y).addcmul_(unit_x, radial_x, value=-1).mul_(inverse_x)
        if wanted[1]:
            grad_y = torch.mm(grad_t.mT, unit_x).addcmul_(unit_y, radial_y[:, None], value=-1).mul_(inverse_y)
        return grad_x, grad_y, grad_a, grad_scale


def _row_blocks(t: Tensor) -> list[slice]:
    """A few rows of the cosines at a time."""
    n, m = t.shape
    rows = max(1, (_BLOCK if t.device.type == "cpu" else _BLOCK_GPU) // max(1, m))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def _inverse_norms(x: Tensor) -> Tensor:  # (n, d) -> (n, 1)
    """1 / |x| for each row, 0 for rows too short to have a direction."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    # Where values may be read without waiting for a device, rows of usual lengths need no more than this.
    if x.device.type == "cpu" and norm.numel():
        least, most = torch.aminmax(norm)
        if least.item() > _USUAL[0] and most.item() < _USUAL[1]:
            return norm.reciprocal_()
    # Squares of very long or very short rows over- or underflow: a wider dtype, or rows scaled by their largest entry.
    if x.dtype == torch.float64:
        largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
        length = torch.where(largest > torch.finfo(x.dtype).tiny, largest, 1.0)
        norm = length * torch.linalg.vector_norm(x / length, dim=1, keepdim=True)
    else:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
    inverse: Tensor = torch.where(norm > 4 * torch.finfo(x.dtype).tiny, norm.reciprocal(), 0.0)
    return inverse.to(x.dtype)
