"""How far a row is from all training rows, by the variance of a Gaussian process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..distributed import alone
from ..kernels import Laplacian
from ..linalg.cholesky import inverse_diagonal
from ..machines import KernelRidge
from ..machines.selection import median_distance
from ..storage.savable import Savable

_ROWS = 800
_NOISE = 1e-3  # variances far below it are rounding, not distance
_TAIL, _FARTHEST = 0.95, 0.999  # what is called far; the farthest that training rows may set it to


class Familiarity(Savable):
    r"""From 0, as familiar as the training rows, to 1, unlike all of them.

    The variance :math:`v(z) = 1 - k_z^T (K + \lambda I)^{-1} k_z` of a Gaussian process with the kernel
    :math:`\exp(-\|z - z'\|_1 / s)`, s the median distance, that saw up to 800 training rows
    (:meth:`mercer.machines.KernelRidge.variance`), is compared with that of training rows left out,
    :math:`1 / [(K + \lambda I)^{-1}]_{ii} - \lambda`: 0 up to their median; 0.5 where one in twenty of them is farther;
    1 where the training rows say nothing. Linear in between.

    Against rows of a class or a cluster that was held out it is ahead of the distance to five neighbours and of an
    isolation forest (docs/tables.md).

    Args:
        machine: The kernel machine on training rows, :math:`\lambda` = 0.001.
        middle: Median of v over left-out training rows.
        tail: Their 95 % quantile.
    """

    def __init__(self, machine: KernelRidge, middle: float, tail: float) -> None:
        self.machine, self.middle, self.tail = machine, middle, tail

    @classmethod
    def of(cls, z: Tensor, generator: torch.Generator) -> Familiarity:  # (n, d)
        """From training rows on scales where distances mean something."""
        rows = z[torch.randperm(len(z), generator=generator)[:_ROWS]].double()
        kernel = Laplacian(1 / median_distance(rows, 1.0))
        with alone():  # every rank has all of these rows
            machine = KernelRidge(kernel, penalty=_NOISE, solver="exact").fit(rows, torch.zeros(len(rows), 1))
        inverse = inverse_diagonal(machine.solution_.factor_system())
        left_out = (1 / inverse - _NOISE).clamp(0, 1)
        middle, tail = left_out.quantile(torch.tensor([0.5, _TAIL], dtype=left_out.dtype)).tolist()
        return cls(machine, min(middle, _FARTHEST), min(tail, _FARTHEST))

    def variance(self, z: Tensor) -> Tensor:  # (n, d) -> (n,)
        """The posterior variance over the prior's, in [0, 1]."""
        found: Tensor = self.machine.variance(z.double())
        return found

    def __call__(self, z: Tensor) -> Tensor:  # (n, d) -> (n,)
        """How unfamiliar each row is, from 0 to 1."""
        v = self.variance(z)
        near = ((v - self.middle) / max(self.tail - self.middle, 1e-12)).clamp(0, 1)
        far = ((v - self.tail) / (1 - self.tail)).clamp(0, 1)
        return (near + far) / 2

    def get_state(self) -> dict[str, Any]:
        """All of it is in the arguments."""
        return {}
