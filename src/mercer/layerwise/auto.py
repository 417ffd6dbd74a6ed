r"""The default solver: stacked kernel ridge that may look through a metric it learns, all chosen by leave-one-out.

The network has a stem and machines. The *stem* puts the columns on one scale and may hold metrics: the square root of
the average gradient outer product of the kernel machine fitted in the metric before it, or of its diagonal. The
*machines* are kernel ridges on what the stem makes of the rows. Where nothing else was asked for, stem and machines
join a :class:`~mercer.machines.StackedRidge`, the learner of the tables, as one more member.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel
from ..linalg.distances import squared_distances
from ..machines import StackedRidge
from ..machines.dual import dual_fit, dual_path, tune_penalty
from ..machines.eigenpro import EigenPro
from ..machines.exact import Exact
from ..machines.kernel_ridge import seeded
from ..machines.landmarks import Landmarks
from ..machines.metric import average_gradient_outer_product, metric_root
from ..machines.selection import candidate_kernels, median_distance, rank_kernels
from ..machines.solution import Solution
from ..machines.trials import convex_weights
from ..rows import Rows
from ..rows.rows import BLOCK_BYTES
from .dependence import gaussian
from .network import AverageLayer, FittedNetwork, Indicators, MetricLayer, Standardize
from .record import measure_gram

EXACT_ROWS = 3000
"""Rows up to which the Gram matrix is held; beyond, every row still takes part, by EigenPro."""

# The stem.
_PILOT = 250  # rows of the search for bandwidth and penalty
_MULTIPLES = [0.15, 0.25, 0.4, 0.65, 1.1]  # bandwidths tried, over the median distance
_LEVELS = 8  # values a feature may take for its levels to be tried as columns of their own
_HALF = 500  # rows of a half that decides on the metric
_METRIC_ROWS = 1000  # rows a metric is learned from
_FULL_WIDTH = 1500  # features up to which a full metric is learned; beyond, weights
_NEAR = 1.0  # standard errors within which losses count as equal: the simpler network is taken
_METRIC_WIDTH = 50  # columns beyond which many rows need no learned metric: they tell the directions apart themselves
_COMPONENTS_FROM, _COMPONENTS = 150, 100  # columns from which many rows are projected on so many directions
_BLOCK = 5000  # rows of a block

# The machines.
_LEAST_SHARE = 0.03  # a machine of less weight goes
_SHRINK = 0.05  # of the shares towards equal ones
_HEDGE = 0.1  # the same between the network and the stack: leave-one-out is too good for a learned metric
_MACHINES, _LARGE = 3, 1500  # machines that stay; two beyond so many rows
_WIDE = 200  # columns beyond which the distance column by column costs more than it gives
_REFINING_ROWS = 1500  # rows on which the kernels that few rows chose are compared again, narrower too
_NARROWER = (1.0, 0.7, 0.5)
_GAUSSIAN_STEP = 0.75  # by which the Gaussian's bandwidth shrinks for many rows, while the error falls
_PAIR, _WORK = 30, 2e12  # cost of a kernel value beside its columns; of a pass over all pairs that is affordable
_FEWEST = 20  # rows that EigenPro needs to hold one out
_RECORDED = 1000  # rows on which layers are measured


class Setting(NamedTuple):
    r"""What a search on few rows chose for the Gaussian.

    Attributes:
        multiple: Bandwidth over the median distance, so that it carries over to another metric and other rows.
        penalty: :math:`\lambda`.
        error: Mean squared leave-one-out error.
    """

    multiple: float
    penalty: float
    error: float


def fit_auto(
    x: Tensor,
    y: Tensor,
    *,
    task: str,
    max_layers: int,
    landmarks: int | None,
    exact_rows: int,
    kernel: Kernel | str,
    generator: torch.Generator | None,
) -> FittedNetwork:
    """Learn stem and machines for rows ``(n, d)`` and targets ``(n, c)``.

    Args:
        x: Rows, as they came, this rank's.
        y: Targets; of classes one column each.
        task: ``"classes"`` or ``"values"``: what decides between stems.
        max_layers: Most layers, the last included.
        landmarks: Anchors; None takes every row.
        exact_rows: Rows up to which the Gram matrix is held.
        kernel: ``"auto"`` chooses and stacks; ``"gaussian"`` takes the Gaussian; or the kernel of the last layer.
        generator: Randomness of subsets and landmarks, the same on all ranks.
    """
    rows = Rows(x, y)
    n, exact_rows = rows.n, max(exact_rows, _FEWEST)
    if landmarks is not None and landmarks > n:
        checks.warn("KernelNetwork", f"landmarks={landmarks} is more than the {n} rows; {n} are used.")
        landmarks = n
    exact = n <= exact_rows and landmarks is None
    many = n > exact_rows and landmarks is None and kernel != "gaussian"

    # Few rows make all choices, the same on all ranks.
    order = torch.randperm(n, generator=generator)
    few, few_y = rows.take(order[:exact_rows])
    if not bool(Rows(x).sum(lambda part: (part != few[0]).sum())):
        checks.warn("KernelNetwork", "all rows of X are equal; the Gram matrix has rank 1.")

    # The stem: columns on one scale, principal components of many wide rows, metrics where they help.
    depth = 0 if many and few.shape[1] > _METRIC_WIDTH else max_layers - 1
    encoding, kinds, setting = choose_stem(few, few_y, task, depth)
    if many and nn.Sequential(*encoding)(few[:1]).shape[1] > _COMPONENTS_FROM:
        encoding.append(find_components(nn.Sequential(*encoding), x))
    few_z = nn.Sequential(*encoding)(few)
    metrics = learn_metrics(few_z[:_METRIC_ROWS], few_y[:_METRIC_ROWS], kinds, setting)
    few_z = nn.Sequential(*metrics)(few_z)
    stem = nn.Sequential(*encoding, *metrics)
    if metrics:
        setting = search_gaussian(few_z[:_PILOT], few_y[:_PILOT])

    # Kernels of the machines, each with the penalty to start from; one where all rows cannot share a Gram matrix.
    bandwidth = setting.multiple * median_distance(few_z)
    choices: list[tuple[Kernel, float]]
    if kernel == "gaussian":
        if n > exact_rows:
            bandwidth = narrow_gaussian(few_z, few_y, bandwidth, setting.penalty)
        choices = [(gaussian(bandwidth), setting.penalty)]
    elif exact:
        choices = choose_kernels(few_z, few_y, [kernel] if isinstance(kernel, Kernel) else None)
    else:
        choices = [(kernel if isinstance(kernel, Kernel) else choose_one_kernel(few_z, few_y), 0.0)]

    # The machines: on every row by a Gram matrix, or by EigenPro while a pass over all pairs is affordable, or from
    # landmarks, whose sums over rows can go on.
    if exact:
        z, every_y = stem(x), Rows(y).gather()
        machines = [Exact(start=penalty).solve(choice, z, y) for choice, penalty in choices]
        if kernel == "gaussian":
            narrower = Exact(machines[0].penalty).solve(gaussian(0.7 * bandwidth), z, y)
            errors = [(get_left_out(machine) - every_y).square().mean() for machine in (narrower, machines[0])]
            if errors[0] < errors[1]:
                machines, bandwidth = [narrower], 0.7 * bandwidth
        shares = convex_weights([get_left_out(machine) for machine in machines], every_y, shrink=_SHRINK)
    else:
        solver: EigenPro | Landmarks = Landmarks(landmarks, generator=generator)
        if many and n**2 * (few_z.shape[1] + _PAIR) <= _WORK:
            seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
            solver = EigenPro(generator=seeded(seed))
            z = Rows(x).map(lambda part: stem(part).float(), row_bytes=BLOCK_BYTES // _BLOCK)
        else:
            z = stem(x)
        machines, shares = [solver.solve(choices[0][0], z, y)], torch.ones(1, dtype=torch.float64)

    # Those of next to no weight go. The heaviest is the one that later rows are added to.
    stay = [i for i, share in enumerate(shares.tolist()) if share > _LEAST_SHARE]
    machines, shares = [machines[i] for i in stay], shares[stay] / shares[stay].sum()
    heaviest = machines[int(shares.argmax())]
    head = _average([machine.bare() for machine in machines], shares)
    left_out = torch.stack([s * get_left_out(m) for s, m in zip(shares, machines, strict=True)]).sum(0)
    numbers = torch.arange(n) if heaviest.rows is None else heaviest.rows
    if kernel != "gaussian":
        bandwidth = measure_length_scale(heaviest.kernel, heaviest.anchors)

    # Where nothing was prescribed, the network joins the learner of the tables.
    modules: list[nn.Module] = [*stem, head]
    layers: list[nn.Module] = [*metrics, head]
    if kernel == "auto" and exact:
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        every_x, every_y = rows.gather()
        stack = StackedRidge(random_state=seed).fit(every_x, every_y)
        numbers = stack.left_out_
        pair = [left_out[numbers], stack.loo_]
        own, theirs = convex_weights(pair, every_y[numbers], shrink=_HEDGE).tolist()
        left_out = own * pair[0] + theirs * pair[1]
        joined = join_stack(modules, own, stack, theirs)
        modules, layers = [joined], [*metrics, joined]

    # What each layer achieved.
    if task == "classes":
        history = measure_layers(encoding, metrics, modules, bandwidth, rows)
    else:
        error = float((Rows(y).take(numbers) - left_out).square().mean())
        last = {"bandwidth": bandwidth, "width": 1.0, "penalty": heaviest.penalty, "mse": error}
        history = [*({"width": float(x.shape[1])} for _ in metrics), last]
    return FittedNetwork(modules, layers, history, left_out, numbers, heaviest.penalty, list(stem), heaviest)


# --- the stem ---------------------------------------------------------------------------------------------------------


def choose_stem(
    x: Tensor, y: Tensor, task: str, most: int
) -> tuple[list[nn.Module], tuple[str, ...], Setting]:  # (n, d), (n, c)
    """Encoding, kinds of metrics and a first setting: of least loss on rows that did not make them.

    Leave-one-out errors in a learned metric are too good, because the metric has seen the rows. So each stack of
    metrics is judged on halves: the metric of one half, the leave-one-out loss of the other.
    """
    # Each column's own scale or one for all: no label made them, so that leave-one-out on few rows may choose.
    standardize = Standardize.of(x)
    scalings = (standardize, standardize.with_one_scale(x))
    tried = [(scaling, search_gaussian(scaling(x[:_PILOT]), y[:_PILOT])) for scaling in scalings]
    scaling, setting = min(tried, key=lambda pair: pair[1].error)
    encodings: list[tuple[list[nn.Module], Setting]] = [([scaling], setting)]
    indicators = Indicators.of(x, _LEVELS)
    if indicators is not None:
        columns = indicators(x)
        standardize = Standardize.of(columns)
        setting = search_gaussian(standardize(columns[:_PILOT]), y[:_PILOT])
        encodings.append(([indicators, standardize], setting))

    # Every encoding with no metric, one or two.
    half = min(len(x) // 2, _HALF)
    halves = [(slice(0, half), slice(half, 2 * half)), (slice(half, 2 * half), slice(0, half))]
    plans, losses = [], []
    for encoding, setting in encodings:
        z = nn.Sequential(*encoding)(x)
        stacks: list[tuple[str, ...]] = [()]
        if most >= 1 and half >= 20 and z.shape[1] > 1:
            if z.shape[1] > _FULL_WIDTH:
                stacks.append(("diagonal",))
            else:
                stacks += [("full",) * (i + 1) for i in range(min(most, 2))]
        total = [0.0] * len(stacks)
        for learn, judge in halves if half >= 2 else []:
            metrics = learn_metrics(z[learn], y[learn], stacks[-1], setting)
            for i, stack in enumerate(stacks):
                through = nn.Sequential(*metrics[: len(stack)])(z[judge])
                total[i] += _measure_loss(through, y[judge], setting, task) / 2
        plans += [(encoding, stack, setting) for stack in stacks]
        losses += total

    # The simplest plan within a standard error of the best.
    least = min(losses)
    near = least + _NEAR * math.sqrt(least / min(len(x), 2 * _HALF))
    return next(plan for plan, loss in zip(plans, losses, strict=True) if loss <= near)


def search_gaussian(z: Tensor, y: Tensor) -> Setting:  # (n, d), (n, c)
    """The Gaussian's bandwidth and penalty of least leave-one-out error on these rows."""
    squared, middle = squared_distances(z, z), median_distance(z)
    settings = []
    for multiple in _MULTIPLES:
        fit = dual_path((squared / (-2 * (multiple * middle) ** 2)).exp(), y)
        settings.append(Setting(multiple, fit.penalty, fit.error))
    return min(settings, key=lambda setting: setting.error)


def learn_metrics(z: Tensor, y: Tensor, kinds: tuple[str, ...], setting: Setting) -> list[MetricLayer]:
    """One metric layer for each kind, each from the kernel machine in the metric before it."""
    metrics: list[MetricLayer] = []
    for kind in kinds:
        bandwidth = setting.multiple * median_distance(z)
        weights = dual_fit(gaussian(bandwidth)(z), y, setting.penalty).weights
        root = metric_root(average_gradient_outer_product(z, z, weights, bandwidth), kind)
        if root is None:
            break
        metrics.append(MetricLayer(root))
        z = metrics[-1](z)
    return metrics


def _measure_loss(z: Tensor, y: Tensor, setting: Setting, task: str) -> float:
    """Leave-one-out loss at the setting, or at a narrower bandwidth and lower penalty if that has less error."""
    middle = median_distance(z)
    fits = [
        dual_fit(gaussian(share * setting.multiple * middle)(z), y, penalty)
        for share, penalty in ((1.0, setting.penalty), (0.6, setting.penalty / 5))
    ]
    return measure_loss(y, min(fits, key=lambda fit: fit.error).held_out, task)


def measure_loss(y: Tensor, left_out: Tensor, task: str) -> float:
    r"""What decides between networks: mean squared error, or for classes a smooth count of errors.

    The count is :math:`\frac1n \sum_i 1 / (1 + e^{10 m_i})` of the margins :math:`m_i` between a row's own column
    and the best other; the squared error also rewards scores that are close to 1 far from any boundary.

    Args:
        y: Targets; for classes one column each, the row's own the largest.
        left_out: Leave-one-out predictions of them.
        task: ``"classes"`` or ``"values"``.
    """
    if task == "values":
        return float((y - left_out).square().mean())
    label = y.argmax(1, keepdim=True)
    rival = left_out.scatter(1, label, -torch.inf).amax(1)
    return float(torch.sigmoid(-10 * (left_out.gather(1, label)[:, 0] - rival)).mean())


def find_components(encoding: nn.Module, x: Tensor) -> MetricLayer:
    """The 100 directions of largest variance of the rows of all ranks."""

    def sum_moments(part: Tensor) -> Tensor:  # (b, d) -> (q + 1, q)
        z = encoding(part)
        return torch.cat((z.mT @ z, z.sum(0)[None]))

    means = Rows(x).mean(sum_moments, row_bytes=BLOCK_BYTES // _BLOCK)
    vectors = torch.linalg.eigh(means[:-1] - torch.outer(means[-1], means[-1]))[1]
    return MetricLayer(vectors[:, -_COMPONENTS:].flip(1).contiguous())


# --- the machines -----------------------------------------------------------------------------------------------------


def choose_kernels(z: Tensor, y: Tensor, kernels: list[Kernel] | None) -> list[tuple[Kernel, float]]:
    """The kernels that carry weight on the first 400 rows, heaviest first, with their penalties."""
    ranked = rank_kernels(z, y, kernels or _list_candidates(z))
    shares = convex_weights([choice.fit.held_out for choice in ranked], y[: len(ranked[0].fit.held_out)])
    heavy = [i for i in shares.argsort(descending=True).tolist() if float(shares[i]) > _LEAST_SHARE]
    most = _MACHINES if len(z) <= _LARGE else _MACHINES - 1
    return [(ranked[i].kernel, ranked[i].fit.penalty) for i in (heavy or [0])[:most]]


def choose_one_kernel(z: Tensor, y: Tensor) -> Kernel:
    """The kernel for many rows: those that few rows chose, as they are and narrower, compared on more rows."""
    z, y = z[:_REFINING_ROWS].double(), y[:_REFINING_ROWS]
    falling = [kernel for kernel in _list_candidates(z) if kernel.rescaled(1.0) is not None]
    trials = []
    for choice in rank_kernels(z, y, falling)[:3]:
        for factor in _NARROWER:
            kernel = choice.kernel.rescaled(factor)
            assert kernel is not None
            trials.append((tune_penalty(kernel(z), y, choice.fit.penalty).error, kernel))
    return min(trials, key=lambda trial: trial[0])[1]


def _list_candidates(z: Tensor) -> list[Kernel]:
    candidates = candidate_kernels(z)
    return candidates if z.shape[1] <= _WIDE else candidates[3:]  # the first three go column by column


def narrow_gaussian(z: Tensor, y: Tensor, bandwidth: float, penalty: float) -> float:
    """The bandwidth for many rows, from one found on few: shrunk while the leave-one-out error falls."""
    z, y, least = z[:_REFINING_ROWS], y[:_REFINING_ROWS], math.inf
    while True:
        error = dual_fit(gaussian(bandwidth)(z), y, penalty).error
        if error >= least:
            return bandwidth / _GAUSSIAN_STEP
        least, bandwidth = error, bandwidth * _GAUSSIAN_STEP


def join_stack(modules: list[nn.Module], own: float, stack: StackedRidge, theirs: float) -> AverageLayer:
    """The network and the stack's machines, averaged by their shares; machines on one view share a branch."""
    branches, shares = [modules], [own]
    for number, view in enumerate(stack.views_):
        members = [i for i, machine in enumerate(stack.machines_) if machine.view == number]
        anchors = view(stack.rows_).double()
        solutions = [
            Solution(machine.kernel, anchors, machine.weights.double(), stack.mean_, machine.penalty)
            for machine in (stack.machines_[i] for i in members)
        ]
        total = float(stack.shares_[members].sum())
        branches.append([view, _average(solutions, stack.shares_[members] / total)])
        shares.append(theirs * total)
    return AverageLayer(branches, torch.tensor(shares, dtype=torch.float64))


def _average(machines: list[Solution], shares: Tensor) -> nn.Module:
    return machines[0] if len(machines) == 1 else AverageLayer([[machine] for machine in machines], shares)


def get_left_out(machine: Solution) -> Tensor:
    """Predictions of rows left out, in float64."""
    predictions = machine.predict_left_out() if machine.left_out is None else machine.left_out
    assert predictions is not None
    return predictions.double()


def measure_length_scale(kernel: Kernel, z: Tensor) -> float:
    """The distance at which the kernel falls to half of k(z, z); the median distance where it does not fall."""
    middle = median_distance(z)
    start = z[:1].double()
    steps = torch.logspace(-3, 2, 60, dtype=torch.float64)[:, None] * middle
    direction = torch.full_like(start, start.shape[1] ** -0.5)
    values = kernel(start, start + steps * direction)[0] / kernel.diag(start).clamp_min(1e-300)
    below = (values < 0.5).nonzero()
    return float(steps[below[0, 0], 0]) if len(below) else middle


def measure_layers(
    encoding: list[nn.Module], metrics: list[MetricLayer], modules: list[nn.Module], bandwidth: float, rows: Rows
) -> list[dict[str, float]]:
    """The metrics and the outputs, each with its record on at most 1,000 rows."""
    x, y = rows.take(torch.linspace(0, rows.n - 1, min(rows.n, _RECORDED)).round().long())
    z, labels, c, history = nn.Sequential(*encoding)(x), y.argmax(1), y.shape[1], []
    for metric in metrics:
        z = metric(z)
        sigma = median_distance(z)
        history.append(measure_gram(gaussian(sigma)(z), z, labels, c, sigma).row())
    out = nn.Sequential(*modules)(x).double()
    gram = gaussian(median_distance(out))(out)
    return [*history, measure_gram(gram, out, labels, c, bandwidth).row()]
