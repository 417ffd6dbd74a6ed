"""The common pictures. Each takes plain numbers and returns a matplotlib ``Figure``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import sentence
from .theme import DASHES, MARKERS, Figure, Theme, canvas, legend_below, theme_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 10  # rows below which a bin's accuracy is drawn pale
_MANY = 6  # entries of a legend that fit beside the plot
_TURNED = 34  # letters of all names together from which on those below are turned
_TOP = 0.55  # share from which on a cell is so dark that its text must be light


def lines(
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    x_label: str = "",
    y_label: str = "",
    title: str = "",
    x_log: bool = False,
    y_log: bool = False,
    control: str = "",
    theme: str = "light",
) -> Figure:
    """Curves by name, each with ``x`` and ``y`` and, for a band around it, ``low`` and ``high``.

    A value that is not finite leaves a gap. The curve named ``control`` is dashed and grey.
    """
    _check_some("lines", "curves", curves)
    figure, (ax,) = canvas(theme=theme)
    colors = theme_named(theme)
    for i, (name, curve) in enumerate(curves.items()):
        # A color for each curve; when they come round again, another dash.
        color, dash = colors.series[i % len(colors.series)], DASHES[i // len(colors.series) % len(DASHES)]
        if name == control:
            color, dash = colors.soft, DASHES[1]
        x, y = (np.asarray(curve[axis], dtype=float) for axis in ("x", "y"))
        if x.shape != y.shape or x.ndim != 1:
            raise ValueError(sentence("lines", f"x and y of {name!r} must be as long", f"{x.shape} and {y.shape}"))
        y = np.where(np.isfinite(y), y, np.nan)
        marker = ""
        if len(x) <= 12:
            marker = "o"
        ax.plot(x, y, color=color, linestyle=dash, linewidth=1.8, label=name, marker=marker, markersize=4)
        if "low" in curve and "high" in curve:
            low, high = (np.asarray(curve[side], dtype=float) for side in ("low", "high"))
            ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    if x_log:
        ax.set_xscale("log")
    if y_log:
        ax.set_yscale("log")
    ax.set(xlabel=x_label, ylabel=y_label, title=title)
    _draw_legend(figure, ax, colors, len(curves), inside=True)
    return figure


def bars(
    heights: Mapping[str, Mapping[str, float]],
    *,
    errors: Mapping[str, Mapping[str, float]] | None = None,
    x_label: str = "",
    theme: str = "light",
) -> Figure:
    """Lying bars: ``heights[series][category]``, with ``errors`` of the same keys as whiskers.

    Categories run down the page, one bar for each series side by side; a missing or non-finite one leaves a gap.
    """
    _check_some("bars", "heights", heights)
    categories = list(dict.fromkeys(category for values in heights.values() for category in values))
    tall = 0.9 + len(categories) * (0.22 + 0.2 * len(heights))
    figure, (ax,) = canvas(height=max(2.0, tall), theme=theme)
    colors = theme_named(theme)
    thick = 0.78 / len(heights)
    for i, (name, values) in enumerate(heights.items()):
        # The series' bars, side by side within each category, and whiskers where their length is known.
        where = np.arange(len(categories)) + (i - (len(heights) - 1) / 2) * thick
        lengths = np.array([values.get(category, np.nan) for category in categories], dtype=float)
        ax.barh(where, lengths, thick * 0.88, color=colors.series[i % len(colors.series)], label=name)
        spread = np.array([(errors or {}).get(name, {}).get(category, np.nan) for category in categories], dtype=float)
        drawable = np.isfinite(spread) & np.isfinite(lengths)
        ax.errorbar(
            lengths[drawable],
            where[drawable],
            xerr=spread[drawable],
            fmt="none",
            color=colors.ink,
            elinewidth=1.2,
            capsize=2.5,
        )
    ax.set_yticks(range(len(categories)), categories)
    ax.set_ylim(len(categories) - 0.5, -0.5)  # the first on top
    ax.grid(False, axis="y")
    ax.set(xlabel=x_label)
    _draw_legend(figure, ax, colors, len(heights))
    return figure


def reliability(
    count: ArrayLike, confidence: ArrayLike, accuracy: ArrayLike, *, title: str = "", theme: str = "light"
) -> Figure:
    """Accuracy against confidence by bin, from ``metrics.calibration``; the gap to the diagonal is the error.

    Below it, the share of rows in each bin, so that a wild but empty bin is seen for what it is; a bin of fewer than
    ten rows is pale.
    """
    n, sure, right = (np.asarray(v, dtype=float) for v in (count, confidence, accuracy))
    if n.ndim != 1 or not n.shape == sure.shape == right.shape or not n.sum() > 0:
        got = (n.shape, sure.shape, right.shape)
        raise ValueError(sentence("reliability", "count, confidence and accuracy must be (bins,), not all empty", got))
    figure, (top, below) = canvas(2, 1, width=4.4, height=5.0, theme=theme)
    colors = theme_named(theme)
    # Above: a bar of accuracy, a point of mean confidence, and the gap between them.
    edges = np.linspace(0, 1, len(n) + 1)
    centers, thick, filled = (edges[:-1] + edges[1:]) / 2, 0.92 / len(n), n > 0
    gap = np.abs(sure - right)[filled]
    accuracies = top.bar(centers[filled], right[filled], thick, color=colors.series[0], label="accuracy")
    top.vlines(centers[filled], right[filled], sure[filled], color=colors.series[1], linewidth=2.0)
    top.plot(centers[filled], sure[filled], "o", color=colors.series[1], markersize=4.5, label="mean confidence")
    top.plot([0, 1], [0, 1], color=colors.soft, linewidth=1.2, linestyle=DASHES[1])
    # Below: how many rows a bin has.
    below.bar(centers, n / n.sum(), thick, color=colors.series[-1])
    error = float((n[filled] / n.sum() * gap).sum())
    title = title or f"expected calibration error {error:.3f}"
    top.set(ylabel="accuracy", title=title, xlim=(0, 1), ylim=(0, 1))
    below.set(xlabel="confidence", ylabel="share of rows", xlim=(0, 1))
    grid = top.get_gridspec()
    assert grid is not None
    grid.set_height_ratios([3, 1])
    top.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=colors.ink)
    for bar, rows in zip(accuracies, n[filled], strict=True):  # after the legend, whose sample is the first bar
        if rows < _FEW:
            bar.set_alpha(0.35)
    return figure


def confusion(counts: ArrayLike, names: Sequence[str], *, theme: str = "light") -> Figure:
    """Counts of true (down) and predicted (across) classes; a cell's color is its share of the true class.

    Args:
        counts: ``(c, c)``.
        names: The classes'.
        theme: ``light`` or ``dark``.
    """
    from matplotlib.patches import Rectangle

    table = np.asarray(counts, dtype=float)
    c = len(names)
    if table.shape != (c, c) or not c:
        raise ValueError(sentence("confusion", f"counts must have shape ({c}, {c}), as many as names", table.shape))
    colors = theme_named(theme)
    side = float(np.clip(1.6 + 0.52 * c, 3.2, 6.4))
    figure, (ax,) = canvas(width=side + 1.0, height=side, theme=theme)
    # A cell is as dark as its share of the true class; its text is light on dark cells, soft where the count is 0.
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    size = 9.0
    if c > 10:
        size = 7.5
    for (i, j), part in np.ndenumerate(shares):
        cell = Rectangle((j - 0.48, i - 0.48), 0.96, 0.96, facecolor=colors.series[0], alpha=part, linewidth=0)
        ax.add_patch(cell)
        text, ink = f"{table[i, j]:,.0f}", colors.ink
        if table[i, j] == 0:
            text, ink = "\N{MIDDLE DOT}", colors.soft
        if part > _TOP:
            ink = colors.paper
        ax.text(j, i, text, ha="center", va="center", fontsize=size, color=ink)
    ax.set_xticks(range(c), names)
    if sum(map(len, names)) > _TURNED:
        ax.set_xticks(range(c), names, rotation=35, ha="right")
    ax.set_yticks(range(c), names)
    ax.set(xlim=(-0.5, c - 0.5), ylim=(c - 0.5, -0.5), xlabel="predicted", ylabel="true")
    ax.grid(False)
    return figure


def scatter(x: ArrayLike, y: ArrayLike, *, x_label: str = "", y_label: str = "", theme: str = "light") -> Figure:
    """Points with the diagonal on which y equals x, both axes over the same range."""
    across, up = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if across.shape != up.shape or across.ndim != 1 or not len(across):
        raise ValueError(sentence("scatter", "x and y must be as long, not empty", (across.shape, up.shape)))
    figure, (ax,) = canvas(width=5.2, height=4.6, theme=theme)
    colors = theme_named(theme)
    low, high = min(across.min(), up.min()), max(across.max(), up.max())
    room = 0.04 * (high - low) or 1.0
    span = (low - room, high + room)
    ax.plot(span, span, color=colors.soft, linewidth=1.2, linestyle=DASHES[1])
    ax.scatter(across, up, s=14, color=colors.series[0], alpha=0.55, linewidths=0)
    ax.set(xlim=span, ylim=span, xlabel=x_label, ylabel=y_label)
    return figure


def band(
    x: ArrayLike,
    mean: ArrayLike,
    deviation: ArrayLike,
    points: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    title: str = "",
    theme: str = "light",
) -> Figure:
    """A prediction along a line, one and two deviations to each side, over the points it was learned from.

    Args:
        x: Places ``(g,)``, ascending.
        mean: Prediction there ``(g,)``.
        deviation: Its standard deviation ``(g,)``.
        points: Places and targets of the training rows, ``(n,)`` each.
        title: Above it.
        theme: ``light`` or ``dark``.
    """
    at, center, spread = (np.asarray(v, dtype=float) for v in (x, mean, deviation))
    if at.ndim != 1 or not at.shape == center.shape == spread.shape:
        got = (at.shape, center.shape, spread.shape)
        raise ValueError(sentence("band", "x, mean and deviation must have one shape (g,)", got))
    figure, (ax,) = canvas(theme=theme)
    colors = theme_named(theme)
    # Two deviations, then one, so that the inner band is darker.
    for times, alpha, label in ((2, 0.14, "2 deviations"), (1, 0.22, "1 deviation")):
        ax.fill_between(
            at, center - times * spread, center + times * spread, color=colors.series[0], alpha=alpha, linewidth=0,
            label=label,
        )  # fmt: skip
    ax.plot(at, center, color=colors.series[0], linewidth=1.8, label="prediction")
    if points is not None:
        ax.scatter(*points, s=16, color=colors.series[1], edgecolors=colors.paper, linewidths=0.5, label="data")
    ax.set(title=title)
    ax.legend(frameon=False, fontsize=9, labelcolor=colors.ink)
    return figure


def confidence(
    predict_proba: Callable[[NDArray[np.float64]], ArrayLike],
    points: ArrayLike,
    labels: ArrayLike,
    *,
    grid: int = 120,
    title: str = "",
    theme: str = "light",
) -> Figure:
    """Points of the plane by class, over the largest probability around them, from even to certain.

    Args:
        predict_proba: Rows ``(g, 2)`` -> probabilities ``(g, c)``.
        points: ``(n, 2)``.
        labels: Classes ``(n,)``, whole numbers from 0.
        grid: Places asked along each side.
        title: Above it.
        theme: ``light`` or ``dark``.
    """
    x, y = np.asarray(points, dtype=float), np.asarray(labels).astype(int)
    if x.ndim != 2 or x.shape[1] != 2 or len(x) != len(y) or not len(x):
        need = "points and labels must have shapes (n, 2) and (n,)"
        raise ValueError(sentence("confidence", need, (x.shape, y.shape)))
    # The largest probability on a grid that goes one width of the data beyond the points.
    margin = np.maximum(x.max(0) - x.min(0), 1e-9)
    low, high = x.min(0) - margin, x.max(0) + margin
    across, up = (np.linspace(low[i], high[i], grid) for i in (0, 1))
    proba = np.asarray(predict_proba(np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)))
    figure, (ax,) = canvas(width=5.2, height=4.2, theme=theme)
    colors = theme_named(theme)
    image = ax.imshow(
        proba.max(1).reshape(grid, grid), cmap=colors.sequential, vmin=1 / proba.shape[1], vmax=1, origin="lower",
        extent=(low[0], high[0], low[1], high[1]), aspect="auto", interpolation="bilinear",
    )  # fmt: skip
    # The points over it, a marker for each class.
    for c in np.unique(y):
        ax.scatter(
            x[y == c, 0], x[y == c, 1], s=14, marker=MARKERS[c % len(MARKERS)], edgecolors=colors.paper,
            linewidths=0.4, color=colors.series[(c + 1) % len(colors.series)], label=f"class {c}",
        )  # fmt: skip
    ax.grid(False)
    # The scale beside it.
    scale = figure.colorbar(image, ax=ax, pad=0.02)
    scale.set_label("largest probability", color=colors.soft)
    scale.ax.tick_params(colors=colors.soft, labelsize=8, length=0)
    scale.outline.set_visible(False)
    ax.set(title=title)
    return figure


def _check_some(where: str, name: str, values: Mapping[str, object]) -> None:
    if not values:
        raise ValueError(sentence(where, f"{name} must have at least one name", "none"))


def _draw_legend(figure: Figure, ax: Axes, theme: Theme, entries: int, *, inside: bool = False) -> None:
    # None for one entry; beside the curves where few fit there; else below all axes.
    if entries < 2:
        return
    if inside and entries <= _MANY:
        ax.legend(frameon=False, fontsize=9, labelcolor=theme.ink)
        return
    handles, labels = ax.get_legend_handles_labels()
    legend_below(figure, dict(zip(labels, handles, strict=True)), theme=theme.name)
