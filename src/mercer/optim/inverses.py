"""A layer's step: the damped inverse of its second moment, the direction this gives, and how long the step is."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import distributed
from ..linalg.cholesky import cholesky, shift_diagonal
from ..linalg.torch_internals import add_products_in_place, multiply_in_place
from .layers import Layer

_STRIP = 16  # directions are taken so many at a time, or nearly: products of such widths are a third cheaper
_SPARE = 8  # random columns beside the directions of last time: they find what has grown since
TRUST = 0.1  # a step that moves hidden outputs by more of their size than this is shortened
_TRUST_READOUT = 3.0  # the same for logits, or a regression's outputs, which have to get where the targets are
NEW_STEP = 0.05  # weight of a new step in the mean of a factor
_NEW_CHANGE = 0.02  # the same in the mean of what a direction does to the logits, which batches disturb more
_ZERO_SUM = 1e-3  # of its norm, that the sum of a softmax's gradient is by rounding
_MOST_FALLEN = 10.0  # that steps are lengthened by as gradients fall
_LARGE_BATCH, _MOST_BATCHES = 128, 16.0  # rows above which steps grow, by the root of up to so many times as many

# Keys of a layer's state; all are checkpointed.
BATCH = "batch"  # the most rows that came at once
PLACES = "places"  # rows of one sample
PARTS = "parts"  # a dictionary for each part of the layer, by its name, with the keys
OUTPUT = "output"  # EMA of the mean square of the outputs
BALANCE, BALANCED = "balance", "balanced"  # mean logarithm of the part's factor, and of how many steps
# Of the read-out: whether its gradients have summed to 0 so far; EMA of the squared change of the logits by a
# direction, its largest value, and of how many steps.
SOFTMAX, CHANGE, PEAK, CHANGES = "softmax", "change", "peak", "changes"


class Inverse(NamedTuple):
    r"""The inverse :math:`P = (I - F F^\top) / \mu` of :math:`A + \lambda I`, nearly.

    By leading directions: :math:`F = V C^{1/2}` with eigenvectors V of A, :math:`\mu = \lambda + \rho` with
    :math:`\rho` the mean of all other eigenvalues, and :math:`C = 1 - \mu / (s + \lambda)` for the leading eigenvalues
    s. It is the exact inverse for the matrix :math:`\hat A` that has :math:`\rho` in place of those others, and
    :math:`\|P (A + \lambda I) - I\| \le` ``error`` :math:`= \|A - \hat A\|_F / \min(\mu, \min s + \lambda)`.

    By samples: :math:`F = G^\top L^{-\top}` with :math:`L L^\top = G G^\top + n \lambda I`, and
    :math:`\mu = \lambda`, exactly.
    """

    factor: Tensor  # F, (d, q), with each direction's numbers side by side in memory
    outside: float  # mu
    error: float = 0.0

    def dense(self) -> Tensor:  # (d, d)
        """P as a matrix."""
        eye = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        return (eye - self.factor @ self.factor.mT) / self.outside


class Directions:
    r"""The directions :math:`u = (g - B F^\top) / \mu` of some layers, with :math:`B = g F`; u is never formed.

    Small calls are most of a step's time. So all that is a number for each row of a gradient is one tensor for the rows
    of all layers, and the means over the rows of each part are one product.

    Args:
        layers: Layers with a gradient.
        inverses: F and :math:`\mu` of each.

    Attributes:
        products: :math:`\mu\, u \cdot g` for each row, ``(rows,)``; over :math:`\mu` no less than the squared change of
            that output.
        counts: How many rows each layer has.
        average: The matrix that averages the rows of each part, ``(parts, rows)``.
        index: The part of each row, ``(rows,)``.
    """

    def __init__(self, layers: Sequence[Layer], inverses: Sequence[Inverse]) -> None:
        self._terms, self.counts = [], [layer.outputs for layer in layers]
        norms, sums, shifts = [], [], []
        for layer, (factor, _, _) in zip(layers, inverses, strict=True):
            weight, bias = layer.gradients()
            if weight.dtype != factor.dtype:
                weight = weight.to(factor.dtype)
                if bias is not None:
                    bias = bias.to(factor.dtype)
            # Weight and bias stay apart, because joining them costs as much as a product. F^T stands on the left: with
            # few directions that is up to five times as fast as g F.
            if bias is None:
                last, rows = weight, factor.mT  # (q, d)
                along = rows @ weight.mT  # B^T, (q, c)
                shifts.append(weight.new_zeros(len(weight)))
            else:
                last, rows = factor[-1], factor[:-1].mT
                along = (rows @ weight.mT).addr_(last, bias)
                shifts.append(bias)
            norms.append(torch.linalg.vector_norm(weight, dim=1))
            sums.append(along.square().sum(0))
            self._terms.append((weight, shifts[-1], along, rows, last))

        # mu u g = |g|^2 - |g F|^2, for each row
        shift = torch.cat(shifts)
        self.products = torch.cat(norms).square_().addcmul_(shift, shift).sub_(torch.cat(sums)).clamp_(min=0)
        sizes = tuple([layer.outputs // len(layer.parts) for layer in layers for _ in layer.parts])
        self.average, self.index = _average_parts(sizes, self.products.dtype, self.products.device)

    def mix_into(self, means: Sequence[Sequence[Tensor]], keeps: Sequence[float], rates: Tensor) -> None:
        """``mean = keep mean + rate (g - B F^T)`` in place, with a rate for each row; to be called once.

        That is two passes over the weight, and no tensor of its size in between.

        Args:
            means: Tensors like a layer's weight, or weight and bias; contiguous, of the factor's dtype.
            keeps: A factor for each layer.
            rates: ``(rows,)``.
        """
        targets, gradients, factors = [], [], []
        parts, columns = rates.split_with_sizes(self.counts), rates[:, None].split_with_sizes(self.counts)
        multiply_in_place([terms[2] for terms in self._terms], parts)
        for i, (weight, bias, along, rows, last) in enumerate(self._terms):
            mean, keep, along = means[i][0].view(weight.shape), keeps[i], along.mT
            targets.append(mean.addmm_(along, rows, beta=keep, alpha=-1))
            gradients.append(weight)
            factors.append(columns[i])
            if len(means[i]) > 1:
                targets.append(means[i][1].addmv_(along, last, beta=keep, alpha=-1))
                gradients.append(bias)
                factors.append(parts[i])
        add_products_in_place(targets, gradients, factors)


@functools.lru_cache(maxsize=16)  # most models have one
def _average_parts(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The matrix that averages the rows of each part, and the part of each row, for parts of so many rows."""
    parts = torch.arange(len(sizes), device=device)
    index = parts.repeat_interleave(torch.tensor(sizes, device=device))
    belongs = (index == parts[:, None]).to(dtype)  # (parts, rows)
    return belongs / belongs.sum(1, keepdim=True), index


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
    block = a.new_zeros(0, d)  # each direction a row: narrow products are several times as fast from the left
    if start is not None:
        iterations, block = 0, start.mT
    while True:
        # Subspace iteration from the directions of last time and some random ones: the moment drifts slowly, so one
        # product is enough where there was a last time. With half of all directions the whole spectrum is as cheap.
        block = torch.cat((block, torch.randn(d, spare, generator=generator).to(a).mT))
        if 2 * len(block) >= d:
            values, vectors = torch.linalg.eigh(a.double())
            values, block, q = values.flip(0).clamp(min=0).to(a), vectors.mT.flip(0).to(a), d
            break
        basis = torch.linalg.qr((block @ a).mT)[0].mT
        for _ in range(iterations):
            basis = torch.linalg.qr((basis @ a).mT)[0].mT
        values, rotation = torch.linalg.eigh(basis @ a @ basis.mT)
        values, block = values.flip(0).clamp(min=0), rotation.mT.flip(0) @ basis

        # Keep the directions above the limit, in strips. Where all are above, there may be more: try as many again.
        mean_of_others = (total - values.cumsum(0)).clamp(min=0) / (d - 1 - torch.arange(len(values), device=a.device))
        small = (values <= tolerance * (lam + mean_of_others)).nonzero()
        if len(small):
            q = int(small[0, 0])
            if q >= _STRIP // 2:
                q = min(max(1, round(q / _STRIP)) * _STRIP, len(values))
            break
        iterations, spare = 1, max(_SPARE, len(block))
    values, vectors = values[:q], block[:q]

    # All other eigenvalues count as their mean rho. The trace and the squares of A give rho, and how far that is off.
    rho = off = 0.0
    if q < d:
        rho = max(0.0, total - float(values.sum())) / (d - q)
        off = max(0.0, square - float(values.double().square().sum()) - (d - q) * rho * rho) ** 0.5
    mu = smallest = lam + rho
    if q:
        smallest = min(mu, float(values[-1]) + lam)
    scales = (1 - mu / (values + lam)).clamp(min=0).sqrt()
    return Inverse((vectors * scales[:, None]).contiguous().mT, mu, off / smallest)


def invert_by_samples(rows: Tensor, damping: float, *, where: str) -> Inverse:  # (n, d)
    """The inverse for the moment of these rows, of all ranks, in float64, because the difference cancels."""
    g = distributed.gather_rows(rows.double())
    n, d = g.shape
    lam = damping * (float(g.square().sum()) / (n * min(n, d)) or 1.0)
    lower = cholesky(shift_diagonal(g @ g.mT, n * lam), where=where).factor
    return Inverse(torch.linalg.solve_triangular(lower, g, upper=False).contiguous().mT, lam)


def measure_outputs(state: dict[str, Any], layer: Layer, inputs: Sequence[Tensor], rows: Tensor, weight: float) -> None:
    """Keep the mean square of the outputs of each part, averaged with this weight of the latest, over all ranks."""
    z = layer.apply(rows)  # (n, c)
    sums = z.square_().sum(0).double().view(len(layer.parts), -1).sum(1)
    count = sums.new_tensor([float(z.numel()) / len(layer.parts)])
    *totals, total_count = distributed.sum_over_ranks(torch.cat((sums, count))).tolist()
    parts = state.setdefault(PARTS, {})
    for name, total in zip(layer.parts, totals, strict=True):
        part, latest = parts.setdefault(name, {}), total / max(total_count, 1.0)
        mean = part.get(OUTPUT, latest)
        part[OUTPUT] = mean + weight * (latest - mean)
    state[PLACES] = max(1, len(rows) // max(1, sum(len(x) for x in inputs)))


def lengthen_steps(state: dict[str, Any], square: float, gradient: Tensor) -> float:
    r"""What every step on the loss of a softmax is multiplied by, from the read-out's direction: at least 1.

    Both the gradient :math:`p - y` at the logits and their curvature :math:`p (1 - p)` fall while the network becomes
    sure, so a step at a fixed rate becomes a smaller and smaller part of Newton's. It is lengthened by the root of how
    far the change of the logits by a direction has fallen from its largest mean: Adam's steps grow by all of it, and
    end noisier. It also grows by the root of how many times the batch is larger than 128 rows, whose mean has less
    noise. Other losses keep their curvature, and their steps are not lengthened. A softmax is known by its gradients:
    the logits' sum does not change its loss, so each row of p - y sums to 0, and so does the gradient of the read-out
    over its outputs.

    Args:
        state: The read-out's state.
        square: Mean squared change of the logits by a step at rate 1.
        gradient: Of the read-out's weight, ``(c, d)``.
    """
    softmax = state.get(SOFTMAX, len(gradient) > 1)
    state[SOFTMAX] = softmax and float(gradient.sum(0).norm()) <= _ZERO_SUM * float(gradient.norm())
    if not state[SOFTMAX]:
        return 1.0
    count = state.get(CHANGES, 0) + 1
    mean: float = state.get(CHANGE, square)
    mean += max(1 / count, _NEW_CHANGE) * (square - mean)
    peak: float = max(state.get(PEAK, 0.0), mean)
    state.update({CHANGES: count, CHANGE: mean, PEAK: peak})
    fallen = 1.0
    if mean > 0:
        fallen = math.sqrt(math.sqrt(peak / mean))
    more_rows = max(state.get(BATCH, 0) / _LARGE_BATCH, 1.0)  # tokens count each
    return min(fallen, _MOST_FALLEN) * math.sqrt(min(more_rows, _MOST_BATCHES))


def choose_lengths(
    layers: Sequence[Layer],
    states: Sequence[dict[str, Any]],
    squares: Sequence[float],
    lrs: Sequence[float],
    readout: str | None,
    balance: float,
    *,
    lengthen: bool = False,
) -> list[float]:
    """What the direction of each part is multiplied by.

    The outputs of every layer but the read-out move, relative to their size, ``balance`` times as far as the logits,
    in the mean over steps, so that every step stays linear in the gradient. No step moves hidden outputs by more than
    a tenth of their size, or logits by more than three times theirs.

    Args:
        layers: The layers.
        states: Their states.
        squares: For each part of each layer the mean squared change of its outputs by a step at rate 1.
        lrs: The layers' rates.
        readout: Name of the layer that makes the logits. If it is not among the layers, the last part takes its place.
        balance: How far other layers' outputs move where the logits move by 1.
        lengthen: Whether steps on the loss of a softmax are lengthened (:func:`lengthen_steps`).
    """
    parts = [(i, state[PARTS][name]) for i, state in enumerate(states) for name in layers[i].parts]
    # The reference: the read-out, whose logits count as of size 1 at least. A layer in its place has a gradient that is
    # a sum over places.
    head, reference, trust_head, floor, longer = len(parts) - 1, 1 / states[-1][PLACES], TRUST, 0.0, 1.0
    for j, (i, _) in enumerate(parts):
        if layers[i].name == readout:
            head, reference, trust_head, floor = j, 1.0, _TRUST_READOUT, 1.0
            gradient = layers[i].weight.grad
            if lengthen and gradient is not None:
                longer = lengthen_steps(states[i], squares[j], gradient)
    size_of_logits = max(parts[head][1][OUTPUT], floor)
    change_of_logits = 0.0
    if size_of_logits > 0:
        change_of_logits = squares[head] / size_of_logits

    lengths = []
    for j, (i, part) in enumerate(parts):
        square, size = squares[j], part[OUTPUT]
        if j == head:
            length, limit = reference, trust_head * size_of_logits**0.5
        else:
            # The factor that makes the part's relative change that of the logits, its logarithm averaged over steps.
            if square > 0 and size > 0 and change_of_logits > 0:
                factor = math.log(reference) + 0.5 * math.log(change_of_logits * size / square)
                count = part[BALANCED] = part.get(BALANCED, 0) + 1
                mean = part.get(BALANCE, factor)
                part[BALANCE] = mean + max(1 / count, NEW_STEP) * (factor - mean)
            length, limit = balance * math.exp(part.get(BALANCE, 0.0)), TRUST * size**0.5
        length *= longer
        # Shorten a step that would move the outputs beyond the bound.
        change = lrs[i] * length * square**0.5
        if change > limit > 0:
            length *= limit / change
        lengths.append(length)
    return lengths
