r"""The spectral solver: every layer's weights are top eigenvectors of Q at a fixed point (W*, by ISM)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import checks
from ..features import RandomFourier
from ..features.random_fourier import phased_cosines
from ..linalg.blocks import block_rows, blockwise
from .bandwidths import median_distance, most_dependent
from .closed_form import Chain, ChainLayer
from .dependence import feature_hsic, feature_ism_matrix, gaussian, hsic, ism_matrix, linear_ism_matrix
from .record import LayerRecord, measure_features

_ENOUGH = 0.99  # normalised HSIC at which the stack is done
_HALVINGS, _SHARE = 4, 0.25  # bandwidths walked, and the share of the gap to H = 1 that ends the walk
_STEPS, _CLOSE = 6, 1e-4  # steps and residual of a layer's fixed point; more digits gain nothing, the next layer does
_LEAST = 1e-3  # eigenvalues of Q below this share of the largest are left out
_GROWTH = 0.01  # growth of H below which another layer is not worth its width


class Ism(NamedTuple):
    r"""A fixed point of W -> top eigenvectors of Q(W).

    Attributes:
        w: W*, ``(d, q)``, orthonormal columns.
        residual: :math:`\|(I - W W^T) Q W\| / \|Q W\|`; 0 at a stationary point of HSIC on :math:`W^T W = I`.
        iterations: Eigendecompositions spent.
        eigenvalues: All of Q's, ascending.
    """

    w: Tensor
    residual: float
    iterations: int
    eigenvalues: Tensor


def riemannian_gradient(q: Tensor, w: Tensor) -> Tensor:  # (d, d), (d, q) -> (d, q)
    r""":math:`(I - W W^T) Q W`: HSIC's gradient along the constraint, up to :math:`2 / \sigma^2`.

    (masoomi2020, Claim 5.)
    """
    gradient = q @ w
    return gradient - w @ (w.mT @ gradient)


def ism(
    r: Tensor,
    labels: Tensor,
    c: int,
    bandwidth: float = 1.0,
    *,
    width: int,
    kernel: str = "gaussian",
    features: Callable[[Tensor], Tensor] | None = None,
    max_iterations: int = 30,
    tolerance: float = 1e-9,
) -> Ism:
    r"""Maximise :math:`\mathrm{Tr}(\Gamma K_{R W})` over :math:`W^T W = I` by repeated eigendecompositions.

    The first Q has K = 1, where it is :math:`R^T \Gamma R` (masoomi2020, Claim 5 and Eq. 9). A step that lowers the
    objective is shortened: W turns only part of the way towards the eigenvectors, so that the fixed point is a
    maximum rather than a cycle.

    Args:
        r: Rows, ``(n, d)``.
        labels: Classes ``0..c - 1``.
        c: Number of classes.
        bandwidth: :math:`\sigma` of the Gaussian.
        width: Columns q of W, fewer where the rows span fewer directions.
        kernel: ``"gaussian"`` or ``"linear"``, each with its own Q.
        features: Maps ``r @ w`` to features whose products are the Gaussian kernel, ``(n, D)``; nothing n x n is formed
            then. None uses the Gram matrix.
        max_iterations: Most eigendecompositions.
        tolerance: Residual that counts as a fixed point.
    """
    checks.choice("ism", "kernel", kernel, ("gaussian", "linear"))
    # W lies in the span of the rows: where they are fewer than columns, look for it there, (d, n).
    rows = r
    basis: Tensor | None = None
    if r.shape[1] > len(r):
        basis = torch.linalg.qr(r.mT)[0]
        rows = r @ basis

    # HSIC as a function of W, and its Q.
    def measure(w: Tensor) -> float:
        z = rows @ w
        if features is not None:
            return float(feature_hsic(features(z), labels, c))
        return float(hsic(gaussian(bandwidth)(z), labels, c))

    def compute_q(w: Tensor) -> Tensor:
        if features is not None:
            return feature_ism_matrix(features(rows @ w), rows, labels, c)
        return ism_matrix(gaussian(bandwidth)(rows @ w), rows, labels, c)

    def leave_basis(w: Tensor) -> Tensor:  # (d, q)
        if basis is None:
            return w
        return basis @ w

    # Start at the linear kernel's eigenvectors: its Q does not depend on W.
    matrix = linear_ism_matrix(rows, labels, c)
    values, vectors = torch.linalg.eigh(matrix)
    q = checks.integer("ism", "width", width, 1, len(matrix))
    if kernel == "linear" or not max_iterations:
        w = _fix_basis(matrix, vectors[:, -q:])
        return Ism(leave_basis(w), _residual(matrix, w), 1, values)
    w = _fix_basis(matrix, vectors[:, -min(q, c - 1) :])

    # That Q has rank c - 1: its further eigenvectors are whatever rounding makes them. Columns beyond start at the
    # eigenvectors of the kernel's own Q there, among the directions in which what is left of the rows varies.
    if q > w.shape[1]:
        remainder = rows - rows @ w @ w.mT
        variances, components = torch.linalg.eigh(remainder.mT @ remainder)
        components = components[:, len(variances) - _count_large(variances) :]
        matrix = components.mT @ compute_q(w) @ components
        further = components @ torch.linalg.eigh(matrix)[1][:, w.shape[1] - q :]
        w = torch.cat((_fix_signs(further), w), 1)
        q = w.shape[1]

    # Turn to the eigenvectors of Q at W, until W spans them.
    value, spent = measure(w), 0
    while spent < max_iterations:
        matrix = compute_q(w)
        values, vectors = torch.linalg.eigh(matrix)
        spent += 1
        if _residual(matrix, w) <= tolerance:
            break
        # The full and the half turn to the eigenvectors, where all of these are determined. Full turns alone may swing
        # about the fixed point for hundreds of steps, or leave a maximum that is not at the top eigenvectors.
        steps: list[list[Tensor]] = []
        if _count_large(values) >= q:
            target = vectors[:, -q:]
            aligned = target @ _nearest_orthonormal(target.mT @ w)  # the same span, turned to meet w column by column
            steps.append([aligned, (w + aligned) / 2])
        # Where they lower HSIC, steps uphill: the gradient costs nothing more, and always leads on.
        gradient = riemannian_gradient(matrix, w)
        uphill = gradient / gradient.norm().clamp_min(torch.finfo(w.dtype).tiny)
        steps.append([w + 10.0**-e * uphill for e in (0.5, 1, 1.5, 2, 3, 4, 5, 6)])
        old_w, slack = w, 4 * torch.finfo(w.dtype).eps * abs(value)
        for trials in steps:
            trials = [_nearest_orthonormal(trial) for trial in trials]
            reached, best = max((measure(trial), -i) for i, trial in enumerate(trials))
            if reached >= value - slack:
                w, value = trials[-best], reached
                break
        if w is old_w:
            break
    matrix = compute_q(w)
    w = _fix_basis(matrix, w)
    return Ism(leave_basis(w), _residual(matrix, w), spent, values)


def _fix_basis(matrix: Tensor, w: Tensor) -> Tensor:  # (d, d), (d, q) -> (d, q)
    """The basis of W's span that diagonalises Q, its signs fixed: rounding cannot turn it."""
    return _fix_signs(w @ torch.linalg.eigh(w.mT @ matrix @ w)[1])


def _fix_signs(w: Tensor) -> Tensor:  # (d, q) -> (d, q)
    """Columns with their largest entries positive."""
    signs = w.gather(0, w.abs().argmax(0, keepdim=True)).sign()
    return w * torch.where(signs == 0, torch.ones_like(signs), signs)


def _count_large(values: Tensor) -> int:
    """Eigenvalues that are no rounding; the eigenvectors of the others may be anything."""
    return int((values > _LEAST * values.max().clamp_min(0)).sum())


def _nearest_orthonormal(w: Tensor) -> Tensor:  # (d, q) -> (d, q)
    """The polar factor: unlike that of QR, its columns keep their signs where w hardly changes."""
    u, _, vh = torch.linalg.svd(w, full_matrices=False)
    nearest: Tensor = u @ vh
    return nearest


def _residual(matrix: Tensor, w: Tensor) -> float:
    scale = float((matrix @ w).norm())
    if scale == 0:
        return 0.0
    return float(riemannian_gradient(matrix, w).norm()) / scale


class SpectralLayer(ChainLayer):
    r"""One layer: :math:`\sqrt{2 / D} \cos(z \Omega / \sigma + b)` of :math:`z = (R - \bar R) W^*`.

    Args:
        weight: W*, ``(d, q)``.
        frequencies: :math:`\Omega / \sigma`, ``(q, D)``: standard normal draws over the bandwidth.
        phases: b, ``(D,)``, uniform on the circle.
        centre: Mean of the training rows the layer saw, ``(d,)``; HSIC does not see it, the pictures do.
    """

    weight: Tensor
    frequencies: Tensor
    phases: Tensor
    centre: Tensor

    def __init__(self, weight: Tensor, frequencies: Tensor, phases: Tensor, centre: Tensor) -> None:
        super().__init__()
        self.hold(weight=weight, frequencies=frequencies, phases=phases, centre=centre)

    @override
    def project(self, r: Tensor) -> Tensor:  # (n, d) -> (n, q)
        return (r - self.centre) @ self.weight

    def features(self, z: Tensor) -> Tensor:  # (n, q) -> (n, D)
        """The layer's outputs in RKHS, approximated by random Fourier features."""
        return phased_cosines(z, self.frequencies, self.phases)

    @override
    def forward(self, r: Tensor) -> Tensor:  # (n, d) -> (n, D)
        rows = block_rows(2 * len(self.phases) * r.element_size())
        return blockwise(lambda part: self.features(self.project(part)), r, block=rows)


def fit_spectral(
    x: Tensor,
    labels: Tensor,
    c: int,
    *,
    max_layers: int = 12,
    features: int = 300,
    enough: float = _ENOUGH,
    generator: torch.Generator | None = None,
) -> Chain:
    """Stack :class:`SpectralLayer` greedily while normalised HSIC grows.

    Args:
        x: Standardised rows, ``(n, d)``.
        labels: Classes ``0..c - 1``.
        c: Number of classes.
        max_layers: Most layers.
        features: Random Fourier features D of a layer.
        enough: Stop at this H.
        generator: Randomness of the features.
    """
    layers: list[ChainLayer] = []
    history: list[LayerRecord] = []
    r, z, reached = x, x, 0.0
    for _ in range(max_layers):
        # The bandwidth of greatest HSIC on the linear kernel's directions, of which there are c - 1.
        centre = r.mean(0)
        centred = r - centre
        linear = centred @ ism(centred, labels, c, kernel="linear", width=min(c - 1, *r.shape)).w
        sigma = most_dependent(linear, labels, c, middle=median_distance(linear, where="spectral", rows=400))

        # One draw of frequencies for all bandwidths: a narrower one scales them.
        width = min(c, *r.shape)
        fourier = RandomFourier(gaussian(sigma), features, paired=False, generator=generator).fit(r.new_zeros(1, width))

        # Walk the bandwidth down until a layer closes enough of the gap to H* = 1; take the layer of greatest H.
        candidates: list[tuple[SpectralLayer, LayerRecord]] = []
        for halvings in range(_HALVINGS):
            bandwidth, frequencies, phase = sigma / 2**halvings, fourier.omega * 2**halvings, fourier.phase

            def map_outputs(z: Tensor, frequencies: Tensor = frequencies, phase: Tensor = phase) -> Tensor:
                return phased_cosines(z, frequencies[: z.shape[1]], phase)

            # W at its fixed point for this bandwidth; with few rows the Gram matrix is the cheaper and the exact way.
            kernel_features: Callable[[Tensor], Tensor] | None = map_outputs
            if len(r) <= 2 * features:
                kernel_features = None
            w = ism(
                centred,
                labels,
                c,
                bandwidth,
                width=width,
                features=kernel_features,
                max_iterations=_STEPS,
                tolerance=_CLOSE,
            ).w
            layer = SpectralLayer(w, frequencies[: w.shape[1]], phase, centre)
            candidates.append((layer, measure_features(layer(r), layer.project(r), labels, c, bandwidth)))
            if candidates[-1][1].hsic >= reached + _SHARE * (1 - reached):
                break
        layer, record = max(candidates, key=lambda candidate: candidate[1].hsic)

        # Layers while H grows; a network has at least one.
        if layers and record.hsic <= reached + _GROWTH:
            break
        layers.append(layer)
        history.append(record)
        z, r, reached = layer.project(r), layer(r), record.hsic
        if reached >= enough:
            break
    return Chain(layers, history, z, history[-1].bandwidth, r)
