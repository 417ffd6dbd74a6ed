"""Pictures of the paper's figures, from stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import figures
from ..results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_step(results: Sequence[Result], curve: str, label: str, *, log: bool = False) -> Figure:
    """One curve of each cell against the step, a panel for each data set."""
    return panels(results, curve, label, "step", log=log)


def panels(results: Sequence[Result], curve: str, label: str, x_label: str, *, log: bool = False) -> Figure:
    """One curve of each cell, a panel for each data set; the first seed is drawn."""
    sets = list(dict.fromkeys(result.column for result in results))
    figure, axes = figures.canvas(1, len(sets), width=5.2 * len(sets), height=3.8)
    handles: dict[str, Any] = {}
    for ax, name in zip(axes, sets, strict=True):
        for result in results:
            if result.column == name and result.seed == 0:
                (line,) = ax.plot(result.curves[curve]["x"], result.curves[curve]["y"], label=result.row)
                handles.setdefault(result.row, line)
        ax.set(title=name, xlabel=x_label, ylabel=label if ax is axes[0] else "")
        if log:
            ax.set_yscale("log")
    legend_below(figure, handles)
    return figure


def legend_below(figure: Figure, handles: Mapping[str, Any]) -> None:
    """One legend for all panels, under them, in the page's ink."""
    names, ink = list(handles), figures.LIGHT.ink
    figure.legend(
        handles.values(), names, loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=ink
    )
