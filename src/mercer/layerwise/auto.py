r"""The default solver: kernel ridge in a metric it learns, everything chosen by leave-one-out.

A layer of the network is a metric: the square root of the average gradient outer product of the kernel machine
fitted in the metric before it, or of its diagonal. Leave-one-out errors in a learned metric are too good, for the
metric has seen the rows; so whether and how deep to learn it is decided on halves: the metric of one half, the
leave-one-out loss of the other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import checks
from ..kernels import Kernel
from ..machines.dual import dual_fit
from ..machines.selection import median_distance
from ..rows import Rows
from ..rows.rows import BLOCK_BYTES
from .dependence import gaussian
from .heads import Ending, averaged, fit_all_rows, fit_from_landmarks, fit_gaussian, fit_stack, refined_kernel
from .metric import average_gradient_outer_product, metric_root
from .network import AverageLayer, Indicators, MetricLayer, Standardize
from .search import Setting, loss, search

EXACT_ROWS = 3000
"""Rows up to which the Gram matrix is held; beyond, every row still takes part, by EigenPro."""

_METRIC_WIDTH = 50  # columns beyond which many rows need no learned metric: they tell the directions apart themselves
_COMPONENTS_FROM, _COMPONENTS = 150, 100  # columns from which many rows are projected on so many directions
_BLOCK = 5000  # rows of a block
_WORK = 2e12  # operations of a pass over all pairs of rows up to which every row takes part
_NARROWING_ROWS, _NARROWER = 1500, 0.75
_PILOT = 250  # rows of the search for bandwidth and penalty
_HALF = 500  # rows of a half that decides on the metric
_METRIC_ROWS = 1000  # rows a metric is learned from
_MULTIPLES = [0.15, 0.25, 0.4, 0.65, 1.1]
_FULL_WIDTH = 1500  # features up to which a full metric is learned; beyond, weights
_LEVELS = 8  # values a feature may take for its levels to be tried as columns of their own
_NEAR = 1.0  # standard errors within which losses count as equal: the simpler network is taken


class AutoFit(NamedTuple):
    """What the default solver learned.

    Attributes:
        encoding: Modules that prepare the columns: indicators or not, standardisation, principal components.
        metrics: The learned metrics.
        ending: The last layer.
        whole: From the rows as they came to the outputs, where the last layer is averaged with others; else None.
        kept: Share of the variance that the principal components keep; 1 where there are none.
    """

    encoding: list[nn.Module]
    metrics: list[MetricLayer]
    ending: Ending
    kept: float = 1.0
    whole: AverageLayer | None = None

    @property
    def modules(self) -> list[nn.Module]:
        """From the rows as they came to the outputs."""
        return [*self.encoding, *self.metrics, self.ending.head] if self.whole is None else [self.whole]

    @property
    def layers(self) -> list[nn.Module]:
        """What counts as layers: the metrics, and what ends the network."""
        return [*self.metrics, self.ending.head if self.whole is None else self.whole]


class _Plan(NamedTuple):
    first: list[nn.Module]
    stack: tuple[str, ...]
    setting: Setting
    loss: float


def fit_auto(
    x: Tensor,
    y: Tensor,
    *,
    task: str,
    max_layers: int = 4,
    landmarks: int | None = None,
    exact_rows: int = EXACT_ROWS,
    kernel: Kernel | str = "auto",
    generator: torch.Generator | None = None,
) -> AutoFit:
    """Learn encoding, metrics, kernels and ridges for rows ``(n, d)`` and targets ``(n, c)``.

    Args:
        x: Rows, as they came, this rank's.
        y: Targets.
        task: ``"classes"`` or ``"values"``, see :func:`loss`.
        max_layers: Most layers, the last included.
        landmarks: Anchors; None takes every row.
        exact_rows: Rows up to which the Gram matrix is held.
        kernel: ``"auto"`` chooses and stacks; ``"gaussian"`` takes the Gaussian; or the kernel of the last layer.
        generator: Randomness of subsets and landmarks, the same on all ranks.
    """
    rows = Rows(x, y)
    n = rows.n
    if landmarks is not None and landmarks > n:
        checks.warn("KernelNetwork", f"landmarks={landmarks} is more than the {n} rows; {n} are used.")
        landmarks = n

    # All choices are made on few rows, the same on all ranks.
    order = torch.randperm(n, generator=generator)
    few, few_y = rows.take(order[:exact_rows])
    if not bool(Rows(x).sum(lambda part: (part != few[0]).sum())):
        checks.warn("KernelNetwork", "all rows of X are equal; the Gram matrix has rank 1.")
    exact = n <= exact_rows
    many = not exact and landmarks is None and kernel != "gaussian"

    # The encoding of the columns and the number of metrics. Many rows of many columns need no learned metric.
    plan = _plan(few, few_y, task, 0 if many and few.shape[1] > _METRIC_WIDTH else max_layers - 1)
    encoding, share = list(plan.first), 1.0
    if many and nn.Sequential(*encoding)(few[:1]).shape[1] > _COMPONENTS_FROM:
        components, share = _find_components(nn.Sequential(*encoding), x)
        encoding.append(components)

    # The metrics, each from the kernel machine in the metric before it.
    first = nn.Sequential(*encoding)
    setting, learn = plan.setting, first(few[:_METRIC_ROWS])
    metrics = learn_metrics(learn, few_y[:_METRIC_ROWS], plan.stack, setting.multiple, setting.penalty)
    network = nn.Sequential(first, *metrics)
    few_z = network(few)
    given = kernel if isinstance(kernel, Kernel) else None

    # Many rows: one machine on all of them by EigenPro, while a pass over all pairs is affordable.
    if many and n**2 * (few_z.shape[1] + 30) <= _WORK:
        z = Rows(x).map(lambda part: network(part).float(), row_bytes=BLOCK_BYTES // _BLOCK)
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        return AutoFit(encoding, metrics, fit_all_rows(z, y, few_z, few_y, given, seed), share)

    # Few rows: machines on every one of them, a stack or one Gaussian. Else one kernel on landmarks.
    if metrics:
        setting = search(few_z[:_PILOT], few_y[:_PILOT], _MULTIPLES)
    z, middle = network(x), median_distance(few_z)
    if landmarks is None and exact:
        whole_z, whole_y = Rows(z, y).gather()
        if kernel == "gaussian":
            ending = fit_gaussian(whole_z, whole_y, setting, middle)
        else:
            ending = fit_stack(whole_z, whole_y, order, None if given is None else [given])
    elif kernel == "gaussian":
        bandwidth = setting.multiple * middle
        if not exact:
            bandwidth = _narrow_bandwidth(few_z, few_y, bandwidth, setting.penalty)
        ending = fit_from_landmarks(z, y, gaussian(bandwidth), bandwidth, landmarks, generator)
    else:
        one = refined_kernel(few_z, few_y) if given is None else given
        ending = fit_from_landmarks(z, y, one, None, landmarks, generator)

    # Where nothing was prescribed, the network is averaged with machines on other views of the columns.
    whole: AverageLayer | None = None
    if kernel == "auto" and landmarks is None and exact:
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        every_x, every_y = rows.gather()
        whole, ending = averaged([*encoding, *metrics], ending, every_x, every_y, seed)
    return AutoFit(encoding, metrics, ending, share, whole)


def _narrow_bandwidth(z: Tensor, y: Tensor, bandwidth: float, penalty: float) -> float:
    """The bandwidth for many rows, from one found on few: shrunk while the leave-one-out error falls."""
    z, y, least = z[:_NARROWING_ROWS], y[:_NARROWING_ROWS], math.inf
    while True:
        error = dual_fit(gaussian(bandwidth)(z), y, penalty).error
        if error >= least:
            return bandwidth / _NARROWER
        least, bandwidth = error, bandwidth * _NARROWER


def _find_components(first: nn.Module, x: Tensor) -> tuple[MetricLayer, float]:
    """The 100 directions of largest variance of the rows of all ranks, and the share of it that they hold."""

    def sum_moments(part: Tensor) -> Tensor:  # (b, d) -> (q + 1, q)
        z = first(part)
        return torch.cat((z.mT @ z, z.sum(0)[None]))

    means = Rows(x).mean(sum_moments, row_bytes=BLOCK_BYTES // _BLOCK)
    values, vectors = torch.linalg.eigh(means[:-1] - torch.outer(means[-1], means[-1]))
    share = values[-_COMPONENTS:].sum() / values.sum().clamp_min(1e-300)
    return MetricLayer(vectors[:, -_COMPONENTS:].flip(1).contiguous()), float(share)


def learn_metrics(x: Tensor, y: Tensor, kinds: tuple[str, ...], multiple: float, penalty: float) -> list[MetricLayer]:
    """One metric layer for each kind, each from the kernel machine in the metric before it."""
    metrics: list[MetricLayer] = []
    z = x
    for kind in kinds:
        bandwidth = multiple * median_distance(z)
        weights = dual_fit(gaussian(bandwidth)(z), y, penalty).weights
        root = metric_root(average_gradient_outer_product(z, z, weights, bandwidth), kind)
        if root is None:
            break
        metrics.append(MetricLayer(root))
        z = metrics[-1](z)
    return metrics


def _plan(x: Tensor, y: Tensor, task: str, most: int) -> _Plan:
    """The encoding and the stack of metrics whose loss is least on rows that did not make them."""
    own = Standardize.of(x)
    scalings = [(s, search(s(x[:_PILOT]), y[:_PILOT], _MULTIPLES)) for s in (own, own.with_one_scale(x))]
    scaling, found = min(scalings, key=lambda pair: pair[1].error)  # no label made them: leave-one-out is honest
    firsts: list[tuple[list[nn.Module], Setting]] = [([scaling], found)]
    indicators = Indicators.of(x, _LEVELS)
    if indicators is not None:
        standardize = Standardize.of(indicators(x))
        seen = standardize(indicators(x[:_PILOT]))
        firsts.append(([indicators, standardize], search(seen, y[:_PILOT], _MULTIPLES)))
    plans = [
        _Plan(first, stack, setting, value)
        for first, setting in firsts
        for stack, value in _judge_stacks(nn.Sequential(*first)(x), y, setting, task, most).items()
    ]
    least = min(plan.loss for plan in plans)
    near = least + _NEAR * math.sqrt(least / min(len(x), 2 * _HALF))
    return next(plan for plan in plans if plan.loss <= near)


def _judge_stacks(z: Tensor, y: Tensor, setting: Setting, task: str, most: int) -> dict[tuple[str, ...], float]:
    """Loss of each stack of metrics, simplest first: the metric of one half, leave-one-out on the other."""
    half = min(len(z) // 2, _HALF)
    stacks: list[tuple[str, ...]] = [()]
    if most >= 1 and half >= 20 and z.shape[1] > 1:
        wide = z.shape[1] > _FULL_WIDTH
        stacks += [("diagonal",)] if wide else [("full",) * (i + 1) for i in range(min(most, 2))]
    losses = dict.fromkeys(stacks, 0.0)  # halves' losses are averaged
    for learn, judge in ((slice(0, half), slice(half, 2 * half)), (slice(half, 2 * half), slice(0, half))):
        if half < 2:
            break
        metrics = learn_metrics(z[learn], y[learn], stacks[-1], setting.multiple, setting.penalty)
        for stack in stacks:
            seen = nn.Sequential(*metrics[: len(stack)])(z[judge])
            losses[stack] += _measure_loss(seen, y[judge], setting, task) / 2
    return losses


def _measure_loss(z: Tensor, y: Tensor, setting: Setting, task: str) -> float:
    middle = median_distance(z)
    fits = [
        dual_fit(gaussian(share * setting.multiple * middle)(z), y, penalty)
        for share, penalty in ((1.0, setting.penalty), (0.6, setting.penalty / 5))
    ]
    return loss(y, min(fits, key=lambda fit: fit.error).held_out, task)
