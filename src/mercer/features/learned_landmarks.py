"""Landmarks for eigenfunctions: chosen among the rows, then moved uphill."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ..distributed import global_slice
from ..kernels import Kernel
from ..linalg import cholesky
from ..modules import Readable
from .landmarks import sample, select
from .neuralef import Training

_log = logging.getLogger("mercer")


def choose(kernel: Kernel, x: Readable, m: int, generator: torch.Generator | None) -> Tensor:  # (n, ...) -> (m, ...)
    """Centres of k-means for rows of numbers, uniform rows for pictures and for indices."""
    plain = x.is_floating_point() and x.ndim == 2 and m < global_slice(len(x))[1]
    return select(kernel, x, m, "kmeans" if plain else "uniform", generator).detach().clone()


def learn(
    kernel: Kernel, x: Readable, z: Tensor, k: int, plan: Training, spread: float, generator: torch.Generator | None
) -> Tensor:  # (n, d), (m, d) -> (m, d)
    r"""Landmarks moved to capture more of the kernel: maximise :math:`\sum_{j \le k} \hat\mu_j(z)^2`.

    :math:`\hat\mu_j` are the eigenvalues of the Nystrom operator on a minibatch; the squared error of the best rank-k
    approximation is what their squares leave of :math:`\|K / n\|^2`. The step size is in units of the data's
    ``spread``. Ctrl-C ends the training, not the fit.
    """
    z = z.double().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=plan.lr * spread)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, plan.steps))
    size = min(plan.batch_size, global_slice(len(x))[1])
    try:
        for _ in range(plan.steps):
            batch = sample(x, size, generator).double()
            with torch.enable_grad():
                inner = kernel(z)
                ridge = 1e-8 * inner.detach().diagonal().mean()
                factor = cholesky(inner + ridge * torch.eye(len(z), dtype=z.dtype, device=z.device)).factor
                phi = torch.linalg.solve_triangular(factor, kernel(z, batch), upper=False)  # (m, b)
                values = torch.linalg.eigvalsh(phi @ phi.mT / size)
                loss = -values[-k:].square().sum() / values.detach()[-k:].square().sum()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            schedule.step()
    except KeyboardInterrupt:
        _log.warning("landmarks: interrupted; the map keeps what was learned.")
    return z.detach()
