"""Theorem 1: HSIC rises with every layer, and comes within any delta of its maximum."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ... import figures
from ...layerwise import fit_closed_form
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .sets import fold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY = "masoomi2020/thm1"
SETS = ("random", "adver", "spiral", "wine")
DELTA = 0.02


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Four sets that need no download."""
    sets = ("wine",) if scale == "smoke" else SETS
    return [Cell(ENTRY, row=name, settings={"set": name, "delta": DELTA}) for name in sets]


def run(cell: Cell) -> Outcome:
    """The chain of W_s with bandwidths narrow enough; passed where H rises strictly to 1 - delta."""
    parts, delta = fold(cell.settings["set"], 0), cell.settings["delta"]
    chain = fit_closed_form(
        parts.x_train, parts.y_train, parts.c, rule="authors", max_layers=20, enough=1 - delta, restarts=10
    )
    H = [record.hsic for record in chain.history]
    rising = all(b > a for a, b in itertools.pairwise(H))
    curves = {"H": {"x": [float(i + 1) for i in range(len(H))], "y": H}}
    note = f"{len(H)} layers, {'strictly rising' if rising else 'not rising'}, H = {H[-1]:.3f}."
    return Outcome(
        value=H[-1], values={"layers": float(len(H))}, curves=curves, passed=rising and H[-1] >= 1 - delta, note=note
    )


def draw(results: list[Result]) -> Figure:
    """H by layer."""
    curves = {result.row: result.curves["H"] for result in results}
    return figures.lines(curves, x_label="layer", y_label="normalised HSIC", title="Theorem 1: H rises to 1")
