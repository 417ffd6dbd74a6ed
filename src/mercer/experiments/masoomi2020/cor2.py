"""Corollary 2: as H rises to its maximum, MSE and cross-entropy fall to theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import figures
from ...layerwise import fit_spectral
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .sets import fold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY = "masoomi2020/cor2"
SETS = ("random", "spiral", "wine")
NEAR = 0.05


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Three sets that need no download."""
    sets = ("wine",) if scale == "smoke" else SETS
    return [Cell(ENTRY, row=name, settings={"set": name}) for name in sets]


def run(cell: Cell) -> Outcome:
    """MSE to translated labels in IDS, relative to the outputs' variance, and CE after the change of basis in RKHS."""
    parts = fold(cell.settings["set"], 0)
    generator = torch.Generator().manual_seed(0)
    chain = fit_spectral(parts.x_train, parts.y_train, parts.c, enough=0.999, generator=generator)
    H = [record.hsic for record in chain.history]
    last = chain.history[-1]
    spread = float((chain.outputs - chain.outputs.mean(0)).square().sum(1).mean())
    curves = {
        "MSE": {"x": H, "y": [record.mse for record in chain.history]},
        "CE": {"x": H, "y": [record.ce for record in chain.history]},
    }
    return Outcome(
        values={"H": last.hsic, "MSE": last.mse, "MSE / variance": last.mse / spread, "CE": last.ce},
        curves=curves,
        passed=last.ce < NEAR and last.mse / spread < NEAR,
        note=f"At H = {last.hsic:.3f}: CE {last.ce:.4f}, MSE {last.mse / spread:.4f} of the outputs' variance.",
    )


def draw(results: list[Result]) -> Figure:
    """CE against H."""
    curves = {result.row: result.curves["CE"] for result in results}
    return figures.lines(
        curves, x_label="normalised HSIC", y_label="cross-entropy", title="Corollary 2.2: CE falls as H rises"
    )
