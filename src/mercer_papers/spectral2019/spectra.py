"""Table 1 and Figures 1(c), 3(c): y^T H^-1 y, eigenvalues, and the labels among the first eigenvectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mercer.features import RandomFourier
from mercer.figures.theme import Figure, canvas, legend_below
from mercer.kernels import RBF, ReLUGram
from mercer.spectral import analyze

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .embedded import COLUMNS, SIZES, embed_pair, pair, required_data

TOP = {"smoke": 10, "small": 100, "paper": 100}
TOLERANCE = 1e-5


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every kernel or embedding on every set; table 1 takes all rows of both classes, as the paper does."""
    complexity = entry.run["shows"] == "complexity"
    common: dict[str, Any] = {"shows": entry.run["shows"]}
    if complexity:
        common |= {"rows": 150 if scale == "smoke" else None, "tolerance": TOLERANCE}
    else:
        common |= {**SIZES[scale], "top": TOP[scale]}
    cells = []
    for set_name in entry.run["sets"]:
        for name, embedding in entry.run["embeddings"].items():
            seeds: int | None = 3
            if scale == "smoke" or (complexity and scale == "small"):
                seeds = 1
            if embedding["kind"] in ("none", "exact"):  # nothing is random
                seeds = None
            settings = {"set": set_name, **common, **embedding}
            cells.append(Cell(entry.id, name, COLUMNS[set_name], settings, required_data(set_name), seeds))
    return cells


def run(cell: Cell) -> Outcome:
    """The complexity of one kernel on one set, or its first eigenvalues and cumulated projections."""
    s, generator = cell.settings, torch.Generator().manual_seed(cell.seed)
    if s["shows"] == "complexity":
        both = pair(s["set"], s["rows"])
        kernel, x = ReLUGram(), both.x
        if s["kind"] == "exact":
            kernel = ReLUGram(RBF(s["gamma"]))
        elif s["kind"] == "rff":
            x = RandomFourier(RBF(s["gamma"]), s["m"], generator=generator).fit_transform(x)
        spectrum = analyze(kernel, x, both.y, tolerance=s["tolerance"])
        return Outcome(value=spectrum.complexity, values={"bound": spectrum.bound}, note=f"{len(x)} rows.")
    # the leading eigenvalues, and the labels' share in their eigenvectors
    both = embed_pair(s, generator)
    spectrum = analyze(ReLUGram(), both.x, both.y, k=s["top"])
    index = [float(i + 1) for i in range(s["top"])]
    cumulated = spectrum.projections.cumsum(0).tolist()
    largest = int(spectrum.projections.argmax()) + 1
    curves = {
        "eigenvalues": {"x": index, "y": (spectrum.eigenvalues / len(both.x)).tolist()},
        "projections": {"x": index, "y": cumulated},
    }
    values = {"first 10": cumulated[9], "complexity / n": spectrum.complexity / len(both.x)}
    note = f"{len(both.x)} rows; eigenvector {largest} holds most, {100 * float(spectrum.projections.max()):.0f} %."
    return Outcome(value=cumulated[-1], values=values, curves=curves, note=note)


def draw(results: Sequence[Result]) -> Figure | None:
    """Eigenvalues of H / n on the left, cumulated projections on the right."""
    if results[0].settings.get("shows") != "spectrum":
        return None
    figure, (left, right) = canvas(1, 2, width=10.4, height=4.2)
    handles: dict[str, Any] = {}
    for result in (r for r in results if r.seed == 0):
        left.plot(result.curves["eigenvalues"]["x"], result.curves["eigenvalues"]["y"])
        (handles[result.row],) = right.plot(result.curves["projections"]["x"], result.curves["projections"]["y"])
    left.set(title="Eigenvalues of H / n", xlabel="eigenvector i", xscale="log", yscale="log")
    right.set(title="Share of the labels in the first i", xlabel="eigenvector i", xscale="log", ylim=(0, 1))
    legend_below(figure, handles)
    return figure
