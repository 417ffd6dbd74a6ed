"""A layer's step: the damped inverse of its second moment, the direction this gives, and how long the step is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import distributed
from ..linalg.cholesky import cholesky, shift_diagonal
from .layers import Layer

_STRIP = 16  # directions are taken so many at a time, or nearly: products of such widths are a third cheaper
_SPARE = 8  # random columns beside the directions of last time: they find what has grown since
TRUST = 0.1  # a step that moves hidden outputs by more of their size than this is shortened
_TRUST_READOUT = 3.0  # the same for logits, or a regression's outputs, which have to get where the targets are
_NEW_STEP = 0.05  # weight of a new step in the mean of a factor
_LEVEL = 0.1  # of the mean over rows, added to a row's product: no row moves more than 3 times as far as it would

# Keys of a layer's state; all are checkpointed.
OUTPUT = "output"  # EMA of the mean square of the outputs
PLACES = "places"  # rows of one sample
ROWS = "rows"  # EMA of the products of the direction's and the gradient's rows
BALANCE, BALANCED = "balance", "balanced"  # mean logarithm of the layer's factor, and of how many steps


class Direction(NamedTuple):
    r"""A layer's direction :math:`u = R (g - B F^\top) / \mu`, added to parameters without being formed first.

    Attributes:
        weight: g of the weight, ``(c, d - 1)``.
        bias: g of the bias, ``(c,)``.
        along: :math:`B = g F`, ``(c, q)``.
        inverse: F and :math:`\mu`.
        squares: Products of the rows of u and g, ``(c,)``: no less than the squared change of each output.
        scale: The diagonal of R, ``(c,)``; None for ones.
    """

    weight: Tensor
    bias: Tensor | None
    along: Tensor
    inverse: Inverse
    squares: Tensor
    scale: Tensor | None = None

    def level(self, state: dict[str, Any]) -> Direction:
        """The same with rows of like products: units with small gradients move nearly as far as the others.

        Args:
            state: The layer's; it keeps the mean of the rows' products over steps.
        """
        weight = max(1 / (state.get(BALANCED, 0) + 1), _NEW_STEP)
        mean = state.setdefault(ROWS, self.squares.clone()).lerp_(self.squares, weight)  # (c,)
        size = mean.mean()
        ratio = size / (mean + _LEVEL * size).clamp(min=torch.finfo(mean.dtype).tiny)
        scale = ratio.sqrt()
        return self._replace(along=self.along * scale[:, None], squares=self.squares * ratio, scale=scale)

    def add_to(self, targets: Sequence[Tensor], alpha: float, keep: float = 1.0) -> None:
        """Multiply weight, or weight and bias, by ``keep`` and add alpha times the direction, in place.

        That is two passes over the weight, and no tensor of its size in between.

        Args:
            targets: The weight, or the weight and the bias.
            alpha: Factor of the direction.
            keep: Factor of the targets.
        """
        factor, by = self.inverse.factor, alpha / self.inverse.outside
        for target, gradient in zip(targets, (self.weight, self.bias), strict=False):
            assert gradient is not None
            # Half precision, and weights in another order of memory, are summed in a copy.
            direct = target.dtype == factor.dtype and target.is_contiguous()
            total = (target if direct else target.to(factor.dtype).contiguous()).view(gradient.shape)
            if gradient.ndim == 2:
                scale = None if self.scale is None else self.scale[:, None]
                total.addmm_(self.along, factor[: gradient.shape[1]].mT, beta=keep, alpha=-by)
            else:
                scale = self.scale
                total.addmv_(self.along, factor[-1], beta=keep, alpha=-by)
            if scale is None:
                total.add_(gradient, alpha=by)
            else:
                total.addcmul_(gradient, scale, value=by)
            if not direct:
                target.copy_(total.view(target.shape))


class Inverse(NamedTuple):
    r"""The inverse :math:`P = (I - F F^\top) / \mu` of :math:`A + \lambda I`, nearly.

    By leading directions: :math:`F = V C^{1/2}` with eigenvectors V of A, :math:`\mu = \lambda + \rho` with
    :math:`\rho` the mean of all other eigenvalues, and :math:`C = 1 - \mu / (s + \lambda)` for the leading eigenvalues
    s. It is the exact inverse for the matrix :math:`\hat A` that has :math:`\rho` in place of those others, and
    :math:`\|P (A + \lambda I) - I\| \le` ``error`` :math:`= \|A - \hat A\|_F / \min(\mu, \min s + \lambda)`.

    By samples: :math:`F = G^\top L^{-\top}` with :math:`L L^\top = G G^\top + n \lambda I`, and
    :math:`\mu = \lambda`, exactly.
    """

    factor: Tensor  # F, (d, q)
    outside: float  # mu
    error: float = 0.0

    def dense(self) -> Tensor:  # (d, d)
        """P as a matrix."""
        eye = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        return (eye - self.factor @ self.factor.mT) / self.outside

    def precondition(self, weight: Tensor, bias: Tensor | None) -> Direction:  # (c, d - 1), (c,)
        """The gradient times P; weight and bias apart, because joining them costs as much as a product."""
        weight = weight.to(self.factor.dtype)
        if bias is None:
            along = weight @ self.factor  # (c, q)
            squares = weight.norm(dim=1).square_()  # (c,)
        else:
            bias = bias.to(self.factor.dtype)
            along = (weight @ self.factor[:-1]).addr_(bias, self.factor[-1])
            squares = weight.norm(dim=1).square_().addcmul_(bias, bias)
        # u g = (|g|^2 - |g F|^2) / mu, for each row
        squares = squares.sub_(along.norm(dim=1).square_()).clamp_(min=0).div_(self.outside)
        return Direction(weight, bias, along, self, squares)


def moment(rows: Tensor) -> Tensor:  # (n, d) -> (d, d)
    r"""Second moment :math:`G^\top G / n` over the rows of all ranks."""
    total = distributed.sum_over_ranks(rows.mT @ rows)
    n = distributed.sum_over_ranks(torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device))
    return total.div_(float(n))


def ridge(mean: float, damping: float) -> float:
    r""":math:`\lambda`: damping times the mean eigenvalue; of a layer that has only seen zeros, damping itself."""
    return damping * mean if mean > 0 else damping


def invert_by_directions(a: Tensor, lam: float, tolerance: float, start: Tensor | None, seed: int) -> Inverse:
    r"""The inverse by the directions with eigenvalues above ``tolerance`` :math:`\mu`; by all if those are over d / 2.

    Args:
        a: A, ``(d, d)``.
        lam: :math:`\lambda`.
        tolerance: Least eigenvalue of a direction of its own.
        start: ``(d, q)`` directions of last time.
        seed: Random seed.
    """
    d = len(a)
    generator = torch.Generator().manual_seed(seed)
    total = float(a.diagonal().sum())
    square = float(a.norm(dim=1).double().square().sum())
    iterations = 1
    spare = _SPARE
    block = a.new_zeros(d, 0)
    if start is not None:
        iterations, block = 0, start
    while True:
        # Subspace iteration from the directions of last time and some random ones: the moment drifts slowly, so one
        # product is enough where there was a last time. With half of all directions the whole spectrum is as cheap.
        block = torch.cat((block, torch.randn(d, spare, generator=generator).to(a)), 1)
        if 2 * block.shape[1] >= d:
            values, block = torch.linalg.eigh(a.double())
            values, block, q = values.flip(0).clamp(min=0).to(a), block.flip(1).to(a), d
            break
        basis = torch.linalg.qr(a @ block)[0]
        for _ in range(iterations):
            basis = torch.linalg.qr(a @ basis)[0]
        values, rotation = torch.linalg.eigh(basis.mT @ (a @ basis))
        values, block = values.flip(0).clamp(min=0), basis @ rotation.flip(1)

        # Keep the directions above the limit, in strips. Where all are above, there may be more: try as many again.
        others = (total - values.cumsum(0)).clamp(min=0) / (d - 1 - torch.arange(len(values), device=a.device))
        small = (values <= tolerance * (lam + others)).nonzero()
        if len(small):
            q = int(small[0, 0])
            if q >= _STRIP // 2:
                q = min(max(1, round(q / _STRIP)) * _STRIP, len(values))
            break
        iterations, spare = 1, max(_SPARE, block.shape[1])
    values, vectors = values[:q], block[:, :q]

    # All other eigenvalues count as their mean rho. The trace and the squares of A give rho, and how far that is off.
    rho = off = 0.0
    if q < d:
        rho = max(0.0, total - float(values.sum())) / (d - q)
        off = max(0.0, square - float(values.double().square().sum()) - (d - q) * rho * rho) ** 0.5
    outside = least = lam + rho
    if q:
        least = min(outside, float(values[-1]) + lam)
    return Inverse(vectors * (1 - outside / (values + lam)).clamp(min=0).sqrt(), outside, off / least)


def invert_by_samples(rows: Tensor, damping: float, *, where: str) -> Inverse:  # (n, d)
    """The inverse for the moment of these rows, of all ranks, in float64, because the difference cancels."""
    g = distributed.gather_rows(rows.double())
    n, d = g.shape
    lam = ridge(float(g.square().sum()) / (n * min(n, d)), damping)
    lower = cholesky(shift_diagonal(g @ g.mT, n * lam), where=where).factor
    return Inverse(torch.linalg.solve_triangular(lower, g, upper=False).mT.contiguous(), lam)


class Move(NamedTuple):
    """A layer, its state, its direction and its rate."""

    layer: Layer
    state: dict[str, Any]
    direction: Direction
    lr: float


def measure_outputs(state: dict[str, Any], layer: Layer, inputs: Sequence[Tensor], rows: Tensor, weight: float) -> None:
    """Keep the mean square of a layer's outputs, averaged with this weight of the latest, over all ranks."""
    z = layer.apply(rows)
    total = z.square().sum(dtype=torch.float64)
    total, count = distributed.sum_over_ranks(torch.stack((total, total.new_tensor(float(z.numel()))))).tolist()
    latest = total / max(count, 1.0)
    mean = state.get(OUTPUT, latest)
    state[OUTPUT] = mean + weight * (latest - mean)
    state[PLACES] = max(1, len(rows) // max(1, sum(len(x) for x in inputs)))


def choose_lengths(moves: Sequence[Move], readout: str | None, balance: float) -> list[float]:
    """What each direction is multiplied by, from one look at the products of all layers.

    The outputs of every layer but the read-out move, relative to their size, ``balance`` times as far as the logits,
    in the mean over steps, so that every step stays linear in the gradient. No step moves hidden outputs by more than
    a tenth of their size, or logits by more than three times theirs.

    Args:
        moves: The directions. A direction times the gradient is no less than the squared change of the outputs.
        readout: Name of the layer that makes the logits. If it is not among the layers, the last one takes its place.
        balance: How far other layers' outputs move where the logits move by 1.
    """
    # The mean squared change of each layer's outputs for a step at rate 1, and the outputs' own mean square. One call
    # brings all numbers from the device.
    squares = torch.stack([move.direction.squares.double().mean() for move in moves]).tolist()
    sizes = [float(move.state[OUTPUT]) for move in moves]
    # The reference: the read-out, whose logits count as of size 1 at least. A layer in its place has a gradient that is
    # a sum over places.
    names = [move.layer.name for move in moves]
    if readout in names:
        head, reference = names.index(readout), 1.0
        sizes[head] = max(sizes[head], 1.0)
    else:
        head, reference = len(moves) - 1, 1 / moves[-1].state[PLACES]

    lengths = []
    for i, (move, square, size) in enumerate(zip(moves, squares, sizes, strict=True)):
        length, trust = reference, TRUST
        if i != head:
            # The factor that makes the layer's relative change that of the logits, its logarithm averaged over steps.
            state = move.state
            if min(square, size, squares[head]) > 0:
                factor = math.log(reference) + 0.5 * math.log(squares[head] / sizes[head] * size / square)
                count = state[BALANCED] = state.get(BALANCED, 0) + 1
                mean = state.get(BALANCE, factor)
                state[BALANCE] = mean + max(1 / count, _NEW_STEP) * (factor - mean)
            length = balance * math.exp(state.get(BALANCE, 0.0))
        elif names[i] == readout:
            trust = _TRUST_READOUT
        # Shorten a step that would move the outputs beyond the bound.
        change, limit = move.lr * length * square**0.5, trust * size**0.5
        if change > limit > 0:
            length = length * limit / change
        lengths.append(length)
    return lengths
