"""Distillation: the exact eigenvectors on the rows, then a network that takes their values there."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from .. import checks
from ..distributed import broadcast_module
from .neuralef import Training

_log = logging.getLogger("mercer")


def distill(
    network: nn.Module,
    x: Tensor,
    targets: Tensor,
    weights: Tensor,
    plan: Training,
    generator: torch.Generator | None,
) -> None:
    r"""Fit a network to functions known on the rows: minimise :math:`\sum_j w_j \, E (f_j(x) - \psi_j(x))^2`.

    Ctrl-C ends the training, not the fit.

    Args:
        network: ``(n, ...) -> (n, k)`` or ``(n, c, k)``.
        x: Rows, the same on all ranks.
        targets: :math:`\psi` at the rows, of the network's output shape or one with as many numbers.
        weights: w ``(k,)``.
        plan: Settings; the step size rises for a tenth of the steps and falls along a cosine.
        generator: Draws the minibatches.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=plan.lr)
    warm = max(1, plan.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.01 + 0.5 + 0.5 * math.cos(math.pi * step / max(1, plan.steps)))
    )
    dtype = next(network.parameters()).dtype
    targets, weights = targets.to(dtype), (weights / weights.sum()).to(dtype)
    size = min(plan.batch_size, len(x))
    broadcast_module(network)
    network.train()
    try:
        for step in range(plan.steps):
            rows = torch.randint(len(x), (size,), generator=generator).to(x.device)
            with torch.enable_grad():
                batch = x[rows].to(dtype) if x.is_floating_point() else x[rows]
                loss = ((network(batch).reshape(targets[rows].shape) - targets[rows]).square() * weights).mean()
                optimizer.zero_grad()
                loss.backward()
            if not bool(torch.isfinite(loss)):
                fix = "Standardise x, or lower lr."
                raise FloatingPointError(
                    checks.sentence("distill", "the loss must stay finite", f"NaN at step {step}", fix)
                )
            optimizer.step()
            schedule.step()
    except KeyboardInterrupt:
        _log.warning("distill: interrupted at step %d of %d; the map keeps what was learned.", step, plan.steps)
