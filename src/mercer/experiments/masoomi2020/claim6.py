"""Claim 6: the objective is a sum less the penalties D_i times the squared norms of the samples."""

from __future__ import annotations

import torch

from ...layerwise import ism
from ...layerwise.bandwidths import most_dependent
from ...layerwise.penalty import implicit_penalty
from ..catalogue import Entry
from ..cells import Cell, Outcome
from .sets import fold

ENTRY = "masoomi2020/claim6"
EQUAL = 1e-8


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Even classes, uneven classes where a between-class Gamma is positive, and wine."""
    return [Cell(ENTRY, row=name, settings={"set": name}) for name in ("wine", "spiral", "uneven")]


def run(cell: Cell) -> Outcome:
    """The gap of the identity, as we read it and as it is printed (norms not squared, |Gamma|)."""
    parts = fold("wine" if cell.settings["set"] == "uneven" else cell.settings["set"], 0)
    r, y, c = parts.x_train, parts.y_train, parts.c
    if cell.settings["set"] == "uneven":  # one class far larger than the others
        keep = torch.cat([(y == k).nonzero()[: (40, 4, 4)[k], 0] for k in range(c)])
        r, y = r[keep], y[keep]
    sigma = most_dependent(r, y, c)
    w = ism(r, y, c, sigma, width=min(c - 1, r.shape[1])).w
    ours, printed = implicit_penalty(r, w, y, c, sigma), implicit_penalty(r, w, y, c, sigma, as_printed=True)
    norms = (r @ w).norm(dim=1)
    not_squared = ours.attraction - float((ours.penalties * norms).sum())
    gaps = {
        "signed, squared": abs(ours.attraction - ours.charge - ours.objective) / abs(ours.objective),
        "|Gamma|, squared": abs(printed.attraction - printed.charge - ours.objective) / abs(ours.objective),
        "signed, norm": abs(not_squared - ours.objective) / abs(ours.objective),
    }
    note = f"Relative gaps: {', '.join(f'{name} {gap:.1e}' for name, gap in gaps.items())}."
    return Outcome(value=gaps["signed, squared"], values=gaps, passed=gaps["signed, squared"] < EQUAL, note=note)
