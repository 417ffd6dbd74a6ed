r"""The kernel machine on landmarks, for more rows than a Gram matrix can hold; its sums can grow row by row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..distributed import shard, sum_over_ranks, take_rows
from ..linalg import block_rows, slices
from ..storage import Savable
from .dependence import gaussian_gram
from .network import KernelLayer

__all__ = ["LandmarkFit", "Sums", "accumulate", "extend", "landmark_fit", "narrow", "solve"]

_LEAST, _SHARE, _MOST = 2000, 0.08, 6500  # landmarks: so many, more with the rows, but no more than a minute's
_WIDE = 5000  # rows beyond which the sums are made in float32, block by block, and solved in float64
_JUDGED = 1000  # rows whose leave-one-out predictions choose the ridge and calibrate
_FACTORS = (1.0, 0.1, 0.01)
_JITTER = 1e-10
_ATTEMPTS = 6
_TRIED, _NARROWER = 6000, 0.75


class Sums(Savable):
    r"""What ridge on landmarks needs of the rows: :math:`\sum_i k_i k_i^T`, :math:`\sum_i k_i y_i^T`, and moments.

    Args:
        gram: ``(m, m)``.
        cross: ``(m, c)``.
        total: ``(m,)``, :math:`\sum_i k_i`.
        targets: ``(c,)``, :math:`\sum_i y_i`.
        n: Rows.
    """

    def __init__(self, gram: Tensor, cross: Tensor, total: Tensor, targets: Tensor, n: int) -> None:
        self.gram, self.cross, self.total, self.targets, self.n = gram, cross, total, targets, n

    def get_arguments(self) -> dict[str, object]:
        """The sums as they are now."""
        return {"gram": self.gram, "cross": self.cross, "total": self.total, "targets": self.targets, "n": self.n}


class LandmarkFit(NamedTuple):
    """The fit, leave-one-out predictions of some rows, and the sums to go on from."""

    head: KernelLayer
    held_out: Tensor
    rows: Tensor
    error: float
    penalty: float
    sums: Sums


def accumulate(z: Tensor, y: Tensor, anchors: Tensor, bandwidth: float, sums: Sums | None = None) -> Sums:
    """Add the rows of all ranks to the sums, in blocks: (n, d), (n, c), (m, d)."""
    m = len(anchors)
    gram, cross, total = z.new_zeros(m, m), z.new_zeros(m, y.shape[1]), z.new_zeros(m)
    for rows in slices(len(z), block_rows(3 * m * z.element_size(), budget=2**28)):
        part = gaussian_gram(z[rows], anchors, bandwidth)
        gram += torch.from_numpy(part.numpy().T @ part.numpy())  # numpy sees the symmetry and does half the work
        cross.addmm_(part.mT, y[rows])
        total += part.sum(0)
    n = int(sum_over_ranks(torch.tensor(len(z))))
    gram, cross, total, targets = (sum_over_ranks(part) for part in (gram, cross, total, y.sum(0)))
    if sums is None:
        return Sums(gram, cross, total, targets, n)
    return Sums(sums.gram + gram, sums.cross + cross, sums.total + total, sums.targets + targets, sums.n + n)


def landmark_fit(
    z: Tensor, y: Tensor, bandwidth: float, penalty: float, *, m: int | None, order: Tensor
) -> LandmarkFit:
    r"""Ridge :math:`\min \|Y - K_{nm} \alpha - b\|^2 + \lambda \alpha^T K_{mm} \alpha`, tuned by leave-one-out.

    Args:
        z: Rows, ``(n, d)``, this rank's.
        y: Targets, ``(n, c)``.
        bandwidth: Of the Gaussian.
        penalty: Where the search for :math:`\lambda` starts; smaller ones are tried.
        m: Landmarks; None for the default.
        order: A random order of the rows of all ranks; the first m are the landmarks, the last judge :math:`\lambda`.
    """
    n = len(order)
    count = min(m or min(_LEAST + round(_SHARE * n), _MOST), n)
    if n > _WIDE:
        z, y = z.float(), y.float()
    needed = 4 * count * count * z.element_size()
    checks.memory("KernelNetwork", f"{count} landmarks", needed, "Give fewer landmarks.")
    anchors = take_rows(z, order[:count])
    sums = accumulate(z, y, anchors, bandwidth)
    rows = order[-min(_JUDGED, n) :]
    judged, known = take_rows(z, rows), take_rows(y, rows)
    best: LandmarkFit | None = None
    for factor in _FACTORS:
        head, held_out = solve(sums, anchors, bandwidth, penalty * factor, judged, known)
        error = float((known - held_out).square().mean())
        if best is not None and error >= best.error:
            break
        best = LandmarkFit(head, held_out, rows, error, penalty * factor, sums)
    assert best is not None
    return best


def extend(head: KernelLayer, sums: Sums | None, penalty: float, z: Tensor, y: Tensor) -> tuple[KernelLayer, Sums]:
    """The kernel machine with more rows in it, exactly, and its sums: the head, what it was made of, (n, d), (n, c).

    Without sums every row so far is an anchor: (K + ridge) weights are their targets.
    """
    anchors, bandwidth = head.anchors, head.bandwidth
    if sums is None:
        known = gaussian_gram(anchors, anchors, bandwidth) @ head.weights + penalty * head.weights
        own = shard(len(anchors))  # every rank holds all anchors
        sums = accumulate(anchors[own], known[own], anchors, bandwidth)
    sums = accumulate(z.to(anchors), y.to(anchors), anchors, bandwidth, sums)
    return solve(sums, anchors, bandwidth, penalty, anchors[:1], y.new_zeros(1, y.shape[1]))[0], sums


def narrow(z: Tensor, y: Tensor, bandwidth: float, penalty: float) -> float:
    """The bandwidth for many rows, from one found on few: shrunk while the leave-one-out error falls.

    Args:
        z: Rows in random order, the same on all ranks; at most 6,000 and 800 landmarks are looked at.
        y: Targets.
        bandwidth: Where the walk starts.
        penalty: Of the ridge.
    """
    z, y = z[:_TRIED].float(), y[:_TRIED].float()
    anchors, judged = z[: len(z) // 8 + 50], slice(len(z) // 2, None)
    least, own = float("inf"), shard(len(z))
    while True:
        sums = accumulate(z[own], y[own], anchors, bandwidth)
        _, held_out = solve(sums, anchors, bandwidth, penalty, z[judged], y[judged])
        error = float((y[judged] - held_out).square().mean())
        if error >= least:
            return bandwidth / _NARROWER
        least, bandwidth = error, bandwidth * _NARROWER


def _factor(system: Tensor) -> Tensor:
    """Cholesky factor with the ridge that covers the sums' own rounding; one warning where more was needed."""
    exact = system.dtype == torch.float64
    rounding = _JITTER if exact else 4 * torch.finfo(system.dtype).eps * len(system) ** 0.5
    mean = float(system.diagonal().mean()) + torch.finfo(system.dtype).tiny
    system = system.clone()
    added = 0.0
    for attempt in range(_ATTEMPTS):
        wanted = rounding * 8**attempt * mean
        system.diagonal().add_(wanted - added)
        added = wanted
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(system)
        if not bool(info):
            if attempt:
                checks.warn("KernelNetwork", f"the landmarks' sums are singular to rounding; added ridge {added:.1e}.")
            return factor
    need = "the landmarks' sums must be positive definite"
    raise ValueError(checks.sentence("KernelNetwork", need, f"not so with ridge {added:.1e}", "Give fewer landmarks."))


def solve(
    sums: Sums, anchors: Tensor, bandwidth: float, penalty: float, z: Tensor, y: Tensor
) -> tuple[KernelLayer, Tensor]:
    """The kernel machine of the sums, and leave-one-out predictions of some of the rows in them: (r, d), (r, c)."""
    mean, base = sums.total / sums.n, sums.targets / sums.n
    system = torch.addr(sums.gram, mean, mean, alpha=-sums.n)
    system.add_(gaussian_gram(anchors, anchors, bandwidth), alpha=penalty)
    factor = _factor(system)
    weights = torch.cholesky_solve(sums.cross - sums.n * mean[:, None] * base, factor)
    head = KernelLayer(anchors, weights, base - mean @ weights, bandwidth)
    features = gaussian_gram(z, anchors, bandwidth)
    half = torch.linalg.solve_triangular(factor, (features - mean).mT, upper=False)  # (m, r)
    leverage = (half.square().sum(0) + 1 / sums.n).clamp_max(1 - 1e-6)
    fitted = features @ weights + head.intercept
    return head, y - (y - fitted) / (1 - leverage)[:, None]
