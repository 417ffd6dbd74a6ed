"""Fitters that train a network: by Algorithm 1 of deng2022, or to take the values of the exact eigenvectors."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from .. import checks
from ..kernels import NetworkKernel
from ..rows.agreement import share_weights
from ..rows.stored import Readable
from .bases import HiddenBasis, NetworkBasis, OutputBasis, hidden_width
from .landmark_fit import decompose
from .landmarks import widen
from .neuralef import Training, train
from .parallel_networks import L2BatchNorm, ParallelNetworks, Trunk
from .rayleigh_ritz import Pairs, Task, exact_functions, measure_center_and_spread, normalize_functions, ritz

_log = logging.getLogger("mercer")
_HIDDEN = 1024  # functions that Rayleigh-Ritz takes from a network at most


def fit_neuralef(task: Task) -> tuple[NetworkBasis, Pairs]:
    """Algorithm 1 on minibatches, then Rayleigh-Ritz on the hidden features."""
    # Train, in the paper's order of functions.
    centre, spread = _measure_rows(task.rows, task.outputs)
    network = task.network or _make_parallel(centre.shape, task.k, task.outputs, task.generator).to(task.rows.device)
    trained = OutputBasis(network, centre, spread)
    norm = L2BatchNorm(task.k, momentum=task.training.ema).to(task.rows.device)
    values = train(trained, norm, task.kernel, task.rows, task.training, task.generator)
    _freeze(network, task.rows.dtype)
    if task.ritz:
        return _combine_functions(task, trained)
    order = values.argsort(descending=True)
    eye = torch.eye(task.k, dtype=torch.float64, device=task.rows.device)
    return _keep_functions(task, trained, values[order].clamp_min(0), eye[:, order])


def fit_distilled(task: Task) -> tuple[NetworkBasis, Pairs]:
    """The exact eigenvectors on the sample, a network that takes their values, then Rayleigh-Ritz."""
    # The eigenvectors, as functions at the rows.
    sample, k, c = task.sample, task.k, task.outputs
    if isinstance(task.kernel, NetworkKernel):
        values, functions = exact_functions(task.kernel, sample, k, floor=task.resolution * len(sample))
    else:
        exact = decompose(task.kernel, sample, k)
        values, functions = exact.pairs.values, exact.functions

    # A network that takes their values; the leading ones weigh more.
    centre, spread = _measure_rows(task.rows, c)
    network = task.network
    if network is None:
        network = Trunk(centre.shape, k, outputs=c, generator=task.generator).to(task.rows.device)
    trained = OutputBasis(network, centre, spread)
    weights = (values / values[:1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt()
    distill(trained, sample, functions.reshape(len(sample), c, k), weights, task.training, task.generator)
    _freeze(network, task.rows.dtype)
    if task.ritz:
        return _combine_functions(task, trained)
    eye = torch.eye(k, dtype=torch.float64, device=task.rows.device)
    return _keep_functions(task, trained, values, eye * (values > 0))


def distill(
    network: nn.Module, x: Tensor, targets: Tensor, weights: Tensor, plan: Training, generator: torch.Generator | None
) -> None:
    r"""Fit a network to functions known on the rows: minimize :math:`\sum_j w_j \, E (f_j(x) - \psi_j(x))^2`.

    Ctrl-C ends the training early; the fit still completes.

    Args:
        network: ``(n, ...) -> (n, k)`` or ``(n, c, k)``.
        x: Rows, the same on all ranks.
        targets: :math:`\psi` at the rows, of the network's output shape or one with as many numbers.
        weights: w ``(k,)``.
        plan: Settings; the step size rises for a tenth of the steps and falls along a cosine.
        generator: Draws the minibatches.
    """
    # Adam with a step size that rises, then falls along a cosine; the network starts the same on all ranks.
    optimizer = torch.optim.AdamW(network.parameters(), lr=plan.lr)
    warm = max(1, plan.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.01 + 0.5 + 0.5 * math.cos(math.pi * step / max(1, plan.steps)))
    )
    dtype = next(network.parameters()).dtype
    targets, weights = targets.to(dtype), (weights / weights.sum()).to(dtype)
    size = min(plan.batch_size, len(x))
    share_weights(network)
    network.train()
    try:
        for step in range(plan.steps):
            # The weighted squared distance on a minibatch.
            rows = torch.randint(len(x), (size,), generator=generator).to(x.device)
            with torch.enable_grad():
                batch = checks.cast_floats(x[rows], dtype)
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


def blank_network_basis(
    network: nn.Module | None, method: str, k: int, ritz: bool, centre: Tensor, spread: Tensor, dtype: torch.dtype
) -> NetworkBasis:
    """The basis that a fit of these arguments ends with, to load a state into."""
    c = len(spread)
    if network is None and method == "distill":
        network = Trunk(centre.shape, k, outputs=c)
        _freeze(network.to(centre.device), dtype)
    elif network is None:
        network = _make_parallel(centre.shape, k, c, None)
        _freeze(network.to(centre.device), dtype)
    trained = OutputBasis(network, torch.empty_like(centre), torch.empty_like(spread))
    if ritz:
        return _ritz_basis(trained, k)
    return trained


def _combine_functions(task: Task, trained: OutputBasis) -> tuple[NetworkBasis, Pairs]:
    """Rayleigh-Ritz on the network's hidden features; what is below 100 roundings of them is noise."""
    basis = _ritz_basis(trained, task.k)
    values = basis(task.sample)
    floor = 100 * torch.finfo(values.dtype).eps
    pairs = ritz(task.operator, values, task.k, rows=len(task.sample), floor=floor)
    return basis, normalize_functions(basis, pairs, task.rows)


def _ritz_basis(trained: OutputBasis, k: int) -> NetworkBasis:
    """The hidden features where the network has any and they are not too many, else its outputs."""
    width = hidden_width(trained.network)
    if width is None or width * trained.outputs > max(_HIDDEN, k):
        return trained
    return HiddenBasis(trained.network, trained.centre, trained.spread)


def _keep_functions(task: Task, basis: OutputBasis, values: Tensor, rotation: Tensor) -> tuple[NetworkBasis, Pairs]:
    """The network's own outputs as functions, with their residuals on the sample, at mean square 1 over all rows."""
    pairs = normalize_functions(basis, Pairs(values, rotation, values), task.sample)
    functions = basis(widen(task.kernel, task.sample)).double() @ pairs.rotation
    return basis, normalize_functions(
        basis, Pairs(values, pairs.rotation, task.residuals(functions, values)), task.rows
    )


def _measure_rows(x: Readable, c: int) -> tuple[Tensor, Tensor]:
    if x.is_floating_point():
        centre, spread = measure_center_and_spread(x)
        return centre, spread.repeat(c)
    centre = torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
    return centre, centre.new_ones(c)  # indices and tokens are no numbers


def _make_parallel(shape: torch.Size, k: int, c: int, generator: torch.Generator | None) -> ParallelNetworks:
    # Many functions get narrow networks, so that Rayleigh-Ritz can take all hidden features.
    width = max(4, min(32, _HIDDEN // (2 * k)))
    return ParallelNetworks(shape.numel(), k, outputs=c, width=width, generator=generator)


def _freeze(network: nn.Module, dtype: torch.dtype) -> None:
    """Our own networks become constants; small ones in float64, because Rayleigh-Ritz takes small differences."""
    network.eval()
    if isinstance(network, ParallelNetworks | Trunk):
        network.requires_grad_(False)
        if isinstance(network, ParallelNetworks):
            dtype = torch.float64
        network.to(torch.promote_types(dtype, torch.float32))  # half precision and indices: float32
