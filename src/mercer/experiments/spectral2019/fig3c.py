"""Figure 3(c): the labels among the first eigenvectors, with neural embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .alignment import TOP, draw_spectra, spectrum_outcome
from .setting import NEURAL, curve_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cells(entry: Entry, scale: str) -> list[Cell]:
    """One spectrum for each embedding."""
    found = curve_cells("spectral2019/fig3c", ("cifar10",), NEURAL, scale)
    return [replace(cell, settings={**cell.settings, "top": TOP[scale]}) for cell in found]


def run(cell: Cell) -> Outcome:
    """Eigenvalues and cumulated projections."""
    return spectrum_outcome(cell)


def draw(results: list[Result]) -> Figure:
    """Both against the eigenvector's index."""
    return draw_spectra(results)
