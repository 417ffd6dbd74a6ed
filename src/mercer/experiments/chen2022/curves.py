"""Figures 2 and 3: the trainings of Table 3 by epoch, drawn one panel for each data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import figures
from ..cells import Cell, Outcome
from ..results import Result
from .methods import LAST_LAYER, SECOND_ORDER
from .setting import KINDS, needed
from .training import Plan, searched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["curve_cells", "curve_outcome", "panels"]


def curve_cells(entry: str, scale: str) -> list[Cell]:
    """One curve for each data set and optimizer."""
    return [
        Cell(
            entry,
            row=method,
            column=name,
            settings={"data": name, "method": method, "scale": scale},
            data=needed(name),
            seeds=1,
        )
        for name in KINDS
        for method in (*SECOND_ORDER, LAST_LAYER)
    ]


def curve_outcome(cell: Cell, which: str) -> Outcome:
    """The best try's training loss or validation accuracy by epoch."""
    best = searched(Plan(cell.settings["data"], cell.settings["method"], cell.settings["scale"], cell.seed))
    y = best.losses if which == "loss" else best.validation
    curve = {"x": [float(i + 1) for i in range(len(y))], "y": list(y)}
    value = min(y) if which == "loss" else max(y)
    return Outcome(value=value, curves={which: curve}, note=best.note())


def panels(results: Sequence[Result], curve: str, label: str, *, top: float | None = None) -> Figure:
    """One curve of each cell, a panel for each data set, in rows of three; what exceeds ``top`` leaves the panel."""
    sets = list(dict.fromkeys(result.column for result in results))
    wide = min(3, len(sets))
    high = -(-len(sets) // wide)
    figure, axes = figures.canvas(high, wide, width=4.0 * wide, height=3.0 * high + 0.6)
    handles: dict[str, Any] = {}
    for i, ax in enumerate(axes):
        if i >= len(sets):
            ax.set_visible(False)
            continue
        for result in results:
            if result.column == sets[i] and result.seed == 0:
                (line,) = ax.plot(result.curves[curve]["x"], result.curves[curve]["y"], label=result.row)
                handles.setdefault(result.row, line)
        ax.set(title=sets[i], xlabel="epoch" if i >= len(sets) - wide else "", ylabel=label if i % wide == 0 else "")
        longest = max(len(r.curves[curve]["x"]) for r in results if r.column == sets[i])
        ax.set_xticks(range(1, longest + 1, -(-longest // 8)))
        if top is not None:
            ax.set_ylim(0, top)
    legend(figure, handles)
    return figure


def legend(figure: Figure, handles: dict[str, Any]) -> None:
    """One legend under all panels, in the page's ink."""
    figure.legend(
        handles.values(),
        list(handles),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
        labelcolor=figures.LIGHT.ink,
    )
