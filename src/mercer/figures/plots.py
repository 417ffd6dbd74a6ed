"""The common pictures. Each takes plain numbers and returns a matplotlib ``Figure``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import sentence
from .theme import DASHES, Figure, Theme, canvas, legend_below, theme_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 10  # rows below which a bin's accuracy is drawn pale
_MANY = 6  # entries of a legend that fit beside the plot


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
    _some("lines", "curves", curves)
    figure, (ax,) = canvas(theme=theme)
    colours = theme_named(theme)
    for i, (name, curve) in enumerate(curves.items()):
        colour, dash = colours.series[i % len(colours.series)], DASHES[i // len(colours.series) % len(DASHES)]
        if name == control:
            colour, dash = colours.soft, DASHES[1]
        x, y = _pair("lines", name, curve)
        few = len(x) <= 12
        ax.plot(x, y, color=colour, linestyle=dash, linewidth=1.8, label=name, marker="o" if few else "", markersize=4)
        if "low" in curve and "high" in curve:
            low, high = (np.asarray(curve[side], dtype=float) for side in ("low", "high"))
            ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.set_xscale("log" if x_log else "linear")
    ax.set_yscale("log" if y_log else "linear")
    _label(ax, x_label, y_label, title)
    _legend(figure, ax, colours, len(curves), inside=True)
    return figure


def bars(
    heights: Mapping[str, Mapping[str, float]],
    *,
    errors: Mapping[str, Mapping[str, float]] | None = None,
    x_label: str = "",
    title: str = "",
    theme: str = "light",
) -> Figure:
    """Lying bars: ``heights[series][category]``, with ``errors`` of the same keys as whiskers.

    Categories run down the page, one bar for each series side by side; a missing or non-finite one leaves a gap.
    """
    _some("bars", "heights", heights)
    categories = list(dict.fromkeys(category for values in heights.values() for category in values))
    tall = 0.9 + len(categories) * (0.22 + 0.2 * len(heights))
    figure, (ax,) = canvas(height=max(2.0, tall), theme=theme)
    colours = theme_named(theme)
    thick = 0.78 / len(heights)
    for i, (name, values) in enumerate(heights.items()):
        where = np.arange(len(categories)) + (i - (len(heights) - 1) / 2) * thick
        lengths = np.array([values.get(category, np.nan) for category in categories], dtype=float)
        ax.barh(where, lengths, thick * 0.88, color=colours.series[i % len(colours.series)], label=name)
        spread = np.array([(errors or {}).get(name, {}).get(category, np.nan) for category in categories], dtype=float)
        known = np.isfinite(spread) & np.isfinite(lengths)
        ax.errorbar(
            lengths[known], where[known], xerr=spread[known], fmt="none", color=colours.ink, elinewidth=1.2, capsize=2.5
        )
    ax.set_yticks(range(len(categories)), categories)
    ax.set_ylim(len(categories) - 0.5, -0.5)  # the first on top
    ax.grid(False, axis="y")
    _label(ax, x_label, "", title)
    _legend(figure, ax, colours, len(heights))
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
    colours = theme_named(theme)
    edges = np.linspace(0, 1, len(n) + 1)
    middle, thick, filled = (edges[:-1] + edges[1:]) / 2, 0.92 / len(n), n > 0
    gap = np.abs(sure - right)[filled]
    drawn = top.bar(middle[filled], right[filled], thick, color=colours.series[0], label="accuracy")
    top.vlines(middle[filled], right[filled], sure[filled], color=colours.series[1], linewidth=2.0)
    top.plot(middle[filled], sure[filled], "o", color=colours.series[1], markersize=4.5, label="mean confidence")
    top.plot([0, 1], [0, 1], color=colours.soft, linewidth=1.2, linestyle=DASHES[1])
    below.bar(middle, n / n.sum(), thick, color=colours.series[-1])
    error = float((n[filled] / n.sum() * gap).sum())
    _label(top, "", "accuracy", title or f"expected calibration error {error:.3f}")
    _label(below, "confidence", "share of rows", "")
    for ax in (top, below):
        ax.set_xlim(0, 1)
    top.set_ylim(0, 1)
    grid = top.get_gridspec()
    assert grid is not None
    grid.set_height_ratios([3, 1])
    top.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=colours.ink)
    for bar, rows in zip(drawn, n[filled], strict=True):  # after the legend, whose sample is the first bar
        bar.set_alpha(0.35 if rows < _FEW else None)
    return figure


def _pair(where: str, name: str, curve: Mapping[str, Sequence[float]]) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = (np.asarray(curve[axis], dtype=float) for axis in ("x", "y"))
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(sentence(where, f"x and y of {name!r} must be as long", f"{x.shape} and {y.shape}"))
    return x, np.where(np.isfinite(y), y, np.nan)


def _some(where: str, name: str, values: Mapping[str, object]) -> None:
    if not values:
        raise ValueError(sentence(where, f"{name} must have at least one name", "none"))


def _label(ax: Axes, x_label: str, y_label: str, title: str) -> None:
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_title(title, loc="center")


def _legend(figure: Figure, ax: Axes, theme: Theme, entries: int, *, inside: bool = False) -> None:
    if entries < 2:
        return
    if inside and entries <= _MANY:
        ax.legend(frameon=False, fontsize=9, labelcolor=theme.ink)
        return
    handles, labels = ax.get_legend_handles_labels()
    legend_below(figure, dict(zip(labels, handles, strict=True)), theme=theme.name)
