"""Distillation: the exact eigenvectors on the rows, then a network that takes their values there."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from .. import checks
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
        x: Rows.
        targets: :math:`\psi` at the rows, of the network's output shape.
        weights: w ``(k,)``.
        plan: Settings; ``deflation`` has no part here.
        generator: Draws the minibatches.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=plan.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.lr, total_steps=max(plan.steps, 2), pct_start=0.1)
    dtype = next(network.parameters()).dtype
    targets, weights = targets.to(dtype), (weights / weights.sum()).to(dtype)
    size = min(plan.batch_size, len(x))
    network.train()
    try:
        for step in range(plan.steps):
            rows = torch.randint(len(x), (size,), generator=generator).to(x.device)
            with torch.enable_grad():
                batch = x[rows].to(dtype) if x.is_floating_point() else x[rows]
                loss = ((network(batch) - targets[rows]).square() * weights).mean()
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
