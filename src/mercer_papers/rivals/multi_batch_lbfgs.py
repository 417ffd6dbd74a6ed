"""Robust multi-batch L-BFGS (Berahas, Nocedal and Takac 2016), a rival of chen2022."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from mercer import checks
from mercer.optim.base import CheckedOptimizer, Closure

MOVES, CHANGES = "s", "y"  # (pairs, parameters), newest last, kept where steps are counted


class MultiBatchLBFGS(CheckedOptimizer):
    r"""L-BFGS whose curvature pairs are made on samples that two batches share.

    :math:`w' = w - \eta H g^{S}`, :math:`s = w' - w`, :math:`y = g^{O}(w') - g^{O}(w)` with O the overlap of this
    batch S and the next: differences of gradients on different samples are noise, not curvature (Berahas et al.
    2016, Algorithm 1). A pair enters only if :math:`y^\top s > \epsilon \|s\|^2`.

    ``step(closure, overlap)`` computes y on the overlap alone, in two more passes over it. ``step(closure)`` takes the
    whole batch as the overlap, in one more pass.

    Args:
        params: Parameters, named parameters or groups.
        lr: :math:`\eta`; a group's own scales its part of the step.
        history: Pairs kept.
        caution: :math:`\epsilon`.
        maximize: Ascend.
    """

    remembers = False  # not every step has a pair

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        history: int = 10,
        caution: float = 1e-4,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr}, maximize=maximize)
        self.history = checks.integer("MultiBatchLBFGS", "history", history, 1)
        self.caution = checks.non_negative("MultiBatchLBFGS", "caution", caution)
        self._overlap: Closure | None = None

    @override
    def step(self, closure: Closure | None = None, overlap: Closure | None = None) -> Any:
        """One step.

        Args:
            closure: Clears the gradients, evaluates the loss of the batch, calls backward, returns the loss.
            overlap: The same for the rows that the next batch has too; None means all rows of this one.
        """
        if closure is None:
            fix = "Pass step a closure that evaluates the loss and calls backward."
            raise RuntimeError(checks.sentence("MultiBatchLBFGS", "step needs a closure", "None", fix))
        self._overlap = overlap
        try:
            return super().step(closure)
        finally:
            self._overlap = None  # it holds the batch

    @override
    def update(self, live: list[Tensor], closure: Closure | None) -> None:
        assert closure is not None
        # the gradient on the batch, and on the rows that the next batch has too: all of this one, if none were named
        gradient = before = _flat([p.grad for p in live])
        again = closure
        if self._overlap is not None:
            again = self._overlap
            before = self._gradient_of(live, again)
        # the step, by the pairs so far
        s = self._rates(live) * two_loop(gradient, *self._pairs(gradient))
        sizes = [p.numel() for p in live]
        for p, part in zip(live, s.split(sizes), strict=True):
            p.add_(part.reshape(p.shape))
        # the change of the gradient on the rows that both batches have
        y = self._gradient_of(live, again) - before
        if self.param_groups[0]["maximize"]:
            y = -y  # the curvature is that of -J, the direction H g the same
        if bool(y @ s > self.caution * (s @ s)):
            self._remember(s, y)
        for p, part in zip(live, gradient.split(sizes), strict=True):
            p.grad = part.reshape(p.shape).to(p.dtype)

    def _rates(self, live: list[Tensor]) -> Tensor:  # (N,)
        """The factor of the direction: minus each group's rate, or plus where all maximize."""
        rates = {id(p): float(group["lr"]) for group in self.param_groups for p in group["params"]}
        sign = 1.0 if self.param_groups[0]["maximize"] else -1.0
        return torch.cat([p.new_full((p.numel(),), sign * rates[id(p)]) for p in live])

    def _gradient_of(self, live: list[Tensor], closure: Closure) -> Tensor:
        with torch.enable_grad():
            closure()
        return _flat([torch.zeros_like(p) if p.grad is None else p.grad for p in live])

    def _pairs(self, like: Tensor) -> tuple[Tensor, Tensor]:
        state = self._first_state()
        none = like.new_zeros(0, len(like))
        s, y = state.get(MOVES, none), state.get(CHANGES, none)
        if s.shape[1] != len(like):
            fix = "Keep the same parameters trainable, or start a new optimizer."
            need = f"the gradient must have the {s.shape[1]} numbers of earlier steps"
            raise ValueError(checks.sentence("MultiBatchLBFGS", need, len(like), fix))
        return s, y

    def _remember(self, s: Tensor, y: Tensor) -> None:
        state = self._first_state()
        old = self._pairs(s)
        for key, pairs, new in ((MOVES, old[0], s), (CHANGES, old[1], y)):
            # a copy, not a view: sums depend on alignment, and a resumed run must repeat them to the bit
            state[key] = torch.cat((pairs, new[None]))[-self.history :].clone()


def two_loop(gradient: Tensor, s: Tensor, y: Tensor) -> Tensor:  # (N,), (pairs, N), (pairs, N) -> (N,)
    r"""H g by the two-loop recursion from :math:`H_0 = \frac{s^\top y}{y^\top y} I` of the newest pair.

    Args:
        gradient: g.
        s: Steps, newest last.
        y: Changes of the gradient over them.
    """
    q = gradient.clone()
    rho = 1 / (s * y).sum(1)
    alpha = torch.zeros_like(rho)
    for i in reversed(range(len(s))):
        alpha[i] = rho[i] * (s[i] @ q)
        q -= alpha[i] * y[i]
    if len(s):
        q *= (s[-1] @ y[-1]) / (y[-1] @ y[-1])
    for i in range(len(s)):
        q += (alpha[i] - rho[i] * (y[i] @ q)) * s[i]
    return q


def _flat(tensors: list[Any]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])
