r"""A solved machine: weights on rows, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from ..kernels import FunctionKernel, Kernel, Laplacian, NetworkKernel
from ..linalg.blocks import block_rows, slices
from ..linalg.cholesky import cholesky_in_place, inverse_diagonal, solve_factored
from ..linalg.torch_internals import may_be_differentiated
from ..storage.savable import SavableModule
from .dual import leave_one_out

_TILE_BYTES = 2**20  # of the kernel held at a time: a tile stays in the processor's cache
_CODED = 20  # columns from which on a Laplacian gains more by coding indicators than tiles save


class Solution(SavableModule):
    r"""A solved machine, :math:`f(x) = b + \sum_i \alpha_i k(x_i, x)`, as a torch module.

    Solvers return it, and networks use it as a layer.

    Args:
        kernel: k.
        anchors: Rows :math:`x_i` that carry weights, ``(m, ...)``, in the dtype that kernels are computed in.
        weights: :math:`\alpha`, ``(m, c)``.
        mean: b, ``(c,)``.
        penalty: Ridge :math:`\lambda`.
        residual: Relative residual of the linear system.
        scale: Square roots of the anchors' own weights, ``(m,)``; None for 1.
        left_out: Predictions ``(r, c)`` of training rows by fits without them; None where there are none yet.
        rows: Numbers ``(r,)`` of those rows among all ranks' rows; None for all, in order.
    """

    anchors: Tensor
    weights: Tensor
    mean: Tensor
    scale: Tensor | None

    def __init__(
        self,
        kernel: Kernel,
        anchors: Tensor,
        weights: Tensor,
        mean: Tensor,
        penalty: float = 0.0,
        residual: float = 0.0,
        *,
        scale: Tensor | None = None,
        left_out: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.hold(anchors=anchors, weights=weights, mean=mean)
        self.register_buffer("scale", scale)
        self.penalty, self.residual = penalty, residual
        self.left_out, self.rows = left_out, rows
        self._factor: Tensor | None = None

    @override
    def forward(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c)
        x = x.to(self.anchors.dtype)
        # A network would run again for every tile; a user's function may need all columns; autograd sees no tiles.
        whole_rows = isinstance(self.kernel, NetworkKernel) or is_users_own(self.kernel)
        if whole_rows or may_be_differentiated(x, *self.parameters()):
            return self.kernel.matmul(x, self.anchors, self.weights) + self.mean
        return tiled_product(self.kernel, x, self.anchors, self.weights) + self.mean

    def bare(self) -> Solution:
        """The same function without the record of its fit: a layer of a network."""
        return Solution(self.kernel, self.anchors, self.weights, self.mean, self.penalty)

    def predict_left_out(self) -> Tensor | None:  # -> (m, c)
        """Leave-one-out predictions; computed from the system where the solver did not give them."""
        if self.left_out is None and len(self.anchors) > 1:
            # With A = L L^T: alpha = S A^-1 S (y - mean), so that y is S^-1 A S^-1 alpha + mean.
            factor = torch.tril(self.factor_system())
            root = self.weights.new_ones(len(factor)) if self.scale is None else self.scale
            above = torch.where(root > 0, root, 1.0)[:, None]
            solved = self.weights / above
            y = factor @ (factor.mT @ solved) / above + self.mean
            ones = solve_factored(factor, root[:, None])
            left_out = leave_one_out(torch.cat((solved, ones), 1), inverse_diagonal(factor), y, root.square())
            self.left_out = self.fill_unweighted(left_out)
        return self.left_out

    def fill_unweighted(self, left_out: Tensor) -> Tensor:  # (m, c) -> (m, c)
        """Leave-one-out predictions with f itself at rows of weight 0, which the fit does not see anyway."""
        if self.scale is None or bool((self.scale > 0).all()):
            return left_out
        unseen = self.scale == 0
        return left_out.masked_scatter(unseen[:, None], self(self.anchors[unseen]))

    def explain_variance(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        r"""Share of k(x, x) that the anchors explain, :math:`k_x^T (K + \lambda W^{-1})^{-1} k_x / k(x, x)`."""
        anchors, root = self.pick_anchors()
        x = x.to(anchors.dtype)
        shares = [self.weights.new_empty(0, dtype=torch.float64)]
        for part in slices(len(x), block_rows(24 * len(anchors))):
            cross = self.kernel(anchors, x[part]).double()
            if root is not None:
                cross = root[:, None] * cross
            half = torch.linalg.solve_triangular(self.factor_system(), cross, upper=False)
            shares.append(divide_by_prior(half.square().sum(0), self.kernel.diag(x[part])))
        return torch.cat(shares)

    def factor_system(self) -> Tensor:  # -> (m, m)
        """Cholesky factor of S K S + penalty I, below the diagonal; made when first asked for, and not saved."""
        if self._factor is None:
            anchors, root = self.pick_anchors()
            system = compute_fresh_gram(self.kernel, anchors)
            if root is not None:
                system.mul_(root[:, None]).mul_(root)
            system.diagonal().add_(self.choose_noise(system))
            self._factor = cholesky_in_place(system, where="KernelRidge").factor
        return self._factor

    def pick_anchors(self) -> tuple[Tensor, Tensor | None]:
        """The anchors that the variance knows of, in float64, and their scale."""
        return widen_floats(self.anchors), self.scale

    def choose_noise(self, gram: Tensor) -> float:
        """What the variance adds to the diagonal of this Gram matrix."""
        return self.penalty

    @override
    def get_arguments(self) -> dict[str, Any]:
        """The arguments as they are now: left-out predictions may have come later."""
        return {name: getattr(self, name) for name in super().get_arguments()}

    @override
    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._factor = None  # of the old device or dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_factor": None}


def tiled_product(kernel: Kernel, x: Tensor, y: Tensor, v: Tensor) -> Tensor:  # (n, ...), (m, ...), (m, c) -> (n, c)
    """``K(x, y) @ v`` in tiles that stay in the processor's cache: half the time of blocks of whole rows."""
    out = v.new_zeros(len(x), v.shape[1])
    side = math.isqrt(_TILE_BYTES // v.element_size())
    for columns in slices(len(y), side):
        right, part = y[columns], v[columns]
        for rows in slices(len(x), side):
            out[rows].addmm_(kernel.gram(x[rows], right).to(v.dtype), part)
    return out


def table_product(kernel: Kernel, x: Tensor, y: Tensor, v: Tensor) -> Tensor:  # (n, d), (m, d), (m, c) -> (n, c)
    """The same for rows of a table, many of whose columns may mark words: a Laplacian codes these only in one piece."""
    if isinstance(kernel, Laplacian) and x.shape[1] > _CODED:
        return kernel(x, y) @ v
    return tiled_product(kernel, x, y, v)


def divide_by_prior(known: Tensor, prior: Tensor) -> Tensor:  # (n,), (n,) -> (n,)
    """Known variance over the prior's; 1 where the prior is 0."""
    prior = prior.to(known)
    return torch.where(prior > 0, known / prior.where(prior > 0, torch.ones_like(prior)), 1.0)


def compute_fresh_gram(kernel: Kernel, x: Tensor) -> Tensor:  # (n, ...) -> (n, n)
    """The Gram matrix in float64, to be overwritten: a user's kernel may give out a matrix that it holds itself."""
    gram = kernel(x).double()
    return gram.clone() if is_users_own(kernel) else gram


def is_users_own(kernel: Kernel) -> bool:
    """Whether the kernel's values come from code outside the library."""
    return isinstance(kernel, FunctionKernel) or not type(kernel).__module__.startswith("mercer.")


def widen_floats(x: Tensor) -> Tensor:
    """Floats in float64; indices as they are."""
    return x.double() if x.is_floating_point() else x
