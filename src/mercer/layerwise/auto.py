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
from ..distributed import gather_rows, global_slice, sum_over_ranks, take_rows
from .dependence import gaussian_gram
from .kernel_ridge import DualFit, Setting, dual_fit, dual_weights, loss, median_of_rows, search, tune_penalty
from .landmarks import Sums, landmark_fit, narrow
from .metric import average_gradient_outer_product, metric_root
from .network import Indicators, KernelLayer, MetricLayer, Standardize

__all__ = ["EXACT_ROWS", "AutoFit", "fit_auto", "learn_metrics"]

EXACT_ROWS = 3000
"""Rows up to which every row is an anchor; beyond, landmarks are."""

_PILOT = 250  # rows of the search for bandwidth and penalty
_HALF = 500  # rows of a half that decides on the metric
_METRIC_ROWS = 1000  # rows a metric is learned from
_MULTIPLES = [0.15, 0.25, 0.4, 0.65, 1.1]
_FULL_WIDTH = 1500  # features up to which a full metric is learned; beyond, weights
_LEVELS = 8  # values a feature may take for its levels to be tried as columns of their own
_NEAR = 0.5  # standard errors within which losses count as equal: the simpler network is taken


class AutoFit(NamedTuple):
    """What the default solver learned.

    Attributes:
        layers: Modules before the last: indicators or not, standardisation, metrics.
        head: The last layer.
        held_out: ``(r, c)``, leave-one-out predictions of ``rows``.
        rows: ``(r,)``, which training rows those are, numbered over all ranks.
        error: Mean squared leave-one-out error.
        penalty: The ridge.
        sums: What an exact update needs; None where every row is an anchor.
    """

    layers: list[nn.Module]
    head: KernelLayer
    held_out: Tensor
    rows: Tensor
    error: float
    penalty: float
    sums: Sums | None


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
    generator: torch.Generator | None = None,
) -> AutoFit:
    """Learn encoding, metrics, bandwidth and ridge for rows ``(n, d)`` and centred targets ``(n, c)``.

    Args:
        x: Rows, as they came, this rank's.
        y: Targets.
        task: ``"classes"`` or ``"values"``, see :func:`loss`.
        max_layers: Most layers, the kernel machine's included.
        landmarks: Anchors; None takes every row up to 3,000 rows, landmarks beyond.
        generator: Randomness of subsets and landmarks, the same on all ranks.
    """
    n = global_slice(len(x))[1]
    if landmarks is not None and landmarks > n:
        checks.warn("KernelNetwork", f"landmarks={landmarks} is more than the {n} rows; {n} are used.")
        landmarks = n
    order = torch.randperm(n, generator=generator)
    few, few_y = (take_rows(rows, order[:EXACT_ROWS]) for rows in (x, y))  # all choices are made on these
    if not bool(sum_over_ranks((x != few[0]).sum())):
        checks.warn("KernelNetwork", "all rows of X are equal; the Gram matrix has rank 1.")
    plan = _plan(few, few_y, task, max_layers - 1)
    first = nn.Sequential(*plan.first)
    learn = first(few[:_METRIC_ROWS])
    metrics = learn_metrics(learn, few_y[:_METRIC_ROWS], plan.stack, plan.setting.multiple, plan.setting.penalty)
    layers = [*plan.first, *metrics]
    z, seen, setting = _apply(metrics, first(x)), _apply(metrics, first(few)), plan.setting
    if metrics:
        setting = search(seen[:_PILOT], few_y[:_PILOT], _MULTIPLES)
    middle = median_of_rows(seen)
    if landmarks is None and n <= EXACT_ROWS:
        z, y = gather_rows(z), gather_rows(y)
        fit, bandwidth = _fit_all(z, y, setting, middle)
        head = KernelLayer(z, fit.weights, y.new_zeros(y.shape[1]), bandwidth)
        return AutoFit(layers, head, fit.held_out, torch.arange(n), fit.error, fit.penalty, None)
    bandwidth = setting.multiple * middle
    if n > EXACT_ROWS:
        more, more_y = (take_rows(rows, order[: 2 * EXACT_ROWS]) for rows in (z, y))
        bandwidth = narrow(more, more_y, bandwidth, setting.penalty)
    ending = landmark_fit(z, y, bandwidth, setting.penalty, m=landmarks, order=order)
    return AutoFit(layers, ending.head, ending.held_out, ending.rows, ending.error, ending.penalty, ending.sums)


def _fit_all(z: Tensor, y: Tensor, setting: Setting, middle: float) -> tuple[DualFit, float]:
    """The ridge on all rows, and the bandwidth, which shrinks as rows grow in number."""
    bandwidth = setting.multiple * middle
    best = tune_penalty(gaussian_gram(z, z, bandwidth), y, setting.penalty)
    if len(z) > _PILOT:
        trial = dual_fit(gaussian_gram(z, z, 0.7 * bandwidth), y, best.penalty)
        if trial.error < best.error:
            return trial, 0.7 * bandwidth
    return best, bandwidth


def learn_metrics(x: Tensor, y: Tensor, kinds: tuple[str, ...], multiple: float, penalty: float) -> list[MetricLayer]:
    """One metric layer for each kind, each from the kernel machine in the metric before it."""
    metrics: list[MetricLayer] = []
    z = x
    for kind in kinds:
        bandwidth = multiple * median_of_rows(z)
        weights = dual_weights(gaussian_gram(z, z, bandwidth), y, penalty)
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
            seen = _apply(metrics[: len(stack)], z[judge])
            losses[stack] += _held_out_loss(seen, y[judge], setting, task) / 2
    return losses


def _held_out_loss(z: Tensor, y: Tensor, setting: Setting, task: str) -> float:
    middle = median_of_rows(z)
    fits = [
        dual_fit(gaussian_gram(z, z, share * setting.multiple * middle), y, penalty)
        for share, penalty in ((1.0, setting.penalty), (0.6, setting.penalty / 5))
    ]
    return loss(y, min(fits, key=lambda fit: fit.error).held_out, task)


def _apply(metrics: list[MetricLayer], x: Tensor) -> Tensor:
    return nn.Sequential(*metrics)(x) if metrics else x
