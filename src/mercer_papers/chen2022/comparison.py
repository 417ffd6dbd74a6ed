"""Tables 1, 3, 4 and Figures 2 to 5: optimizers, matrices, layers and batch sizes on seven data sets.

An entry's ``run`` table in the TOML names its ``variants`` (what each changes of `Plan`) and what it ``shows``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from mercer.figures import plots
from mercer.figures.theme import Figure, canvas, legend_below

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .sets import KINDS, required_data, size
from .training import Plan, Run, search

_SHOWN: dict[str, Callable[[Run], float]] = {
    "training accuracy": lambda run: run.train,
    "test accuracy": lambda run: run.test,
    "train-test gap": lambda run: run.train - run.test,
    "time": lambda run: run.seconds,
    "Hessian": lambda run: run.state_mb,
    "training loss": lambda run: min(run.losses),
    "validation accuracy": lambda run: max(run.validation),
}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One training for each data set and variant; the variants of Table 1 are columns, of the others rows."""
    suffixed = entry.run.get("layout") == "columns"
    cells = []
    for name, kind in KINDS.items():
        seeds = {"smoke": 1, "small": 3 if name in ("mnist", "usps") else 1, "paper": 5}[scale]
        for variant, changes in entry.run["variants"].items():
            # some variants are for some kinds of data, or for paper scale
            if kind not in changes.get("kinds", (kind,)) or (changes.get("scale") == "paper" != scale):
                continue
            suffix = f", {variant}" if suffixed else ""
            settings = {
                "data": name, "method": "Kernel SGD", "matrix": "RBF", "layers": "last", "batch": 64,
                **size(name, scale),
                **{key: value for key, value in changes.items() if key not in ("kinds", "scale")},
                "variant": variant,
                "shows": [f"{shown}{suffix}" for shown in entry.run["shows"]],
            }  # fmt: skip
            row = name if suffixed else f"{name}, {variant}"
            cells.append(Cell(entry.id, row, "", settings, required_data(name), seeds))
    return cells


def run(cell: Cell) -> Outcome:
    """The best try's numbers, and its loss and validation accuracy by epoch."""
    # the search's best try
    names = {f.name for f in fields(Plan)}
    settings = {name: value for name, value in cell.settings.items() if name in names}
    best = search(Plan(**settings, seed=cell.seed, device=cell.device))
    values = {name: _SHOWN[name.split(",")[0]](best) for name in cell.settings["shows"]}
    # what is shown of it
    epochs = [float(i + 1) for i in range(len(best.losses))]
    curves = {
        "training loss": {"x": epochs, "y": best.losses},
        "validation accuracy": {"x": epochs, "y": best.validation},
    }
    return Outcome(values=values, curves=curves, note=best.note())


def draw(results: Sequence[Result]) -> Figure:
    """By epoch for the figures of curves, by batch size for Figure 5, as bars otherwise."""
    shown = results[0].settings["shows"][0]
    if shown in ("training loss", "validation accuracy"):
        return _panels(results, shown)
    if len({result.settings["batch"] for result in results}) > 1:
        return _by_batch(results)
    heights: dict[str, dict[str, float]] = {}
    for result in results:
        heights.setdefault(result.settings["variant"], {})[result.settings["data"]] = next(iter(result.values.values()))
    return plots.bars(heights, x_label=f"{shown.partition(', ')[0]}, %")


def _panels(results: Sequence[Result], curve: str) -> Figure:
    """One curve of each variant, a panel for each data set, in rows of three."""
    sets = list(dict.fromkeys(result.settings["data"] for result in results))
    wide = min(3, len(sets))
    high = -(-len(sets) // wide)
    figure, axes = canvas(high, wide, width=4.0 * wide, height=3.0 * high + 0.9)
    handles: dict[str, Any] = {}
    for i, ax in enumerate(axes):
        if i >= len(sets):
            ax.set_visible(False)
            continue
        results_of_set = [result for result in results if result.settings["data"] == sets[i] and result.seed == 0]
        for result in results_of_set:
            (line,) = ax.plot(result.curves[curve]["x"], result.curves[curve]["y"])
            handles.setdefault(result.settings["variant"], line)
        unit = ", %" if "accuracy" in curve else ""
        ax.set(title=sets[i], xlabel="epoch" if i >= len(sets) - wide else "")
        ax.set_ylabel(f"{curve}{unit}" if i % wide == 0 else "")
        # a tick for each epoch, eight at most
        longest = max(len(result.curves[curve]["x"]) for result in results_of_set)
        ax.set_xticks(range(1, longest + 1, -(-longest // 8)))
        if curve == "training loss":
            firsts = sorted(result.curves[curve]["y"][0] for result in results_of_set)
            ax.set_ylim(0, 1.5 * firsts[len(firsts) // 2])  # a try that explodes at first must not flatten the rest
    legend_below(figure, handles)
    return figure


def _by_batch(results: Sequence[Result]) -> Figure:
    figure, axes = canvas(1, 2, width=10.0, height=4.2)
    handles: dict[str, Any] = {}
    for name in dict.fromkeys(str(result.settings["data"]) for result in results):
        results_of_set = [r for r in results if r.settings["data"] == name and r.seed == 0]
        results_of_set.sort(key=lambda r: int(r.settings["batch"]))
        sizes = [r.settings["batch"] for r in results_of_set]
        for ax, value in zip(axes, ("test accuracy", "time"), strict=True):
            (handles[name],) = ax.plot(sizes, [r.values[value] for r in results_of_set], marker="o", markersize=4)
    for ax, label in zip(axes, ("test accuracy, %", "time, s"), strict=True):
        ax.set(xscale="log", xlabel="batch size", ylabel=label)
    legend_below(figure, handles)
    return figure
