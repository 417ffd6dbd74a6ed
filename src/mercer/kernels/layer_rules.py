r"""Rules of the layers of an infinitely wide network: how each changes covariances.

A state of two rows x, y holds, for every pair of positions (pixels, tokens) that is needed, the correlation
:math:`\rho = \Sigma(x, y) / r_x r_y` and the relative tangent covariance :math:`\theta = \Theta(x, y) / r_x r_y`, where
:math:`\Sigma = E[f(x) f(y)]` over weights (a mean over channels) and :math:`r_x = \sqrt{\Sigma(x, x)}`. The numbers of
a single row, r first of all, are a :class:`RowState`.

Positions are the last axes: ``(n, m, *P)`` where only equal positions matter, ``(n, m, *P, *P)`` where a later pooling
asks for all pairs. Of rows with themselves (``zipped``) the first axes are ``(n,)`` in place of ``(n, m)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from .. import checks
from ..linalg.distances import norms_and_units, safe_sqrt
from ..linalg.torch_internals import may_be_differentiated, records_graph
from .gaussian_moments import Activation, hypotenuse, inverse_of, ratio_of


class PairState(NamedTuple):
    """Correlations and relative tangent covariances of pairs; theta is None without a tangent kernel."""

    rho: Tensor
    theta: Tensor | None

    def map(self, f: Callable[[Tensor], Tensor]) -> PairState:
        """Apply ``f`` to both."""
        if self.theta is None:
            return PairState(f(self.rho), None)
        return PairState(f(self.rho), f(self.theta))


class RowState(NamedTuple):
    """The numbers of n single rows at one node of the network."""

    r: Tensor  # (n, *P): deviations; at a node of the input r and mean are the tensor itself
    mean: Tensor  # (n, *P): mean over channels, which a layer norm subtracts
    unit: Tensor | None = None  # (n, *P, d) unit vectors of the input's channels, or its tokens (n, *P)
    state: PairState | None = None  # of the rows with themselves
    factors: tuple[Tensor, ...] = ()  # (n, *P) or (n, *P, k): read by the layer's `advance_pairs`, computed once

    def part(self, rows: slice) -> RowState:
        """The row states of a slice of the rows, without the states of the rows with themselves."""
        unit = self.unit
        if unit is not None:
            unit = unit[rows]
        return RowState(self.r[rows], self.mean[rows], unit, factors=tuple(t[rows] for t in self.factors))


class Side(NamedTuple):
    """The row states of the rows x, or of the rows y, before and after a layer."""

    before: Sequence[RowState]  # one for each input of the layer
    after: RowState


class Layout(NamedTuple):
    """How the values of single rows are aligned with those of pairs."""

    full: bool  # all pairs of positions
    zipped: bool  # rows with themselves

    @property
    def row_axes(self) -> int:
        """Axes before the positions: ``(n,)`` or ``(n, m)``."""
        return 2 - self.zipped

    @property
    def copies(self) -> int:
        """How often the positions occur: ``*P`` or ``*P, *P``."""
        return 1 + self.full

    def align(self, a: Tensor, b: Tensor, trailing: int = 0) -> tuple[Tensor, Tensor]:  # (n, *P), (m, *P)
        """Views of a and b that broadcast to the pairs; the last ``trailing`` axes stay the last ones."""
        end = a.ndim - trailing
        # An axis of 1 for the rows of the other side, and for its positions.
        row = (1,) * (self.row_axes - 1)
        positions = (1,) * ((end - 1) * (self.copies - 1))
        aligned_a = a.reshape(a.shape[0], *row, *a.shape[1:end], *positions, *a.shape[end:])
        aligned_b = b.reshape(*row, b.shape[0], *positions, *b.shape[1:])
        return aligned_a, aligned_b

    def align_all(self, x: RowState, y: RowState) -> list[tuple[Tensor, Tensor]]:
        """The factors of both sides, each as views that broadcast to the pairs."""
        return [self.align(a, b, a.ndim - x.r.ndim) for a, b in zip(x.factors, y.factors, strict=True)]


class Rule:
    """One layer: how it changes the states of single rows, and then of pairs of rows."""

    ALL_PAIRS: ClassVar[bool] = False  # asks for all pairs of positions of its input

    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        """Deviations and means after the layer, and the factors that `advance_pairs` reads."""
        raise NotImplementedError

    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        """The state of the pairs after the layer."""
        raise NotImplementedError


@dataclass(frozen=True)
class Place:
    """Stands in the arguments of a `RawCall` for one of its inputs; of number -1, for how many rows there are."""

    number: int


@dataclass(frozen=True)
class RawCall(Rule):
    """A function of the input without random weights, run as the model runs it.

    Args:
        function: The function of torch.
        arguments: Positional arguments, with a `Place` for each input.
        named: Keyword arguments, with places in the same way.
    """

    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        x = before[0].r

        # Put this call's tensors, and its number of rows, in the places of the recorded arguments.
        def fill(value: Any) -> Any:
            if isinstance(value, Place) and value.number < 0:
                return x.shape[0]
            if isinstance(value, Place):
                return before[value.number].r
            if isinstance(value, Tensor):  # a constant of the model: the data's dtype wins
                return checks.cast_floats(value.to(x.device), x.dtype)
            if type(value) in (tuple, list):
                return type(value)(map(fill, value))
            return value

        output = self.function(*fill(self.arguments), **{name: fill(value) for name, value in self.named.items()})
        return RowState(output, output)


@dataclass(frozen=True)
class Enter(Rule):
    """Rows of numbers become a state: the mean product over the channels.

    Args:
        channel: Axis of the channels, of ``(n, ...)``.
    """

    channel: int = -1

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        x = before[0].r.movedim(self.channel, -1)
        norm, unit = norms_and_units(x)
        return RowState(norm / math.sqrt(x.shape[-1]), x.mean(-1), unit)

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        ux, uy = x.after.unit, y.after.unit
        assert ux is not None and uy is not None
        if ux.ndim == 2 and layout.zipped:
            return PairState((ux * uy).sum(-1), None)
        if ux.ndim == 2:
            return PairState(ux @ uy.mT, None)
        # Products of the channels at pairs of positions. Here all positions are one axis p.
        positions = ux.shape[1:-1]
        pattern = {
            (True, True): "npc,nqc->npq",
            (True, False): "npc,mqc->nmpq",
            (False, True): "npc,npc->np",
            (False, False): "npc,mpc->nmp",
        }[layout.full, layout.zipped]
        products = torch.einsum(pattern, ux.flatten(1, -2), uy.flatten(1, -2))
        rows = products.shape[: layout.row_axes]
        return PairState(products.reshape(*rows, *positions * layout.copies).contiguous(), None)


@dataclass(frozen=True)
class Embed(Rule):
    r"""An embedding: equal tokens have covariance ``variance``, different ones 0; its rows are trained.

    Args:
        variance: Of the entries of a token's vector.
        padding: The token whose vector is 0 and stays so.
        trained: Whether the vectors are.
    """

    variance: float = 1.0
    padding: int | None = None
    trained: bool = True

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        tokens = before[0].r
        deviation = torch.full(tokens.shape, math.sqrt(self.variance), device=tokens.device)
        if self.padding is not None:
            deviation = deviation * (tokens != self.padding)
        return RowState(deviation, torch.zeros_like(deviation), tokens)

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        tx, ty = x.after.unit, y.after.unit
        assert tx is not None and ty is not None
        aligned_x, aligned_y = layout.align(tx, ty)
        rho = (aligned_x == aligned_y).to(x.after.r.dtype)
        if not self.trained:
            return PairState(rho, None)
        return PairState(rho, rho)


@dataclass(frozen=True)
class Patch:
    """The mean over a window of a convolution, which moves over both positions of a pair together.

    Args:
        size: Of the window, for each axis of positions; the others in the same way.
        stride: Steps of the window.
        padding: Zeros before and after.
        dilation: Distance of its taps.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def __call__(self, s: Tensor, *, full: bool) -> Tensor:
        """The mean of covariances; positions are the last axes, twice where ``full``."""
        # The mean over a box of shared offsets is one axis after the other.
        count = len(self.size)
        for axis in range(count):
            k, step, gap, pad = self.size[axis], self.stride[axis], self.dilation[axis], self.padding[axis]
            dim = axis - count
            # Equal positions: a product with a banded matrix is faster than torch's pooling.
            if not full:
                starts = range(-pad[0], s.shape[dim] + pad[1] - gap * (k - 1), step)
                s = _apply(s, dim, tuple(tuple((start + gap * tap, 1 / k) for tap in range(k)) for start in starts))
                continue

            # All pairs: each tap moves both positions by the same offset, a step along the diagonal of the two axes.
            dims = [dim, dim - count]
            s = _pad_zeros(s, dims, pad)
            length = (s.shape[dim] - gap * (k - 1) - 1) // step + 1
            taps = []
            for offset in range(0, k * gap, gap):
                columns = _take_every(s, dims[0], offset, length, step)
                taps.append(_take_every(columns, dims[1], offset, length, step))
            s = functools.reduce(torch.add, taps) / k
        return s


@dataclass(frozen=True)
class Affine(Rule):
    r"""A layer of fresh weights, :math:`\Sigma' = \sigma_w^2 P[\Sigma] + \sigma_b^2`.

    :math:`\Theta' = \Sigma' + \sigma_w^2 P[\Theta]`, where weights and biases are trained; those that are not leave out
    their part of :math:`\Sigma'`. P is the identity for a linear layer on channels, the patch mean for a convolution,
    the mean over all positions for a linear layer on flattened positions.

    Args:
        weight_var: :math:`\sigma_w^2`, the weights' variance times fan-in.
        bias_var: :math:`\sigma_b^2`.
        patch: The window of a convolution.
        flattened: A linear layer on channels and positions.
        trained: Whether the weights are, whether the biases are.
    """

    weight_var: float
    bias_var: float = 0.0
    patch: Patch | None = None
    flattened: bool = False
    trained: tuple[bool, bool] = (True, True)

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        # The root of sigma_w^2 P[r^2] + sigma_b^2.
        sigma, bias, r = math.sqrt(self.weight_var), math.sqrt(self.bias_var), before[0].r
        scaled = sigma * r
        mixes = self._mixes(r)
        if self.patch is not None:
            r = safe_sqrt(self.patch(r.square(), full=False))
        elif mixes:
            r = safe_sqrt(r.square().flatten(1).mean(1))
        r = r * sigma
        if self.bias_var:
            r = hypotenuse(r, bias)

        # A layer that mixes positions works on covariances: it scales up before and down after. Others multiply the
        # correlations by one gain, which is 1 without a bias.
        factors: tuple[Tensor, ...] = ()
        if mixes:
            factors = (inverse_of(r),)
        elif self.bias_var:
            factors = (ratio_of(scaled, r),)
        if self.bias_var:
            factors = (*factors, bias * inverse_of(r))
        return RowState(r, r.new_zeros(()).expand_as(r), factors=factors)

    def _mixes(self, r: Tensor) -> bool:
        """Whether it sums over positions of deviations r ``(n, *P)``."""
        return self.patch is not None or (self.flattened and r.ndim > 1)

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        # The weights' part. A layer that mixes positions works on covariances, and theta is then ready; others multiply
        # correlations by a gain, which theta still wants.
        (rho, theta), factors = states[0], layout.align_all(x.after, y.after)
        gain: Tensor | None = None
        by_weights = rho
        if self._mixes(x.before[0].r):
            sigma, after = math.sqrt(self.weight_var), factors[0]
            before = layout.align(sigma * x.before[0].r, sigma * y.before[0].r)
            by_weights = self._mix_positions(rho, before, after, layout)
            if theta is rho:  # behind the first layer
                theta = by_weights
            elif theta is not None:
                theta = self._mix_positions(theta, before, after, layout)
        elif self.bias_var:
            gain = factors[0][0] * factors[0][1]
            by_weights = rho * gain
        after_rho = by_weights
        if self.bias_var:
            after_rho = torch.addcmul(by_weights, *factors[-1])

        # The part of this layer's own parameters in the tangent kernel.
        by_parameters: Tensor | None = None
        if all(self.trained):
            by_parameters = after_rho
        elif self.trained[0]:
            by_parameters = by_weights
        elif self.trained[1] and self.bias_var:
            by_parameters = (factors[-1][0] * factors[-1][1]).expand_as(after_rho)

        # theta' = gain theta + that part; each may be missing.
        if theta is None:
            return PairState(after_rho, by_parameters)
        if gain is not None and by_parameters is not None:
            return PairState(after_rho, torch.addcmul(by_parameters, theta, gain))
        if gain is not None:
            theta = theta * gain
        if by_parameters is not None:
            theta = theta + by_parameters
        return PairState(after_rho, theta)

    def _mix_positions(
        self, t: Tensor, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], layout: Layout
    ) -> Tensor:
        """Relative covariances after a mean over positions: scaled up first, one side after the other, and down."""
        covariance = t * before[0] * before[1]
        if self.patch is not None:
            covariance = self.patch(covariance, full=layout.full)
        else:
            covariance = covariance.flatten(layout.row_axes).mean(-1)
        return covariance * after[0] * after[1]


@dataclass(frozen=True)
class EnterConvolution(Rule):
    """The input's first convolution, by products of whole patches: no covariances of single pixels.

    Args:
        convolution: A convolution whose weights and biases are both trained, or neither.
    """

    convolution: Affine

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        x, patch = before[0].r, self.convolution.patch
        assert patch is not None
        after = self.convolution.advance_rows([Enter(1).advance_rows(before)])
        fan_in = x.shape[1] * math.prod(patch.size)
        scale = math.sqrt(self.convolution.weight_var / fan_in) * inverse_of(after.r)
        bias = math.sqrt(self.convolution.bias_var) * inverse_of(after.r)
        return after._replace(unit=x, factors=(scale, bias))

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        if layout.zipped:  # equal positions of a row with itself
            rho = torch.ones_like(x.after.r)
        else:
            products = torch.einsum("npc,mpc->nmp", self._patches(x.after), self._patches(y.after))
            rho = products.reshape(*products.shape[:2], *x.after.r.shape[1:]).contiguous()
        if not all(self.convolution.trained):
            return PairState(rho, None)
        return PairState(rho, rho)

    def _patches(self, row: RowState) -> Tensor:  # -> (n, p, channels times taps + 1)
        """Patches of the input over the deviation of their sum, with the bias as one more feature."""
        (scale, bias), patch, x = row.factors, self.convolution.patch, row.unit
        assert patch is not None and x is not None
        if len(patch.size) == 1:  # a sequence is a picture of height 1
            x = x[:, :, None]
            patch = Patch((1, *patch.size), (1, *patch.stride), ((0, 0), *patch.padding), (1, *patch.dilation))
        x = F.pad(x, [*patch.padding[1], *patch.padding[0]])
        patches = F.unfold(x, patch.size, patch.dilation, 0, patch.stride).mT * scale.flatten(1)[..., None]
        if not self.convolution.bias_var:
            return patches
        return torch.cat((patches, bias.flatten(1)[..., None]), -1)


@dataclass(frozen=True)
class Activate(Rule):
    r"""An activation on Gaussian states: :math:`\Theta' = \Theta E[\phi' \phi']`."""

    activation: Activation

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        r = before[0].r
        after = self.activation.deviation(r)
        return RowState(after, self.activation.mean(r), factors=self.activation.factors(r, after))

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        rho, theta = states[0]
        factors = layout.align_all(x.after, y.after)
        rows, columns = tuple(a for a, _ in factors), tuple(b for _, b in factors)
        rho, slope = self.activation.pair(rho, rows, columns, slope=theta is not None)
        if theta is None or slope is None:
            return PairState(rho, None)
        if may_be_differentiated(theta, slope):
            return PairState(rho, theta * slope)
        return PairState(rho, slope.mul_(theta))  # in place: `pair` gives it away


@dataclass(frozen=True)
class Combine(Rule):
    """A weighted sum of uncorrelated states.

    Args:
        weights: One for each state.
    """

    weights: tuple[float, ...]

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        # The root of the sum of squares, over the largest of them: squares of large deviations would overflow.
        scaled = torch.stack([abs(w) * row.r for w, row in zip(self.weights, before, strict=True)])
        largest = scaled.detach().amax(0)
        largest = torch.where(largest > 0, largest, torch.ones_like(largest))
        r = largest * safe_sqrt((scaled / largest).square().sum(0))
        means = [w * row.mean for w, row in zip(self.weights, before, strict=True)]
        shares = tuple(ratio_of(part, r) for part in scaled)
        return RowState(r, functools.reduce(torch.add, means), factors=shares)

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        if len(states) == 1:
            return states[0]
        # Each state counts by the share of its deviations; a state without theta adds nothing to it.
        rhos, thetas = [], []
        for (rho, theta), (share_x, share_y) in zip(states, layout.align_all(x.after, y.after), strict=True):
            rhos.append(rho * share_x * share_y)
            if theta is not None:
                thetas.append(theta * share_x * share_y)
        total_theta: Tensor | None = None
        if thetas:
            total_theta = functools.reduce(torch.add, thetas)
        return PairState(functools.reduce(torch.add, rhos), total_theta)


@dataclass(frozen=True)
class Normalize(Rule):
    r"""Layer norm over infinitely many channels: the covariance over :math:`\sqrt{(q_x + \epsilon)(q_y + \epsilon)}`.

    q is a row's variance, or second moment without ``center``. The derivative of q itself vanishes in the limit, so
    that :math:`\Theta` is divided by the same root.

    Args:
        eps: :math:`\epsilon`.
        scale: The factor after it.
        center: Subtract the mean first: layer norm rather than RMS norm.
        positions: q is the mean over positions too, as for group norm; only for states of mean 0.
    """

    eps: float
    scale: float = 1.0
    center: bool = False
    positions: bool = False

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        r, mean = before[0].r, before[0].mean
        if self.center:
            r, mean = safe_sqrt(r.square() - mean.square()), torch.zeros_like(mean)
        # The root of q + epsilon; q is the mean over all positions for a group norm.
        root = r
        if self.positions and r.ndim > 1:
            root = safe_sqrt(r.square().flatten(1).mean(1)).reshape(-1, *(1,) * (r.ndim - 1))
        if self.eps:
            root = hypotenuse(root, math.sqrt(self.eps))
        factor = self.scale / root
        return RowState(r * factor.abs(), mean * factor)

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        (rho, theta), (row_x,), (row_y,) = states[0], x.before, y.before
        if not self.center:
            return PairState(rho, theta)
        # Subtract the product of the means, and divide by the centered deviations.
        centered = [safe_sqrt(row.r.square() - row.mean.square()) for row in (row_x, row_y)]
        rx, ry = layout.align(ratio_of(row_x.r, centered[0]), ratio_of(row_y.r, centered[1]))
        mx, my = layout.align(ratio_of(row_x.mean, centered[0]), ratio_of(row_y.mean, centered[1]))
        if theta is not None:
            theta = theta * rx * ry
        return PairState(rho * rx * ry - mx * my, theta)


@dataclass(frozen=True)
class Pool(Rule):
    """The mean over windows, of each position of a pair on its own.

    Args:
        size: Of the window, for each axis of positions; None: all of the axis, which goes.
        stride: Steps of the window.
        padding: Zeros before and after.
        count_padding: Whether the zeros count.
        total: The sum in place of the mean.
    """

    ALL_PAIRS: ClassVar[bool] = True

    size: tuple[int | None, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    count_padding: bool = True
    total: bool = False

    def pool(self, s: Tensor, copies: int) -> Tensor:
        """Means over windows; positions are the last axes, ``copies`` times."""
        # From the last axis on, so that an axis that goes leaves the places of those before it.
        dim = -1
        for _ in range(copies):
            for k, stride, pad in zip(self.size[::-1], self.stride[::-1], self.padding[::-1], strict=True):
                if k is None and self.total:
                    s = s.sum(dim)
                    continue
                if k is None:
                    s = s.mean(dim)
                    continue
                # The places of each window that are not padding, and their weight.
                windows = []
                for start in range(-pad, s.shape[dim] + pad - k + 1, stride):
                    places = range(max(0, start), min(start + k, s.shape[dim]))
                    weight = 1 / k
                    if self.total:
                        weight = 1.0
                    elif not self.count_padding:
                        weight = 1 / len(places)
                    windows.append(tuple((place, weight) for place in places))
                s = _apply(s, dim, tuple(windows))
                dim -= 1
        return s

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        # The variance of a mean: the mean of the covariances of all pairs of its positions.
        (row,) = before
        assert row.state is not None
        first, second = Layout(full=True, zipped=True).align(row.r, row.r)
        covariance = self.pool(row.state.rho * first * second, 2)
        after = safe_sqrt(diagonal(covariance, (covariance.ndim - 1) // 2))
        return RowState(after, self.pool(row.mean, 1))

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        rx, ry = layout.align(x.before[0].r, y.before[0].r)
        after = layout.align(inverse_of(x.after.r), inverse_of(y.after.r))
        return states[0].map(lambda t: self.pool(t * rx * ry, 2) * after[0] * after[1])


@dataclass(frozen=True)
class Pad(Rule):
    """Positions beyond the border, as ``torch.nn.functional.pad`` fills them.

    Args:
        padding: Before and after, for each axis of positions.
        mode: ``"constant"`` (zeros), ``"circular"``, ``"reflect"`` or ``"replicate"``.
    """

    padding: tuple[tuple[int, int], ...]
    mode: str = "constant"

    def pad(self, t: Tensor, copies: int) -> Tensor:
        """Padded positions, which are the last axes, ``copies`` times."""
        axes = len(self.padding)
        for axis, amounts in enumerate(self.padding):
            dims = [axis - axes * (copy + 1) for copy in range(copies)]
            if self.mode == "constant":
                t = _pad_zeros(t, dims, amounts)
                continue
            places = torch.arange(t.shape[dims[0]], dtype=torch.float32, device=t.device)[None]
            index = F.pad(places, amounts, mode=self.mode)[0].long()
            for dim in dims:
                t = t.index_select(dim, index)
        return t

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        return RowState(self.pad(before[0].r, 1), self.pad(before[0].mean, 1))

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        return states[0].map(lambda t: self.pad(t, layout.copies))


@dataclass(frozen=True)
class Reposition(Rule):
    """The same positions in another shape.

    Args:
        positions: The shape.
    """

    positions: tuple[int, ...]

    @override
    def advance_rows(self, before: Sequence[RowState]) -> RowState:
        r, mean = before[0].r, before[0].mean
        return RowState(r.reshape(-1, *self.positions), mean.reshape(-1, *self.positions))

    @override
    def advance_pairs(self, states: Sequence[PairState], x: Side, y: Side, layout: Layout) -> PairState:
        shape = (*states[0].rho.shape[: layout.row_axes], *self.positions * layout.copies)
        return states[0].map(lambda t: t.reshape(shape))


def diagonal(s: Tensor, positions: int) -> Tensor:  # (..., *P, *P) -> (..., *P)
    """The covariances of equal positions; ``positions`` is the number of their axes."""
    if not positions:
        return s
    rows, shape = s.shape[: -2 * positions], s.shape[-positions:]
    square = s.reshape(*rows, shape.numel(), shape.numel())
    return square.diagonal(dim1=-2, dim2=-1).reshape(*rows, *shape)


Windows = tuple[tuple[tuple[int, float], ...], ...]  # places and their weights, for each window


def _apply(s: Tensor, dim: int, windows: Windows) -> Tensor:
    """Weighted sums along an axis counted from the last; places beyond it are zeros."""
    if records_graph():
        matrix = _make_matrix(windows, s.shape[dim], s.dtype, str(s.device))
    else:
        matrix = _keep_matrix(windows, s.shape[dim], s.dtype, str(s.device))
    if dim == -1:
        return s @ matrix.mT
    if dim == -2:
        return matrix @ s
    return (s.movedim(dim, -1) @ matrix.mT).movedim(-1, dim)


def _make_matrix(windows: Windows, length: int, dtype: torch.dtype, device: str) -> Tensor:  # (windows, length)
    rows = [[dict(window).get(place, 0.0) for place in range(length)] for window in windows]
    return torch.tensor(rows, dtype=dtype, device=device)


@functools.lru_cache(256)
def _keep_matrix(windows: Windows, length: int, dtype: torch.dtype, device: str) -> Tensor:
    with torch.inference_mode(False):  # kept for later calls, which may differentiate
        return _make_matrix(windows, length, dtype, device)


def _pad_zeros(s: Tensor, dims: Sequence[int], amounts: tuple[int, int]) -> Tensor:
    """Zeros before and after along these axes, counted from the last."""
    if amounts == (0, 0):
        return s
    pad = [0] * (2 * max(-dim for dim in dims))
    for dim in dims:
        pad[2 * (-dim - 1) : 2 * (-dim)] = amounts
    return F.pad(s, pad)


def _take_every(s: Tensor, dim: int, start: int, length: int, stride: int) -> Tensor:
    """Every ``stride``-th entry along an axis."""
    part = s.narrow(dim, start, stride * (length - 1) + 1)
    if stride == 1:
        return part
    index: Any = (..., slice(None, None, stride), *(slice(None),) * (-dim - 1))
    return part[index]
