"""H-infinity of the two-layer ReLU network, on unit inputs, on a kernel, or on a feature map."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..linalg.blocks import block_rows, slices
from ..linalg.distances import angles, clamp_cosines, cosines
from .base import Kernel, Products
from .stationary import RBF, Stationary

_OCTAVES = 16  # then the tail: powers from 2^17 on, with 0.07 % of the diagonal's mass


class ReLUBounds(NamedTuple):
    """Proved bounds on H for some rows.

    Attributes:
        floor: A proved lower bound on the least eigenvalue of the true H; 0 where none above 0 was found.
        error: Bound on the Frobenius norm, off the diagonal, of (H computed in float64 - true H).
    """

    floor: float
    error: float


class ReLUGram(Kernel):
    r"""Gram matrix of the infinitely wide two-layer ReLU network, :math:`H = K (\pi - \arccos K) / (2 \pi)`.

    It is :math:`E_w [K(x, y) \, 1\{\langle w, \phi(x) \rangle \ge 0, \langle w, \phi(y) \rangle \ge 0\}]`
    under standard normal w, where K is the cosine of the embeddings: rows, kernels and features are put on
    the unit sphere here, so that the diagonal is 1/2 (0 for a row of zeros). The derivative in K is infinite
    at :math:`K = \pm 1`; its gradient there is taken as 0 through the angle, so it stays finite at duplicates
    (spectral2019, Section 2).

    Args:
        base: None for the inputs themselves; a kernel, which is normalized; or a feature map: a module with
            ``base(x) -> (n, m)`` whose rows are normalized.

    Use it with :func:`mercer.spectral.analyze` to read labels as spectral2019 does.

    >>> ReLUGram()(torch.eye(2)).shape
    torch.Size([2, 2])
    """

    NAME = "Two-layer ReLU network"
    MEANING = "a wide network with one hidden layer whose first weights learn; the length of a row does not count"

    def __init__(self, base: Kernel | nn.Module | None = None) -> None:
        super().__init__()
        if base is not None and not isinstance(base, nn.Module):
            need = "base must be None, a kernel or a feature map"
            raise TypeError(checks.sentence("ReLUGram", need, type(base).__name__))
        self.base = base

    @property
    @override
    def is_homogeneous(self) -> bool:
        return self.base is None or (isinstance(self.base, Kernel) and self.base.is_homogeneous)

    @override
    def prepare(self, name: str, x: Tensor) -> Tensor:
        if self.base is None:
            return super().prepare(name, x)
        if isinstance(self.base, Kernel):
            return self.base.prepare(name, x)
        if x.is_floating_point():  # half precision too: the map decides
            return x
        return checks.floating(x)

    @property
    @override
    def follows_from_products(self) -> bool:
        # A base with a unit diagonal needs no normalization.
        return self.base is None or (isinstance(self.base, Stationary) and self.base.follows_from_products)

    @override
    def gram_from_products(self, products: Products) -> Tensor:
        t = products.cosines
        if isinstance(self.base, Kernel):
            t = self.base.gram_from_products(products)
        return torch.arccos(t).neg_().add_(torch.pi).mul_(t).div_(2 * torch.pi)

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        return relu_profile(self.cosines(x, y))

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        if isinstance(self.base, Kernel):
            return 0.5 * self.base.normalized().gram_diag(x)
        rows = x
        if self.base is not None:
            rows = self.base(x)
        return 0.5 * (rows != 0).any(1).to(rows.dtype)

    def cosines(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """K: the cosines of the inputs' embeddings, in [-1, 1]."""
        if self.base is None:
            return cosines(x, y)
        if isinstance(self.base, Kernel):
            return clamp_cosines(self.base.normalized().gram(x, y)).clamp(-1.0, 1.0)
        return cosines(self.base(x), self.base(y))

    @torch.no_grad()
    def bounds(self, x: Tensor) -> ReLUBounds:  # (n, d)
        """The floor under the least eigenvalue, and what rounding does to H at worst.

        See :func:`relu_gram_bounds`. Computed in float64, blockwise: the Gram matrix is never held. The features of a
        map and the values of a base kernel that is not an ``RBF`` are taken to have the rounding of a product of rows.
        """
        x = self.prepare("x", x)
        x = checks.cast_floats(x, torch.float64)
        if bool((self.gram_diag(x) == 0).any()):
            return ReLUBounds(0.0, 0.0)  # a row of zeros is in the null space
        if self.base is not None and not isinstance(self.base, Kernel):
            x, rows_gram = self.base(x).double(), cosines
        else:
            rows_gram = self.cosines
        return relu_gram_bounds(lambda rows: rows_gram(x[rows], x), self._rounding(x))

    def _rounding(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Row by row r, so that the cosine of rows i and j is wrong by at most r_i + r_j."""
        unit = (x[0].numel() + 16) * torch.finfo(torch.float64).eps  # d products, two norms, what is put at 1
        if isinstance(self.base, RBF):  # |x|^2 + |y|^2 - 2 x . y
            return unit * (self.base.gamma(x) * x.square()).sum(1) + 4 * torch.finfo(torch.float64).eps
        return torch.full((len(x),), unit / 2, dtype=torch.float64, device=x.device)


def relu_profile(t: Tensor) -> Tensor:
    r""":math:`t (\pi - \arccos t) / (2 \pi)` for cosines t in [-1, 1], with a finite gradient at both ends."""
    return t * (torch.pi - angles(t)) / (2 * torch.pi)


def relu_gram_bounds(gram: Callable[[slice], Tensor], rounding: Tensor) -> ReLUBounds:
    r"""A proved lower bound on the least eigenvalue of H, from Gershgorin discs of high Hadamard powers of K.

    :math:`H = K / 4 + \tfrac{1}{2\pi} \sum_{e \ge 1} a_{e-1} K^{\circ 2e}` with the coefficients :math:`a_j >
    0` of arcsin, and each :math:`K^{\circ p}` is positive semi-definite (Schur), so H is bounded below by any
    tail of the sum. High powers of cosines below 1 are nearly the identity. The powers of one octave,
    :math:`2^b \le e < 2^{b+1}`, are bounded by their first, the tail's row sums by the discs, and the best
    tail is taken. Rounding is counted against the bound. In the same pass: what it does to H.

    Args:
        gram: Rows of K in float64, unit diagonal: ``gram(rows) -> (len(rows), n)``.
        rounding: r ``(n,)``: entries of K are wrong by at most :math:`r_i + r_j`.
    """
    masses, eps, n = _octave_masses(), torch.finfo(torch.float64).eps, len(rounding)
    radii, squared = torch.zeros(len(masses), n, dtype=torch.float64), 0.0
    for rows in slices(n, block_rows(32 * n)):
        # A block of rows of |K|, each entry the largest that the true cosine can be, without the diagonal.
        power = gram(rows).abs()
        wrong = rounding[rows, None] + rounding[None]
        diagonal = torch.arange(len(power)), torch.arange(rows.start, rows.stop)
        power.add_(wrong).clamp_max_(1.0)  # the largest that the true cosine can be
        # The angle is wrong by at most the slope of arccos there, and by at most pi sqrt(wrong / 2) at 1: a bound on
        # the error of t (pi - arccos t) / (2 pi).
        slope = (1 - power.square()).clamp_min_(torch.finfo(power.dtype).tiny).rsqrt_()
        angle = torch.minimum(slope.mul_(wrong), torch.pi * (wrong / 2).sqrt())
        errors = angle.div_(2 * torch.pi).add_(wrong, alpha=0.5).add_(4 * torch.finfo(power.dtype).eps)
        power[diagonal] = errors[diagonal] = 0.0
        squared += float(errors.square().sum())
        # Row sums of the Hadamard powers 2, 4, 8, ...: the radii of the discs of each octave.
        for octave in range(len(masses)):
            power.square_()
            growth = math.exp(2.0 ** (octave + 1) * 2 * eps)
            radii[octave, rows] = growth * power.sum(1).to(radii.device)
    # Each octave's discs leave mass (1 - radius) on the diagonal; sum every tail, and take the best.
    discs = torch.tensor(masses, dtype=torch.float64)[:, None] * (1 - radii)  # (octaves, n)
    tails = discs.flip(0).cumsum(0).flip(0).amin(1)
    return ReLUBounds(max(0.0, float(tails.max()) - 4 * n * eps), math.sqrt(squared) * (1 + 8 * eps * n))


@functools.cache
def _octave_masses() -> tuple[float, ...]:
    """Arcsin coefficients over 2 pi, summed over each octave of e = j + 1; the last has the whole tail."""
    masses, coefficient, tail = [], 1.0, math.pi / 2  # coefficient = (2 j)! / (4^j j!^2); all a_j sum to pi / 2
    for octave in range(_OCTAVES):
        mass = 0.0
        for j in range(2**octave - 1, 2 ** (octave + 1) - 1):
            mass += coefficient / (2 * j + 1)
            coefficient *= (2 * j + 1) / (2 * j + 2)
        masses.append(mass / (2 * math.pi))
        tail -= mass
    return (*masses, tail / (2 * math.pi))
