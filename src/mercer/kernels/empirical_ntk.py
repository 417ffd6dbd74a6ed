"""The neural tangent kernel of a finite network: exact, by finite differences, by JVP, or of low rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import checks
from ..linalg.blocks import apply_to_both, block_rows, slices
from ..signals.layers import trainable, unwrap
from .network import NetworkKernel, seed_from
from .tangents import Tangents

METHODS = ("exact", "finite_difference", "jvp", "low_rank")
_BUDGET = 256 * 2**20  # bytes of Jacobian held at once where `block` is not given


class EmpiricalNTK(NetworkKernel):
    r"""Tangent kernel :math:`k(x, y) = \partial_\theta g(x) \, \partial_\theta g(y)^\top` of a network as it is.

    (deng2022, slide "The modern kernels".) The parameters are those that require grad.

    - ``"exact"``: Jacobians of ``block`` rows at a time, one output at a time for a trace; never n c x p numbers.
    - ``"finite_difference"``: :math:`\tfrac1S \sum_s d_s(x) d_s(y)^\top` with
      :math:`d_s(x) = (g(x, \theta + \epsilon v_s) - g(x, \theta)) / \epsilon` and random signs :math:`v_s`, for which
      :math:`E[v v^\top] = I` (deng2022, slide "Enable the learning of NN-GP kernels and NTKs"); S + 1 forward passes,
      error :math:`O(1 / \sqrt S)`.
    - ``"jvp"``: the same with the exact derivative along :math:`v_s`.
    - ``"low_rank"``: :math:`J(x) Q Q^\top J(y)^\top` for S orthonormal directions Q that span the dominant range of
      :math:`J^\top` on the rows of ``fit`` (randomized range finder by VJP, one power step); below the exact kernel in
      the positive semi-definite order, with the error of the eigenvalues left out. Without ``fit`` the directions are
      found again from the rows of each call.

    Args:
        model: The network, held, not registered.
        outputs: ``"trace"`` -> ``(n, m)``, summed over outputs; ``"full"`` -> ``(n, m, c, c)``; a number picks one.
        method: As above.
        samples: S, directions; the exact method has none.
        block: Rows whose Jacobians are held at once (twice, for x and for y); by default as many as fit 256 MiB.
        epsilon: Step of ``"finite_difference"``; by default :math:`\sqrt{eps} (1 + \|\theta\|) / \|v\|`.
        iterations: Power steps of ``"low_rank"``.
        generator: Decides the directions; one seed is drawn from it, and the kernel is then a fixed function.

    Use it to read the kernel of a network that you have.

    >>> EmpiricalNTK(nn.Linear(2, 1))(torch.eye(2)).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    directions: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        outputs: str | int = "trace",
        method: str = "exact",
        samples: int = 100,
        block: int | None = None,
        epsilon: float | None = None,
        iterations: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(outputs)
        if not isinstance(model, nn.Module):
            raise TypeError(checks.sentence("EmpiricalNTK", "model must be an nn.Module", type(model).__name__))
        if not trainable(model):
            fix = "Unfreeze some with requires_grad_(True)."
            raise ValueError(
                checks.sentence("EmpiricalNTK", "model must have parameters that require grad", "none", fix)
            )
        self._networks = (unwrap(model),)  # in a tuple: held, not registered
        # Options of the methods that compute less than all Jacobians.
        self.method = checks.choice("EmpiricalNTK", "method", method, METHODS)
        self.samples = checks.integer("EmpiricalNTK", "samples", samples, 1)
        if block is not None:
            checks.integer("EmpiricalNTK", "block", block, 1)
        if epsilon is not None:
            checks.positive("EmpiricalNTK", "epsilon", epsilon)
        self.block, self.epsilon = block, epsilon
        self.iterations = checks.integer("EmpiricalNTK", "iterations", iterations, 0)
        self.seed = seed_from(generator)
        self.register_buffer("directions", torch.empty(0))

    @override
    def networks(self) -> Sequence[nn.Module]:
        return self._networks

    def fit(self, x: Tensor) -> Self:  # (n, ...)
        """Find the directions of ``"low_rank"`` on these rows. The other methods ignore it."""
        if self.method == "low_rank":
            x = self.prepare("x", x)
            checks.finite("EmpiricalNTK", "x", x)
            self.directions = self._find_range(x)
        return self

    @override
    def gram(self, x: Tensor, y: Tensor) -> Tensor:  # (n, ...), (m, ...) -> (n, m) or (n, m, c, c)
        if self.method == "exact":
            return self._compute_exact(x, y)
        if self.method == "low_rank" and not self.directions.numel():
            # Without `fit`: directions from the rows of this call.
            rows = x
            if y is not x:
                rows = torch.cat((x, y))
            q = self._find_range(rows)
            return self.join(*apply_to_both(lambda part: self._make_tangents(part).along(part, q), x, y))
        return super().gram(x, y)

    @override
    def gram_diag(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,) or (n, c, c)
        if self.method == "exact":
            return self._compute_exact_diag(x)
        if self.method == "low_rank" and not self.directions.numel():
            return self.gram(x, x).diagonal(dim1=0, dim2=1).movedim(-1, 0)
        return super().gram_diag(x)

    @property
    @override
    def rowwise(self) -> bool:
        return self.method != "low_rank" or self.directions.numel() > 0

    @override
    def features(self, x: Tensor) -> Tensor:  # (n, ...) -> (n, c, S)
        r""":math:`\varphi(x)`, :math:`k(x, y) \approx \varphi(x) \varphi(y)^\top`; for ``"exact"``, the Jacobian."""
        tangents = self._make_tangents(x)
        if self.method == "exact":
            return torch.cat(tangents.jacobian(x), 2)
        if self.method == "low_rank":
            directions = self.directions
            if not directions.numel():
                directions = self._find_range(x)
            return tangents.along(x, directions)
        signs = tangents.random_signs(self.samples, self.seed, x)
        if self.method == "jvp":
            return tangents.along(x, signs) / math.sqrt(self.samples)
        return tangents.differences(x, signs, self.epsilon) / math.sqrt(self.samples)

    def _compute_exact(self, x: Tensor, y: Tensor) -> Tensor:
        tangents = self._make_tangents(x)
        c, block = tangents.outputs(x), self._count_rows(tangents, x)
        if not len(x) or not len(y):
            shape: tuple[int, ...] = (len(x), len(y), c, c)
            if not self.matrix_valued:
                shape = shape[:2]
            return torch.zeros(shape, dtype=checks.floating_dtype(x), device=x.device)
        # Tiles of `block` rows and columns, so that two blocks of Jacobians are held at a time.
        strips: list[list[Tensor]] = []
        for i, rows in enumerate(slices(len(x), block)):
            tiles = []
            for j, columns in enumerate(slices(len(y), block)):
                if y is x and j < i:
                    # Below the diagonal: the mirror image, rows with columns and outputs with outputs exchanged.
                    mirror = strips[j][i].transpose(0, 1)
                    if self.matrix_valued:
                        mirror = mirror.transpose(2, 3)
                    tiles.append(mirror)
                else:
                    tiles.append(self._compute_tile(tangents, x[rows], y[columns], c))
            strips.append(tiles)
        return torch.cat([torch.cat(tiles, 1) for tiles in strips])

    def _compute_exact_diag(self, x: Tensor) -> Tensor:
        tangents = self._make_tangents(x)
        parts = []
        for rows in slices(len(x), self._count_rows(tangents, x)):
            if self.matrix_valued:
                jacobian = tangents.jacobian(x[rows])
                parts.append(sum((j @ j.mT for j in jacobian), x.new_zeros(())))
            else:
                gradients = (tangents.gradient(x[rows], output) for output in range(tangents.outputs(x)))
                parts.append(sum((j.square().sum(1) for gradient in gradients for j in gradient), x.new_zeros(())))
        if not parts:
            return x.new_zeros(0)
        return torch.cat(parts)

    def _compute_tile(self, tangents: Tangents, x: Tensor, y: Tensor, c: int) -> Tensor:
        if self.matrix_valued:
            pairs = zip(tangents.jacobian(x), tangents.jacobian(y), strict=True)
            return sum((self.join(a, b) for a, b in pairs), x.new_zeros(()))
        # One output at a time: a trace needs no products between outputs.
        total = x.new_zeros(())
        for output in range(c):
            rows = tangents.gradient(x, output)
            columns = rows
            if y is not x:
                columns = tangents.gradient(y, output)
            for a, b in zip(rows, columns, strict=True):
                total = total + a @ b.mT
        return total

    def _count_rows(self, tangents: Tangents, x: Tensor) -> int:
        if self.block is not None:
            return self.block
        width = tangents.size  # of one row's Jacobian, of one output at a time where a trace is asked for
        if self.matrix_valued:
            width *= tangents.outputs(x)
        return block_rows(2 * width * tangents.dtype.itemsize, budget=_BUDGET)

    def _find_range(self, x: Tensor) -> Tensor:  # (n, ...) -> (p, r)
        with torch.no_grad():
            return self._make_tangents(x).range_of(x, self.samples, self.iterations, self.seed, self.block)

    def _make_tangents(self, x: Tensor) -> Tangents:
        return Tangents(self._networks[0], x, self.choose)

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        incoming = state_dict.get(prefix + "directions")
        if incoming is not None and incoming.shape != self.directions.shape:
            self.directions = torch.empty_like(incoming, device=self.directions.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
