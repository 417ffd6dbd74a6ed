"""Where a model is sure: a curve with bands, the plane shaded by confidence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import sentence
from .theme import MARKERS, Figure, canvas, theme_named


def band(
    x: ArrayLike,
    mean: ArrayLike,
    deviation: ArrayLike,
    points: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    x_label: str = "",
    y_label: str = "",
    title: str = "",
    theme: str = "light",
) -> Figure:
    """A prediction along a line, one and two deviations to each side, over the points it was learned from.

    Args:
        x: Places ``(g,)``, ascending.
        mean: Prediction there ``(g,)``.
        deviation: Its standard deviation ``(g,)``.
        points: Places and targets of the training rows, ``(n,)`` each.
        x_label: Under the picture.
        y_label: Beside it.
        title: Above it.
        theme: ``light`` or ``dark``.
    """
    at, middle, spread = (np.asarray(v, dtype=float) for v in (x, mean, deviation))
    if at.ndim != 1 or not at.shape == middle.shape == spread.shape:
        got = (at.shape, middle.shape, spread.shape)
        raise ValueError(sentence("band", "x, mean and deviation must have one shape (g,)", got))
    figure, (ax,) = canvas(theme=theme)
    colours = theme_named(theme)
    for times, alpha in ((2, 0.14), (1, 0.22)):
        label = f"{times} deviation" + ("s" if times > 1 else "")
        ax.fill_between(
            at, middle - times * spread, middle + times * spread, color=colours.series[0], alpha=alpha, linewidth=0,
            label=label,
        )  # fmt: skip
    ax.plot(at, middle, color=colours.series[0], linewidth=1.8, label="prediction")
    if points is not None:
        ax.scatter(*points, s=16, color=colours.series[1], edgecolors=colours.paper, linewidths=0.5, label="data")
    ax.set(xlabel=x_label, ylabel=y_label, title=title)
    ax.legend(frameon=False, fontsize=9, labelcolor=colours.ink)
    return figure


def confidence(
    predict_proba: Callable[[NDArray[np.float64]], ArrayLike],
    points: ArrayLike,
    labels: ArrayLike,
    *,
    reach: float = 1.0,
    grid: int = 120,
    x_label: str = "",
    y_label: str = "",
    title: str = "",
    theme: str = "light",
) -> Figure:
    """Points of the plane by class, over the largest probability around them, from even to certain.

    Args:
        predict_proba: Rows ``(g, 2)`` -> probabilities ``(g, c)``.
        points: ``(n, 2)``.
        labels: Classes ``(n,)``, whole numbers from 0.
        reach: How far beyond the points to look, in widths of the data.
        grid: Places asked along each side.
        x_label: Under the picture.
        y_label: Beside it.
        title: Above it.
        theme: ``light`` or ``dark``.
    """
    x, y = np.asarray(points, dtype=float), np.asarray(labels).astype(int)
    if x.ndim != 2 or x.shape[1] != 2 or len(x) != len(y) or not len(x):
        need = "points and labels must have shapes (n, 2) and (n,)"
        raise ValueError(sentence("confidence", need, (x.shape, y.shape)))
    margin = reach * np.maximum(x.max(0) - x.min(0), 1e-9)
    low, high = x.min(0) - margin, x.max(0) + margin
    across, up = (np.linspace(low[i], high[i], grid) for i in (0, 1))
    proba = np.asarray(predict_proba(np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)))
    figure, (ax,) = canvas(width=5.2, height=4.2, theme=theme)
    colours = theme_named(theme)
    image = ax.imshow(
        proba.max(1).reshape(grid, grid), cmap=colours.sequential, vmin=1 / proba.shape[1], vmax=1, origin="lower",
        extent=(low[0], high[0], low[1], high[1]), aspect="auto", interpolation="bilinear",
    )  # fmt: skip
    for c in np.unique(y):
        ax.scatter(
            x[y == c, 0], x[y == c, 1], s=14, marker=MARKERS[c % len(MARKERS)], edgecolors=colours.paper,
            linewidths=0.4, color=colours.series[(c + 1) % len(colours.series)], label=f"class {c}",
        )  # fmt: skip
    ax.grid(False)
    scale = figure.colorbar(image, ax=ax, pad=0.02)
    scale.set_label("largest probability", color=colours.soft)
    scale.ax.tick_params(colors=colours.soft, labelsize=8, length=0)
    scale.outline.set_visible(False)
    ax.set(xlabel=x_label, ylabel=y_label, title=title)
    return figure
