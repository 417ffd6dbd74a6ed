"""Pictures of a model's scores: the confusion matrix, predictions against values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..checks import sentence
from .theme import DASHES, Figure, canvas, theme_named

_TURNED = 34  # letters of all names together from which on those below are turned
_TOP = 0.55  # share from which on a cell is so dark that its text must be light


def confusion(counts: ArrayLike, names: Sequence[str], *, title: str = "", theme: str = "light") -> Figure:
    """Counts of true (down) and predicted (across) classes; a cell's colour is its share of the true class.

    Args:
        counts: ``(c, c)``.
        names: The classes'.
        title: Above it.
        theme: ``light`` or ``dark``.
    """
    from matplotlib.patches import Rectangle

    table = np.asarray(counts, dtype=float)
    c = len(names)
    if table.shape != (c, c) or not c:
        raise ValueError(sentence("confusion", f"counts must have shape ({c}, {c}), as many as names", table.shape))
    colours = theme_named(theme)
    side = float(np.clip(1.6 + 0.52 * c, 3.2, 6.4))
    figure, (ax,) = canvas(width=side + 1.0, height=side, theme=theme)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    for (i, j), share in np.ndenumerate(shares):
        cell = Rectangle((j - 0.48, i - 0.48), 0.96, 0.96, facecolor=colours.series[0], alpha=share, linewidth=0)
        ax.add_patch(cell)
        text = f"{table[i, j]:,.0f}" if table[i, j] else "\N{MIDDLE DOT}"
        ink = colours.paper if share > _TOP else colours.ink if table[i, j] else colours.soft
        ax.text(j, i, text, ha="center", va="center", fontsize=9 if c <= 10 else 7.5, color=ink)
    turned = sum(map(len, names)) > _TURNED
    ax.set_xticks(range(c), names, rotation=35 if turned else 0, ha="right" if turned else "center")
    ax.set_yticks(range(c), names)
    ax.set(xlim=(-0.5, c - 0.5), ylim=(c - 0.5, -0.5), xlabel="predicted", ylabel="true", title=title)
    ax.grid(False)
    return figure


def scatter(
    x: ArrayLike, y: ArrayLike, *, x_label: str = "", y_label: str = "", title: str = "", theme: str = "light"
) -> Figure:
    """Points with the diagonal on which y equals x, both axes over the same range."""
    across, up = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if across.shape != up.shape or across.ndim != 1 or not len(across):
        raise ValueError(sentence("scatter", "x and y must be as long, not empty", (across.shape, up.shape)))
    figure, (ax,) = canvas(width=5.2, height=4.6, theme=theme)
    colours = theme_named(theme)
    low, high = min(across.min(), up.min()), max(across.max(), up.max())
    room = 0.04 * (high - low) or 1.0
    ax.plot(
        [low - room, high + room], [low - room, high + room], color=colours.soft, linewidth=1.2, linestyle=DASHES[1]
    )
    ax.scatter(across, up, s=14, color=colours.series[0], alpha=0.55, linewidths=0)
    ax.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
    ax.set(xlabel=x_label, ylabel=y_label, title=title)
    return figure
