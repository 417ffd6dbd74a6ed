"""AdaHessian (Yao et al. 2021) with its spatial averaging, a rival of chen2022."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT
from typing_extensions import override

__all__ = ["AdaHessian"]

MEAN, SQUARE, STEP = "mean", "square", "step"


class AdaHessian(Optimizer):
    r"""Adam with the diagonal of the Hessian in the place of the gradient's square (Yao et al. 2021, Algorithm 1).

    :math:`D = |z \odot H z|` for random signs z, averaged over the places of each convolution filter (their Eq. 10);
    :math:`\bar D^2` is its running mean square, and :math:`w' = w - \eta\, \hat m / (\hat D^k + \epsilon)`.

    Call ``loss.backward(create_graph=True)`` before ``step()``.

    Args:
        params: Parameters or groups.
        lr: :math:`\eta`.
        betas: Decay of the mean and of the mean square.
        power: k, the Hessian power.
        eps: :math:`\epsilon`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.15,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        power: float = 1.0,
        eps: float = 1e-4,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "power": power, "eps": eps})

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the gradients must carry their graph."""
        live = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        signs = [torch.randint(0, 2, p.shape, dtype=p.dtype, device=p.device).mul_(2).sub_(1) for p in live]
        products = torch.autograd.grad([p.grad for p in live], live, signs, allow_unused=True)
        diagonal = {p: averaged(z * h) if h is not None else torch.zeros_like(p)
                    for p, z, h in zip(live, signs, products, strict=True)}  # fmt: skip
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p in diagonal:
                        self._move(p, diagonal[p], group)

    def _move(self, p: Tensor, diagonal: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[p], p.grad
        assert gradient is not None
        if not state:
            state |= {STEP: 0, MEAN: torch.zeros_like(p), SQUARE: torch.zeros_like(p)}
        state[STEP] += 1
        first, second = group["betas"]
        state[MEAN].lerp_(gradient.detach(), 1 - first)
        state[SQUARE].mul_(second).addcmul_(diagonal, diagonal, value=1 - second)
        scale = (state[SQUARE].sqrt() / math.sqrt(1 - second ** state[STEP])) ** group["power"] + group["eps"]
        p.addcdiv_(state[MEAN], scale, value=-group["lr"] / (1 - first ** state[STEP]))


def averaged(diagonal: Tensor) -> Tensor:
    """Absolute values; a convolution's averaged over the places of each filter (their Eq. 10)."""
    absolute = diagonal.detach().abs()
    if absolute.ndim <= 2:
        return absolute
    places = tuple(range(2, absolute.ndim))
    return absolute.mean(places, keepdim=True).expand_as(absolute)
