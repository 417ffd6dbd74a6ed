"""Figure 5: accuracy and time of Kernel SGD by batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import figures
from ..cells import Cell, Outcome
from ..results import Result
from .curves import legend
from .setting import KINDS, needed
from .training import Plan, searched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = {"smoke": (32, 64), "small": (16, 64, 256), "paper": (16, 32, 64, 128, 256, 512, 1024)}


def cells(scale: str) -> list[Cell]:
    """One training for each data set and batch size."""
    return [
        Cell(
            "chen2022/fig5",
            row=f"{name}, batch {batch}",
            settings={"data": name, "batch": batch, "scale": scale},
            data=needed(name),
            seeds=1,
        )
        for name in KINDS
        for batch in BATCHES[scale]
    ]


def run(cell: Cell) -> Outcome:
    """Test accuracy and time of the best try."""
    settings = cell.settings
    best = searched(Plan(settings["data"], "ours", settings["scale"], cell.seed, batch=settings["batch"]))
    return Outcome(best.test, {"time": best.seconds}, note=best.note())


def draw(results: list[Result]) -> Figure:
    """Accuracy and time against the batch size, one line for each data set."""
    figure, axes = figures.canvas(1, 2, width=10.0, height=3.8)
    handles: dict[str, Any] = {}
    for name in dict.fromkeys(str(result.settings["data"]) for result in results):
        own = sorted((r for r in results if r.settings["data"] == name), key=lambda r: int(r.settings["batch"]))
        sizes = [r.settings["batch"] for r in own]
        (handles[name],) = axes[0].plot(sizes, [r.value or 0.0 for r in own], marker="o", markersize=4)
        axes[1].plot(sizes, [r.values["time"] for r in own], marker="o", markersize=4)
    for ax, label in zip(axes, ("test accuracy, %", "time, s"), strict=True):
        ax.set(xscale="log", xlabel="batch size", ylabel=label)
        sizes = sorted({int(r.settings["batch"]) for r in results})
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.minorticks_off()
    axes[1].set_yscale("log")
    legend(figure, handles)
    return figure
