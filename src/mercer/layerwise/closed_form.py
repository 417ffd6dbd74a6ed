r"""The closed-form solver: every layer's weights are sums of kernel embeddings over classes (W_s)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..linalg.blocks import block_rows, blockwise
from ..storage.savable import SavableModule
from .bandwidths import median_distance, most_dependent, walk_down
from .dependence import class_sums, gaussian, one_hot
from .record import LayerRecord, measure_gram

_LEAST_BANDWIDTH = 1e-4  # where the leave-one-out walk ends, in units of standardised inputs
_WALKED = 10  # bandwidths of a walk
_REACH = 0.1  # the authors' walk ends at this share of where it began: beyond, H rises only because the kernel narrows
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
    if normalize == "class":
        return squares.sqrt()
    return squares.sum().sqrt().expand(c)


def fit_closed_form(
    x: Tensor,
    labels: Tensor,
    c: int,
    *,
    rule: str = "leave_one_out",
    max_layers: int = 12,
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
        extra: Add a column for the rows of each class that the layer before assigned to another class.
        normalize: See :func:`class_norms`.
        enough: Stop at this H.
        restarts: A chain that stalls below ``enough`` restarts from half the bandwidth, at most this many times. What
            a wide first bandwidth has merged no later layer can part: theorem 1 needs bandwidths small enough.
    """
    checks.choice("closed_form", "rule", rule, ("leave_one_out", "authors"))
    checks.choice("closed_form", "normalize", normalize, ("class", "scalar"))
    checks.memory("closed_form", f"a kernel on {len(x)} rows", 4 * len(x) ** 2 * 8, "Use solver='auto' or 'spectral'.")

    # By leave-one-out H is honest: the walk may go far down, and takes the best. The authors' H grows by itself as the
    # kernel narrows: they stop early, and take the first bandwidth that raises it.
    honest = rule == "leave_one_out"
    smallest, worth = _SHRINK, 0.0
    if honest:
        smallest, worth = 0.0, _GROWTH

    def fit_layer(z: Tensor, bandwidth: float, *, extra: bool) -> _Step:
        """The layer of one bandwidth on these inputs."""
        gram = gaussian(bandwidth)(z)
        # The classes as columns and, where asked, the wrongly assigned rows of each class that has any.
        groups = one_hot(labels, c, z.dtype)  # (n, c')
        if extra:
            wrong = groups * (z[:, :c].argmax(1) != labels)[:, None]
            groups = torch.cat((groups, wrong[:, wrong.any(0)]), 1)
        if honest:
            # Means over the other rows of a group, over the norm of its mean embedding; 1 where no two rows are alike.
            counts = groups.sum(0)
            means = (gram @ groups - groups) / (counts - groups).clamp_min(1)
            squares = (means * groups).sum(0) / counts
            norms = torch.where(squares > torch.finfo(squares.dtype).tiny, squares, torch.ones_like(squares)).sqrt()
            weights, outputs = groups / (counts * norms), means / norms
        else:
            norms = class_norms(gram, labels, c, normalize)
            norms = torch.cat((norms, norms.new_ones(groups.shape[1] - c)))
            weights = groups / norms
            outputs = gram @ weights
        # The kernel of the outputs: where their dependence on the labels is measured, and the next walk begins.
        after = most_dependent(outputs, labels, c, least=smallest, middle=median_distance(outputs))
        record = measure_gram(gaussian(after)(outputs), outputs, labels, c, bandwidth)
        return _Step(ClosedFormLayer(z, weights, bandwidth), outputs, after, record)

    # Where the first walk begins: the bandwidth of greatest HSIC.
    median = median_distance(x, where="closed_form", rows=len(x))
    start = most_dependent(x, labels, c, least=10 * _SHRINK, middle=median)
    start_hsic = measure_gram(gaussian(start)(x), x, labels, c, start).hsic
    best: Chain | None = None
    for attempt in range(restarts + 1):
        layers: list[ChainLayer] = []
        history: list[LayerRecord] = []
        outputs, bandwidth, reached = x, start / 2**attempt, start_hsic
        for depth in range(max_layers):
            # Walk the bandwidth down: to the first that raises H (the authors' rule), or else to the greatest H.
            tried: list[_Step] = []
            narrowest = _REACH * bandwidth
            if honest:
                narrowest = _LEAST_BANDWIDTH
            for candidate in walk_down(bandwidth, narrowest, _WALKED):
                tried.append(fit_layer(outputs, candidate, extra=extra and depth > 0))
                if not honest and tried[-1].record.hsic > reached:
                    break
            step = max(tried, key=lambda step: step.record.hsic)
            # Layers while H grows; the first is kept whatever it does, because a network has at least one.
            if layers and step.record.hsic - reached <= worth:
                break
            layers.append(step.layer)
            history.append(step.record)
            outputs, bandwidth, reached = step.outputs, step.bandwidth, step.record.hsic
            if reached >= enough:
                break
        chain = Chain(layers, history, outputs, bandwidth, outputs)
        if best is None or chain.history[-1].hsic > best.history[-1].hsic:
            best = chain
        if best.history[-1].hsic >= enough:
            break
    assert best is not None
    return best


class _Step(NamedTuple):
    layer: ClosedFormLayer
    outputs: Tensor
    bandwidth: float
    record: LayerRecord
