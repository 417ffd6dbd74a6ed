"""NeuralEF, Algorithm 1 of deng2022: train networks to be the eigenfunctions, minibatch by minibatch."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel, NetworkKernel
from ..linalg.blocks import slices
from ..linalg.cholesky import shift_diagonal
from ..rows.agreement import has_several_ranks, share_weights
from ..rows.rows import Rows
from ..rows.stored import Readable
from .parallel_networks import L2BatchNorm

DEFLATIONS = ("first_order", "cholesky")
_KEPT_NUMBERS = 2**26  # of a network kernel's features of all rows
_log = logging.getLogger("mercer")


@dataclass(frozen=True)
class Training:
    """How networks are trained; our choice where the slides give none.

    Args:
        steps: Iterations of Algorithm 1.
        batch_size: B.
        lr: Step size of Adam, which falls to a tenth along a cosine. 1e-3 leaves the toy's third function behind.
        deflation: ``"first_order"``, the paper's sum, or ``"cholesky"``.
        ema: Weight of a batch in the running eigenvalues and in the running mean squares.
    """

    steps: int
    batch_size: int = 256
    lr: float = 1e-2
    deflation: str = "first_order"
    ema: float = 0.1


def deflate(psi: Tensor, gram: Tensor, deflation: str) -> Tensor:  # (b, k), (b, b) -> (b, k)
    r"""Functions less what the earlier ones explain, as the gradient formula has them.

    ``"first_order"``: :math:`\hat\psi_j - \sum_{i<j} \frac{\hat\psi_i^\top K \hat\psi_j}{\hat\psi_i^\top K \hat\psi_i}
    \hat\psi_i` (deng2022, gradient on slide "DNNs as eigenfunctions"). It removes twice what two earlier functions
    share. ``"cholesky"``: the residual of :math:`\hat\psi_j` on all earlier ones in the inner product of K,
    :math:`(\Psi L^{-\top})_j L_{jj}` with :math:`L L^\top = \Psi^\top K \Psi`, exact also before they are orthogonal.
    The factor carries a jitter of 1e-6 of the mean diagonal, so that a kernel of low rank does not break it.
    """
    r = psi.mT @ (gram @ psi)  # (k, k)
    if deflation == "first_order":
        # The upper triangle of r, each row over its diagonal: what function i explains of those after it.
        diagonal = r.diagonal()
        divisor = torch.where(diagonal > 0, diagonal, torch.ones_like(diagonal))
        return psi - psi @ torch.triu(r / divisor[:, None], 1)
    # Exact: the columns of Psi L^-T are orthonormal in K, so column j times L_jj is the residual.
    jitter = 1e-6 * r.diagonal().mean().clamp_min(torch.finfo(r.dtype).tiny)
    factor, info = torch.linalg.cholesky_ex(shift_diagonal(r, jitter))
    if int(info):
        return deflate(psi, gram, "first_order")
    inverse = torch.linalg.solve_triangular(factor.mT, torch.diag(factor.diagonal()), upper=True)
    exact: Tensor = psi @ inverse
    return exact


def compute_gradient(psi: Tensor, gram: Tensor, deflation: str = "first_order") -> Tensor:  # (b, k), (b, b) -> (b, k)
    r"""Gradient of the loss with respect to the outputs: :math:`-\frac{2}{B^2} K (\hat\psi_j - \dots)`.

    Earlier functions are constants in it (stop-gradient), so that function j never bends those before it.
    """
    return (-2 / len(psi) ** 2) * (gram @ deflate(psi, gram, deflation))


def train(
    network: nn.Module,
    norm: L2BatchNorm,
    kernel: Kernel,
    x: Readable,
    plan: Training,
    generator: torch.Generator | None,
) -> Tensor:  # -> (k,)
    """Run Algorithm 1 on minibatches of the rows of all ranks, gathered; the running eigenvalues.

    Ctrl-C ends the training, not the fit: what was learned so far is kept, and the log says so.

    Args:
        network: ``(n, ...) -> (n, k)``, or ``(n, c, k)`` for a matrix-valued kernel.
        norm: Normalizes its columns to a mean square of 1.
        kernel: k; Gram matrices of minibatches only. Of a kernel of networks the features of all rows are kept where
            they are at most 2^26 numbers, so that a step runs none of its networks.
        x: Rows, this rank's.
        plan: Settings.
        generator: Draws the minibatches, the same on all ranks.
    """
    # Adam, and running means that start from nothing.
    optimizer = torch.optim.Adam(network.parameters(), lr=plan.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, plan.steps), plan.lr / 10)
    dtype = next(network.parameters()).dtype
    running = torch.zeros(norm.num_features, dtype=torch.float64, device=x.device)
    data = Rows(x)
    size = min(plan.batch_size, data.n)

    # Features of a kernel of networks are computed once for all rows where they fit: a step then runs none of them.
    features: Tensor | None = None
    if isinstance(kernel, NetworkKernel) and kernel.rowwise and not has_several_ranks():
        with torch.no_grad():
            if kernel.features(kernel.prepare("x", x[:1])).numel() * len(x) <= _KEPT_NUMBERS:
                blocks = [kernel.features(kernel.prepare("x", x[part])) for part in slices(len(x), 1024)]
                features = torch.cat(blocks)

    share_weights(network)
    network.train()
    norm.train()
    try:
        for step in range(plan.steps):
            # A minibatch and its Gram matrix.
            rows = torch.randperm(data.n, generator=generator)[:size].to(x.device)
            batch = data.take(rows)
            if features is not None and isinstance(kernel, NetworkKernel):
                gram = kernel.join(features[rows], features[rows]).to(dtype)
            else:
                gram = kernel(batch).to(dtype)
            if gram.ndim == 4:  # (b, b, c, c): a matrix for each pair, as (b c, b c)
                gram = gram.transpose(1, 2).flatten(2).flatten(0, 1)

            # The functions at its rows, of mean square 1, and the gradient of the loss with respect to them.
            with torch.enable_grad():
                raw = network(checks.cast_floats(batch, dtype))
                psi = norm(raw.reshape(-1, norm.num_features))  # (b c, k)
                psi = psi * (size / len(psi)) ** 0.5  # mean over rows, not over outputs, is 1
            gradient = compute_gradient(psi.detach(), gram, plan.deflation) * (len(psi) / size) ** 2
            if not bool(torch.isfinite(gradient).all()):
                fix = "Standardise x, or lower lr."
                raise FloatingPointError(
                    checks.sentence("neuralef", "the loss must stay finite", f"NaN at step {step}", fix)
                )

            # One step of Adam; the running eigenvalues psi^T K psi / B^2.
            optimizer.zero_grad()
            psi.backward(gradient)
            optimizer.step()
            schedule.step()
            values = (psi.detach() * (gram @ psi.detach())).sum(0).double() / size**2
            running += max(plan.ema, 1 / (step + 1)) * (values - running)
    except KeyboardInterrupt:
        _log.warning("neuralef: interrupted at step %d of %d; the map keeps what was learned.", step, plan.steps)
    return running
