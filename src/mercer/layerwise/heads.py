"""The last layer: kernel machines on what the layers before made of the rows, chosen and fitted by leave-one-out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Kernel
from ..machines import KernelRidge, StackedRidge
from ..machines.dual import dual_fit, tune_penalty
from ..machines.landmarks import LandmarkMachine, landmark_count, landmark_machine
from ..machines.selection import candidate_kernels, median_distance, narrowed, rank_kernels
from ..machines.trials import convex_weights
from ..rows import Rows
from .dependence import gaussian
from .network import AverageLayer, KernelLayer, StackLayer
from .search import Setting

_LEAST_SHARE = 0.03  # a machine of less weight goes
_SHRINK = 0.05  # of the shares towards equal ones
_HEDGE = 0.1  # the same between networks: leave-one-out is too good for a learned metric
_MACHINES, _LARGE = 3, 1500  # machines that stay; two beyond so many rows
_WIDE = 200  # columns beyond which the distance column by column costs more than it gives
_REFINING_ROWS = 1500  # rows on which the kernels that few rows chose are compared again, narrower too
_NARROWER = (1.0, 0.7, 0.5)


class Ending(NamedTuple):
    """A fitted last layer.

    Attributes:
        head: The layer.
        held_out: ``(r, c)``, predictions of ``rows`` by fits without them.
        rows: ``(r,)``, numbered over all ranks.
        error: Their mean squared error.
        penalty: The ridge of the machine of largest share.
        sums: What an exact update needs; None where every row is an anchor.
    """

    head: KernelLayer | StackLayer
    held_out: Tensor
    rows: Tensor
    error: float
    penalty: float
    sums: LandmarkMachine | None


def fit_gaussian(z: Tensor, y: Tensor, setting: Setting, middle: float) -> Ending:
    """One Gaussian machine on every row: the ridge by a walk, the bandwidth or 0.7 of it."""
    bandwidth = setting.multiple * middle
    best = tune_penalty(gaussian(bandwidth)(z), y, setting.penalty)
    trial = dual_fit(gaussian(0.7 * bandwidth)(z), y, best.penalty)
    if trial.error < best.error:
        best, bandwidth = trial, 0.7 * bandwidth
    head = KernelLayer(z, best.weights, best.mean, bandwidth)
    return Ending(head, best.held_out, torch.arange(len(z)), best.error, best.penalty, None)


def fit_stack(z: Tensor, y: Tensor, order: Tensor, kernels: list[Kernel] | None) -> Ending:
    """Machines on every row, few chosen by 400 rows, averaged by their leave-one-out predictions.

    Args:
        z: Rows, ``(n, d)``.
        y: Targets, ``(n, c)``.
        order: A random order of the rows.
        kernels: To choose from; None for all.
    """
    chosen = _carrying(z[order], y[order], kernels)[: _MACHINES if len(z) <= _LARGE else _MACHINES - 1]
    fits = [(kernel, tune_penalty(kernel(z), y, penalty)) for kernel, penalty in chosen]
    shares = convex_weights([fit.held_out for _, fit in fits], y, shrink=_SHRINK)
    kept = [(share, *fit) for share, fit in zip(shares.tolist(), fits, strict=True) if share > _LEAST_SHARE]
    total = sum(share for share, _, _ in kept)
    held_out = torch.stack([share / total * fit.held_out for share, _, fit in kept]).sum(0)
    _, heaviest, best = max(kept, key=lambda item: item[0])
    head = StackLayer(
        [kernel for _, kernel, _ in kept],
        torch.tensor([share / total for share, _, _ in kept], dtype=torch.float64),
        z,
        torch.stack([fit.weights for _, _, fit in kept]),
        best.mean,
        length_scale(heaviest, z),
    )
    error = float((y - held_out).square().mean())
    return Ending(head, held_out, torch.arange(len(z)), error, best.penalty, None)


def averaged(modules: list[nn.Module], ending: Ending, x: Tensor, y: Tensor, seed: int) -> tuple[AverageLayer, Ending]:
    """The network averaged with stacked machines on other views of the columns, by leave-one-out predictions.

    Args:
        modules: The network before its last layer.
        ending: Its last layer, on every row.
        x: Rows as they came, ``(n, d)``.
        y: Targets, ``(n, c)``.
        seed: Random seed of the rows that choose.
    """
    other = StackedRidge(random_state=seed).fit(x, y)
    rows, truth, before = other.left_out_, y[other.left_out_], ending.held_out[other.left_out_]
    own, theirs = convex_weights([before, other.loo_], truth, shrink=_HEDGE).tolist()
    branches, shares = [[*modules, ending.head]], [own]
    for number, view in enumerate(other.views_):
        here = [
            (share, m) for share, m in zip(other.shares_.tolist(), other.machines_, strict=True) if m.view == number
        ]
        total = sum(share for share, _ in here)
        inner = torch.tensor([share / total for share, _ in here], dtype=torch.float64)
        weights = torch.stack([machine.weights.double() for _, machine in here])
        seen = view(other.rows_).double()
        kernels = [machine.kernel for _, machine in here]
        branches.append([view, StackLayer(kernels, inner, seen, weights, other.mean_, median_distance(seen))])
        shares.append(theirs * total)
    held_out = own * before + theirs * other.loo_
    layer = AverageLayer(branches, torch.tensor(shares, dtype=torch.float64))
    error = float((truth - held_out).square().mean())
    return layer, ending._replace(held_out=held_out, rows=rows, error=error)


def fit_all_rows(z: Tensor, y: Tensor, few: Tensor, few_y: Tensor, kernel: Kernel | None, seed: int) -> Ending:
    """One machine on every row by EigenPro, in float32: ``z`` this rank's rows, ``few`` some of all ranks'."""
    kernel = refined_kernel(few, few_y) if kernel is None else kernel
    machine = KernelRidge(kernel, solver="eigenpro", random_state=seed).fit(z.float(), y)
    rows, held_out = machine.held_out()
    held_out = held_out.double()
    error = float((Rows(y).take(rows) - held_out).square().mean())
    weights = machine.weights_[None]
    one = torch.ones(1, dtype=torch.float64)
    head = StackLayer([kernel], one, machine.anchors_, weights, machine.mean_, length_scale(kernel, few))
    return Ending(head, held_out, rows, error, machine.penalty_, None)


def fit_from_landmarks(
    z: Tensor, y: Tensor, kernel: Kernel, bandwidth: float | None, m: int | None, generator: torch.Generator | None
) -> Ending:
    """One machine from landmarks: sums over rows, which can go on."""
    n = Rows(z).n
    machine, solution = landmark_machine(kernel, z, y, landmark_count(n, m), None, generator)
    found = [machine.held_out(solution, phi, y[part]) for part, phi in machine.features(kernel, z)]
    held_out, targets = Rows(torch.cat([*found, y[:0]]), y).gather()
    weights = machine.whitener @ solution.coefficients[:, :-1]
    error = float((targets - held_out).square().mean())
    head: KernelLayer | StackLayer
    if bandwidth is not None:
        head = KernelLayer(machine.landmarks, weights, machine.mean, bandwidth)
    else:
        scale = length_scale(kernel, machine.landmarks)
        head = StackLayer([kernel], weights.new_ones(1), machine.landmarks, weights[None], machine.mean, scale)
    return Ending(head, held_out, torch.arange(n), error, solution.penalty, machine)


def length_scale(kernel: Kernel, z: Tensor) -> float:
    """The distance at which the kernel falls to half of k(z, z); the median distance where it does not fall."""
    middle = median_distance(z)
    start = z[:1].double()
    steps = torch.logspace(-3, 2, 60, dtype=torch.float64)[:, None] * middle
    direction = torch.full_like(start, start.shape[1] ** -0.5)
    values = kernel(start, start + steps * direction)[0] / kernel.diag(start).clamp_min(1e-300)
    below = (values < 0.5).nonzero()
    return float(steps[below[0, 0], 0]) if len(below) else middle


def _carrying(z: Tensor, y: Tensor, kernels: list[Kernel] | None) -> list[tuple[Kernel, float]]:
    """The kernels that carry weight on the first 400 rows, heaviest first, with their penalties."""
    ranked = rank_kernels(z, y, kernels or _candidates(z))
    shares = convex_weights([choice.fit.held_out for choice in ranked], y[: len(ranked[0].fit.held_out)])
    heavy = [i for i in shares.argsort(descending=True).tolist() if float(shares[i]) > _LEAST_SHARE]
    return [(ranked[i].kernel, ranked[i].fit.penalty) for i in heavy or [0]]


def _candidates(z: Tensor) -> list[Kernel]:
    found = candidate_kernels(z)
    return found if z.shape[1] <= _WIDE else found[3:]  # the first three go column by column


def refined_kernel(z: Tensor, y: Tensor) -> Kernel:
    """The kernel for many rows: those that few rows chose, as they are and narrower, compared on more rows."""
    seen, known = z[:_REFINING_ROWS].double(), y[:_REFINING_ROWS]
    trials = []
    falling = [kernel for kernel in _candidates(seen) if narrowed(kernel, 1.0) is not None]
    for choice in rank_kernels(seen, known, falling)[:3]:
        for factor in _NARROWER:
            kernel = choice.kernel if factor == 1 else narrowed(choice.kernel, factor)
            if kernel is not None:
                trials.append((tune_penalty(kernel(seen), known, choice.fit.penalty).error, kernel))
    return min(trials, key=lambda trial: trial[0])[1]
