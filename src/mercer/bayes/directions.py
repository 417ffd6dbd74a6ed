"""The k directions of weight space that the data says most about, and the Gauss-Newton matrix in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ..linalg.blocks import slices
from ..linalg.eigen import randomized_range
from ..linalg.operators import SymmetricOperator
from ..rows import Rows
from ..rows.stored import Readable
from .jacobian import Jacobian, LastLayerJacobian
from .likelihood import Likelihood

_RANGE_ROWS = 1024  # directions of more rows differ little: the Gauss-Newton matrix in them is of all rows
_HELD_BYTES = 256 * 2**20


def leading_directions(
    jacobian: Jacobian,
    x: Readable,
    f: Tensor,
    k: int,
    density: Likelihood,
    *,
    weighted: bool,
    iterations: int,
    batch_size: int,
    seed: int,
) -> Tensor:  # -> (p, min(k, n c, p))
    r"""Orthonormal Q near the dominant range of :math:`J^\top \Lambda^{1/2}`.

    `mercer.linalg.randomized_range` of :math:`J^\top \Lambda J` from :math:`J^\top \Lambda^{1/2} \Omega`. A k of n c or
    more spans all of it; a k of p or more is every direction there is. A smaller k is found on at most 1,024 rows, or
    4 k, spread evenly.

    Args:
        jacobian: J.
        x: Rows, this rank's; products are summed over ranks.
        f: Outputs at the rows ``(n, c)``.
        k: Directions.
        density: Whose :math:`\Lambda`.
        weighted: False leaves :math:`\Lambda` out: the range of the NTK's leading eigenfunctions.
        iterations: Power steps.
        batch_size: Rows at a time.
        seed: Decides :math:`\Omega`.
    """
    rows = Rows(f)
    own, n = rows.place, rows.n
    rank = min(k, n * f.shape[1], jacobian.size)
    if rank == jacobian.size:
        return torch.eye(rank, dtype=f.dtype, device=f.device)
    most = n if rank == n * f.shape[1] else min(n, max(_RANGE_ROWS, 4 * k))
    chosen = torch.linspace(0, n - 1, most, dtype=torch.float64).round().long().unique()
    here = ((chosen >= own.start) & (chosen < own.stop)).nonzero()[:, 0]
    draw = torch.Generator(device=f.device).manual_seed(seed)
    probes = torch.randn(len(chosen), f.shape[1], rank, dtype=f.dtype, device=f.device, generator=draw)[here]
    places = chosen[here] - own.start

    def summed(pulled: Callable[[Tensor, Tensor, slice], Tensor]) -> Tensor:
        total = torch.zeros(jacobian.size, rank, dtype=f.dtype, device=f.device)
        for at in slices(len(places), batch_size):
            block = _taken(x, places[at])
            total += jacobian.transposed(block, pulled(block, f[places[at]], at))
        return rows.total(total)

    def start(_: Tensor, outputs: Tensor, at: slice) -> Tensor:
        return density.curvature_root(outputs, probes[at]) if weighted else probes[at]

    def product(q: Tensor) -> Tensor:
        def pulled(block: Tensor, outputs: Tensor, _: slice) -> Tensor:
            psi = jacobian.along(block, q)
            return density.curvature_product(outputs, psi) if weighted else psi

        return summed(pulled)

    operator = SymmetricOperator(product, jacobian.size, dtype=f.dtype, device=f.device)
    return randomized_range(operator, summed(start), iterations=iterations)


def _taken(x: Readable, rows: Tensor) -> Tensor:
    """Some rows in ascending order, read as one stretch."""
    first = int(rows[0])
    stretch: Tensor = x[first : int(rows[-1]) + 1]
    return stretch if len(stretch) == len(rows) else stretch[rows - first]


class Curvature:
    r"""The Gauss-Newton matrix in k directions, :math:`\sum_i \Psi_i^\top \Lambda_i \Psi_i`, for any likelihood.

    :math:`\Psi_i = J(x_i) Q` is held for as many rows as fit 256 MiB, spread evenly. Of a whole last layer it is
    :math:`\sum_i \Lambda_i \otimes \phi_i \phi_i^\top`, from the features alone.

    Args:
        jacobian: J.
        x: Rows, this rank's.
        f: Outputs at the rows ``(n, c)``.
        q: Directions ``(p, k)``.
        batch_size: Rows at a time.
    """

    def __init__(self, jacobian: Jacobian, x: Readable, f: Tensor, q: Tensor, batch_size: int) -> None:
        self.f = f
        self.features: Tensor | None = None
        self.k = q.shape[1]
        if isinstance(jacobian, LastLayerJacobian) and self.k == jacobian.size:  # Q is the identity
            self.layer, self.stride = jacobian, 1
            parts = [jacobian.features(x[part])[1] for part in slices(len(x), batch_size)]
            self.features = torch.cat(parts) if parts else f.new_zeros(0, self.k // f.shape[1])
            return
        self._sweep = partial(_blocks, jacobian, x, q, batch_size)
        room = max(1, _HELD_BYTES // (f.shape[1] * q.shape[1] * f.dtype.itemsize))
        self.stride = -(-len(f) // room) if len(f) else 1
        held = [psi[-part.start % self.stride :: self.stride] for part, psi in self._sweep()]
        self.psi = torch.cat(held) if held else f.new_zeros(0, f.shape[1], self.k)  # (n / stride, c, k)

    def at(self, density: Likelihood, *, every_row: bool = False) -> Tensor:  # -> (k, k), float64
        """The matrix for this likelihood; rows that are not held count by those that are, unless ``every_row``."""
        total = torch.zeros(self.k, self.k, dtype=torch.float64, device=self.f.device)
        if self.features is not None:
            total = self.layer.curvature(self.features, _hessians(density, self.f)).double()
        elif every_row and self.stride > 1:
            for part, psi in self._sweep():
                total += _product(density, self.f[part], psi)
        else:
            f = self.f[:: self.stride]
            for part in slices(len(f), 1024):
                total += _product(density, f[part], self.psi[part])
            total *= len(self.f) / max(1, len(f))
        total = Rows(self.f).total(total)
        return (total + total.mT) / 2


def _blocks(jacobian: Jacobian, x: Readable, q: Tensor, batch_size: int) -> Iterator[tuple[slice, Tensor]]:
    for part in slices(len(x), batch_size):
        yield part, jacobian.along(x[part], q)


def _hessians(density: Likelihood, f: Tensor) -> Tensor:  # (n, c) -> (n, c, c)
    eye = torch.eye(f.shape[1], dtype=f.dtype, device=f.device)
    return density.curvature_product(f, eye.expand(len(f), -1, -1))


def _product(density: Likelihood, f: Tensor, psi: Tensor) -> Tensor:  # (n, c), (n, c, k) -> (k, k)
    product = density.curvature_product(f, psi)
    return (psi.flatten(0, 1).mT @ product.flatten(0, 1)).double()
