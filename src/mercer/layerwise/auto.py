r"""The default solver: a door to the stacked learner of the tables, with metrics learned layer by layer as a view.

The *stem* puts the columns on one scale and may hold metrics: the square root of the average gradient outer product of
the kernel machine fitted in the metric before it, or of its diagonal. What it makes of the rows is one more view of a
:class:`~mercer.machines.StackedRidge`, whose members are weighed on rows left out. Where a kernel is asked for, or rows
are too many for a Gram matrix, one machine stands on the stem instead.
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
from ..machines.trials import Look
from ..rows.rows import BLOCK_BYTES, Rows
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
_PARTS = 2  # of these rows, each left out through a metric that the others teach
_FULL_WIDTH = 1500  # features up to which a full metric is learned; beyond, weights
_NEAR = 1.0  # standard errors within which losses count as equal: the simpler network is taken
_METRIC_WIDTH = 50  # columns beyond which many rows need no learned metric: they tell the directions apart themselves
_COMPONENTS_FROM, _COMPONENTS = 150, 100  # above 150 columns many rows are projected on 100 directions
_BLOCK = 5000  # rows of a block

# One machine on it.
_MOST_COLUMNS = 200  # beyond which the distance column by column costs more than it gives
_REFINING_ROWS = 1500  # rows on which the kernels that fewer rows chose are compared again, narrower too
_NARROWER = (1.0, 0.7, 0.5)
_GAUSSIAN_STEP = 0.75  # by which the Gaussian's bandwidth shrinks for many rows, while the error falls
_PAIR, _WORK = 30, 2e12  # cost of a kernel value beside its columns; of a pass over all pairs that is affordable
_FEWEST = 20  # rows that EigenPro needs to hold one out
_RECORDED = 1000  # rows on which layers are measured


class Setting(NamedTuple):
    r"""The Gaussian's setting that a search on few rows chose.

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

    # A subset of the rows makes all choices, the same on all ranks.
    order = torch.randperm(n, generator=generator)[:exact_rows]
    x_subset, y_subset = rows.take(order)
    if not bool(Rows(x).sum(lambda part: (part != x_subset[0]).sum())):
        checks.warn("KernelNetwork", "all rows of X are equal; the Gram matrix has rank 1.")

    # The stem: columns on one scale, principal components of many wide rows, metrics where they help.
    depth = max_layers - 1
    if many and x.shape[1] > _METRIC_WIDTH:
        depth = 0
    encoding, kinds, setting = choose_stem(x_subset, y_subset, task, depth)
    if many and nn.Sequential(*encoding)(x_subset[:1]).shape[1] > _COMPONENTS_FROM:
        encoding.append(find_components(nn.Sequential(*encoding), x))

    def learn_stem(part: Tensor) -> tuple[list[MetricLayer], nn.Sequential]:
        """The metrics that these rows of the subset teach, and the encoding with them."""
        metrics = learn_metrics(nn.Sequential(*encoding)(x_subset[part]), y_subset[part], kinds, setting)
        return metrics, nn.Sequential(*encoding, *metrics)

    teachers = torch.arange(min(len(order), _METRIC_ROWS))
    metrics, stem = learn_stem(teachers)

    if kernel == "auto" and exact:
        # The stem is a view of the stack. Rows that taught its metrics are left out through metrics of the others.
        look = Look(stem, [])  # type: ignore[arg-type]  # any module of rows is a view
        if metrics:
            for part in teachers.chunk(_PARTS):
                without = learn_stem(teachers[~torch.isin(teachers, part)])[1]
                look.honest.append((order[part], without))  # type: ignore[arg-type]
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        stack = StackedRidge(random_state=seed).fit(*rows.gather(), looks=[look])
        left_out, numbers = stack.loo_, stack.left_out_

        # Its members as torch modules, each behind its view. Later rows are added to the heaviest.
        branches: list[list[nn.Module]] = []
        through_stem = False
        for member in stack.machines_:
            view: nn.Module = stack.views_[member.view]
            before: list[nn.Module] = [view]
            if view is stem:
                through_stem, before = True, [*stem]
            anchors, weights = view(stack.rows_).double(), member.weights.double()
            branches.append(
                [*before, Solution(member.kernel, anchors, weights, stack.mean_ + member.level, member.penalty)]
            )
        modules: list[nn.Module] = [AverageLayer(branches, stack.shares_)]
        *before, machine = branches[int(stack.shares_.argmax())]
        if not through_stem:
            metrics = []  # no member sees them
    else:
        # One machine: on every row by a Gram matrix, or by EigenPro while a pass over all pairs is affordable, or from
        # landmarks, whose sums over rows can go on.
        z_subset = stem(x_subset)
        best_kernel, penalty = choose_kernel(z_subset, y_subset, kernel)
        solver: Exact | EigenPro | Landmarks
        if many and n**2 * (z_subset.shape[1] + _PAIR) <= _WORK:
            seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
            solver = EigenPro(generator=seeded(seed))
            z = Rows(x).map(lambda part: stem(part).float(), row_bytes=BLOCK_BYTES // _BLOCK)
        elif exact:
            solver, z = Exact(start=penalty), stem(x)
        else:
            solver, z = Landmarks(landmarks, generator=generator), stem(x)
        machine = solver.solve(best_kernel, z, y)

        # Its predictions of rows left out, and which rows those are.
        predicted = machine.left_out
        if predicted is None:
            predicted = machine.predict_left_out()
        assert predicted is not None
        left_out, before = predicted.double(), [*stem]
        numbers = torch.arange(n)
        if machine.rows is not None:
            numbers = machine.rows
        modules = [*stem, machine.bare()]
    assert isinstance(machine, Solution)

    # Measure each layer.
    bandwidth = measure_length_scale(machine.kernel, machine.anchors)
    if task == "classes":
        history = measure_layers(encoding, metrics, modules, bandwidth, rows)
    else:
        error = float((Rows(y).take(numbers) - left_out).square().mean())
        last = {"bandwidth": bandwidth, "width": 1.0, "penalty": machine.penalty, "mse": error}
        history = [*({"width": float(x.shape[1])} for _ in metrics), last]
    layers = [*metrics, modules[-1]]
    return FittedNetwork(modules, layers, history, left_out, numbers, machine.penalty, before, machine)


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
    if half < 2:
        halves = []
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
        for learn, judge in halves:
            metrics = learn_metrics(z[learn], y[learn], stacks[-1], setting)
            for i, stack in enumerate(stacks):
                through = nn.Sequential(*metrics[: len(stack)])(z[judge])
                # At the setting, or at a narrower bandwidth and lower penalty if that has less error.
                bandwidth = setting.multiple * median_distance(through)
                wide = dual_fit(gaussian(bandwidth)(through), y[judge], setting.penalty)
                narrow = dual_fit(gaussian(0.6 * bandwidth)(through), y[judge], setting.penalty / 5)
                better = min(wide, narrow, key=lambda fit: fit.error)
                total[i] += measure_loss(y[judge], better.held_out, task) / 2
        plans += [(encoding, stack, setting) for stack in stacks]
        losses += total

    # The simplest plan within a standard error of the best.
    lowest = min(losses)
    limit = lowest + _NEAR * math.sqrt(lowest / min(len(x), 2 * _HALF))
    return next(plan for plan, loss in zip(plans, losses, strict=True) if loss <= limit)


def search_gaussian(z: Tensor, y: Tensor) -> Setting:  # (n, d), (n, c)
    """The Gaussian's bandwidth and penalty of least leave-one-out error on these rows."""
    squared, median = squared_distances(z, z), median_distance(z)
    settings = []
    for multiple in _MULTIPLES:
        fit = dual_path((squared / (-2 * (multiple * median) ** 2)).exp(), y)
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


def measure_loss(y: Tensor, left_out: Tensor, task: str) -> float:
    r"""The loss that decides between networks: mean squared error, or for classes a smooth count of errors.

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


# --- one machine ------------------------------------------------------------------------------------------------------


def choose_kernel(z: Tensor, y: Tensor, kernel: Kernel | str) -> tuple[Kernel, float | None]:
    """The kernel of one machine, and where the search for its penalty starts, by rows ``(n, q)`` as it sees them."""
    if isinstance(kernel, Kernel):
        return kernel, None
    if kernel == "gaussian":
        # Few rows give bandwidth and penalty; for more, the bandwidth shrinks while the leave-one-out error falls.
        setting = search_gaussian(z[:_PILOT], y[:_PILOT])
        bandwidth = setting.multiple * median_distance(z)
        z, y, lowest = z[:_REFINING_ROWS], y[:_REFINING_ROWS], math.inf
        while (error := dual_fit(gaussian(bandwidth)(z), y, setting.penalty).error) < lowest:
            lowest, bandwidth = error, bandwidth * _GAUSSIAN_STEP
        return gaussian(bandwidth / _GAUSSIAN_STEP), setting.penalty
    # The best three that have a bandwidth on few rows, as they are and narrower, are compared on more.
    z, y = z[:_REFINING_ROWS].double(), y[:_REFINING_ROWS]
    trials = []
    candidates = candidate_kernels(z, most_columns=_MOST_COLUMNS)
    for choice in rank_kernels(z, y, [k for k in candidates if k.rescaled(1.0) is not None])[:3]:
        for factor in _NARROWER:
            rescaled = choice.kernel.rescaled(factor)
            assert rescaled is not None
            trials.append((tune_penalty(rescaled(z), y, choice.fit.penalty).error, rescaled))
    return min(trials, key=lambda trial: trial[0])[1], None


def measure_length_scale(kernel: Kernel, z: Tensor) -> float:
    """The distance at which the kernel falls to half of k(z, z); the median distance where it does not fall."""
    # The kernel along one line from a row, at steps around the median distance.
    median = median_distance(z)
    start = z[:1].double()
    steps = torch.logspace(-3, 2, 60, dtype=torch.float64)[:, None] * median
    direction = torch.full_like(start, start.shape[1] ** -0.5)
    values = kernel(start, start + steps * direction)[0] / kernel.diag(start).clamp_min(1e-300)
    below = (values < 0.5).nonzero()
    if not len(below):
        return median
    return float(steps[below[0, 0], 0])


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
