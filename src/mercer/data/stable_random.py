"""Random numbers that stay the same for ever: the raw 64-bit stream of PCG64, and nothing built on it by others.

NumPy promises that the raw stream of a bit generator never changes; it promises no such thing of ``Generator.normal``
or ``permutation``, nor does torch of ``randn``. Splits and synthetic sets must not move under a published number when
a dependency is upgraded, so the few draws they need are made here.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .. import checks


class StableRandom:
    """A stream of draws that ``seed`` alone decides; two instances of one seed give equal numbers.

    >>> StableRandom(0).permutation(5).tolist()
    [3, 2, 1, 0, 4]
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(checks.integer("data", "seed", seed, 0))

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in the open interval (0, 1), float64: (52 bits + 1/2) / 2^52, so that neither end is met."""
        raw = self._raw(math.prod(shape)) >> np.uint64(12)
        return torch.from_numpy((raw.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, float64, by inverting the distribution function."""
        values: Tensor = torch.special.ndtri(self.uniform(*shape))
        return values

    def below(self, high: int, *shape: int) -> Tensor:
        """Whole numbers uniform in ``0..high - 1``, int64."""
        return (self.uniform(*shape) * high).floor().long().clamp_(max=high - 1)

    def permutation(self, n: int) -> Tensor:
        """An order of ``0..n - 1``, int64: the ranks of n raw draws."""
        return torch.from_numpy(np.argsort(self._raw(n), kind="stable").astype(np.int64))

    def _raw(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return self._bits.random_raw(n)
