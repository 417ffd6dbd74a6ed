r"""The closed-form solver: every layer's weights are sums of kernel embeddings over classes (W_s)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.blocks import block_rows, blockwise
from ..storage.savable import SavableModule
from .bandwidths import median_distance, most_dependent, walk_down
from .dependence import class_sums, gaussian
from .record import LayerRecord, measure_gram

_LEAST_BANDWIDTH = 1e-4  # where the leave-one-out walk ends, in units of standardised inputs
_REACH = 0.1  # the authors' walk ends at this share of where it began: beyond, H grows by rote
_ENOUGH = 0.95  # normalised HSIC at which the authors stop
_GROWTH = 0.01  # growth of H that is worth a layer where H is honest; theorem 1 asks for any growth
_SHRINK = 0.01  # least bandwidth on outputs, as the authors have it


class ChainLayer(SavableModule):
    """One layer of the poster's chains."""

    @abstractmethod
    def project(self, r: Tensor) -> Tensor:  # (n, d) -> (n, q)
        """The layer's outputs in IDS, the input data space."""


class ClosedFormLayer(ChainLayer):
    r"""One layer :math:`z_l = \psi(z_{l-1})^T W_s`, by the kernel trick (masoomi2020, Eq. 2).

    Column k is :math:`\zeta_k^{-1/2} \sum_{i \in S_k} k_\sigma(z, z_i)`; the weight matrix itself, of the kernel
    space's width, is never formed.

    Args:
        anchors: The training rows the layer saw, ``(n, q)``.
        weights: :math:`Y / \sqrt\zeta`, ``(n, c')``: which anchors are summed into which column, and the norm.
        bandwidth: :math:`\sigma`.
    """

    anchors: Tensor
    weights: Tensor

    def __init__(self, anchors: Tensor, weights: Tensor, bandwidth: float) -> None:
        super().__init__()
        self.hold(anchors=anchors, weights=weights)
        self.bandwidth = bandwidth

    @override
    def forward(self, z: Tensor) -> Tensor:  # (n, q) -> (n, c')
        rows = block_rows(2 * len(self.anchors) * z.element_size())
        return blockwise(lambda part: gaussian(self.bandwidth)(part, self.anchors) @ self.weights, z, block=rows)

    @override
    def project(self, r: Tensor) -> Tensor:
        return self(r)


@dataclass(frozen=True)
class Chain:
    """Layers with their records, and the outputs of the training rows.

    Attributes:
        layers: Modules, to be applied one after the other.
        history: One record for each layer.
        outputs: ``(n, q)``, the last layer's outputs in IDS for the training rows.
        bandwidth: The bandwidth of the kernel on those outputs.
        representation: ``(n, m)``, what a linear head reads: the outputs, or their features; each row's own terms left
            out where the rule did so.
    """

    layers: list[ChainLayer]
    history: list[LayerRecord]
    outputs: Tensor
    bandwidth: float
    representation: Tensor


def class_norms(gram: Tensor, labels: Tensor, c: int, normalize: str) -> Tensor:  # (n, n), (n,) -> (c,)
    r""":math:`\sqrt\zeta`, of each class or one for all.

    Args:
        gram: Kernel of the layer's inputs.
        labels: Classes.
        c: Number of classes.
        normalize: ``"class"`` divides by the norm of each class's own embedding, as the authors' program does, which
            keeps small classes in sight; ``"scalar"`` is Eq. 2 to the letter, one :math:`\zeta`: the norm of all
            columns together.
    """
    squares = class_sums(class_sums(gram, labels, c).mT, labels, c).diagonal().clamp_min(torch.finfo(gram.dtype).tiny)
    return squares.sqrt() if normalize == "class" else squares.sum().sqrt().expand(c)


def fit_closed_form(
    x: Tensor,
    labels: Tensor,
    c: int,
    *,
    rule: str = "leave_one_out",
    max_layers: int = 12,
    bandwidths: int = 10,
    extra: bool = False,
    normalize: str = "class",
    enough: float = _ENOUGH,
    restarts: int = 0,
) -> Chain:
    r"""Stack :class:`ClosedFormLayer` greedily.

    Args:
        x: Standardised rows, ``(n, d)``.
        labels: Classes ``0..c - 1``.
        c: Number of classes.
        rule: ``"authors"`` walks the bandwidth down from the one of greatest HSIC and takes the first that raises H;
            on the rows it is fitted to it may end near 0. ``"leave_one_out"`` takes each row's own term out of the
            sums, feeds those outputs on, and picks the bandwidth of greatest H of what is left.
        max_layers: Most layers.
        bandwidths: Steps of the walk.
        extra: Add a column for the rows of each class that the layer before assigned to another class.
        normalize: See :func:`class_norms`.
        enough: Stop at this H.
        restarts: A chain that stalls below ``enough`` restarts from half the bandwidth, at most this many times. What
            a wide first bandwidth has merged no later layer can part: theorem 1 needs bandwidths small enough.
    """
    checks.choice("closed_form", "rule", rule, ("leave_one_out", "authors"))
    checks.choice("closed_form", "normalize", normalize, ("class", "scalar"))
    checks.memory("closed_form", f"a kernel on {len(x)} rows", 4 * len(x) ** 2 * 8, "Use solver='auto' or 'spectral'.")
    start = most_dependent(
        x, labels, c, least=10 * _SHRINK, middle=median_distance(x, where="closed_form", rows=len(x))
    )
    record = measure_gram(gaussian(start)(x), x, labels, c, start)
    search = _Search(labels, c, rule == "leave_one_out", bandwidths, normalize, enough)
    best: Chain | None = None
    for attempt in range(restarts + 1):
        chain = search.stack(_Step(None, x, start / 2**attempt, record), max_layers, extra)
        if best is None or chain.history[-1].hsic > best.history[-1].hsic:
            best = chain
        if best.history[-1].hsic >= enough:
            break
    assert best is not None
    return best


@dataclass(frozen=True)
class _Step:
    layer: ClosedFormLayer | None
    outputs: Tensor
    bandwidth: float
    record: LayerRecord


@dataclass(frozen=True)
class _Search:
    """What all layers of a chain share: the rows' classes and how a bandwidth is chosen."""

    labels: Tensor
    c: int
    held_out: bool  # each row's own term is taken out of the sums; else the authors' rule
    bandwidths: int
    normalize: str
    enough: float

    def stack(self, step: _Step, max_layers: int, extra: bool) -> Chain:
        """Layers while H grows; the first is kept whatever it does, for a network has at least one."""
        layers: list[ChainLayer] = []
        history: list[LayerRecord] = []
        for depth in range(max_layers):
            found = self.following(step, extra and depth > 0)
            growth = found.record.hsic - step.record.hsic
            if found.layer is None or (layers and growth <= (_GROWTH if self.held_out else 0)):
                break
            layers.append(found.layer)
            history.append(found.record)
            step = found
            if step.record.hsic >= self.enough:
                break
        return Chain(layers, history, step.outputs, step.bandwidth, step.outputs)

    def following(self, before: _Step, extra: bool) -> _Step:
        """The first bandwidth of the walk that raises H (the authors' rule), or else the one of greatest H."""
        tried: list[_Step] = []
        narrowest = _LEAST_BANDWIDTH if self.held_out else _REACH * before.bandwidth
        for bandwidth in walk_down(before.bandwidth, narrowest, self.bandwidths):
            tried.append(self.attempt(before, bandwidth, extra))
            if not self.held_out and tried[-1].record.hsic > before.record.hsic:
                return tried[-1]
        return max(tried, key=lambda step: step.record.hsic)

    def attempt(self, before: _Step, bandwidth: float, extra: bool) -> _Step:
        """The layer of one bandwidth."""
        z = before.outputs
        gram = gaussian(bandwidth)(z)
        groups = _groups(z, self.labels, self.c, extra)  # (n, c')
        if self.held_out:
            counts = groups.sum(0)
            others = (gram @ groups - groups) / (counts - groups).clamp_min(1)  # a row's own class lacks the row itself
            norms = _held_out_norms(others, groups)
            weights, outputs = groups / (counts * norms), others / norms
        else:
            norms = class_norms(gram, self.labels, self.c, self.normalize)
            norms = torch.cat((norms, norms.new_ones(groups.shape[1] - self.c)))
            weights = groups / norms
            outputs = gram @ weights
        least = 0.0 if self.held_out else _SHRINK
        after = most_dependent(outputs, self.labels, self.c, least=least, middle=median_distance(outputs))
        record = measure_gram(gaussian(after)(outputs), outputs, self.labels, self.c, bandwidth)
        return _Step(ClosedFormLayer(z, weights, bandwidth), outputs, after, record)


def _held_out_norms(others: Tensor, groups: Tensor) -> Tensor:  # (n, c'), (n, c') -> (c',)
    """Norm of each column's mean embedding without the rows' own terms; 1 where a column has no two rows alike."""
    squares = (others * groups).sum(0) / groups.sum(0)
    return torch.where(squares > torch.finfo(squares.dtype).tiny, squares, torch.ones_like(squares)).sqrt()


def _groups(z: Tensor, labels: Tensor, c: int, extra: bool) -> Tensor:
    """The classes as columns and, where asked, the wrongly assigned rows of each class that has any."""
    columns = torch.nn.functional.one_hot(labels, c).to(z)
    if not extra:
        return columns
    wrong = columns * (z[:, :c].argmax(1) != labels)[:, None]
    return torch.cat((columns, wrong[:, wrong.any(0)]), 1)
