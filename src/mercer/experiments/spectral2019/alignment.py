"""Figures 1(c) and 3(c): eigenvalues of H and how soon the labels are found among the first eigenvectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import figures
from ...kernels import ReLUGram
from ...spectral import analyze
from ..cells import Cell, Outcome
from ..results import Result
from .drawing import legend_below
from .setting import embedded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = {"smoke": 10, "small": 100, "paper": 100}


def spectrum_outcome(cell: Cell) -> Outcome:
    """The first eigenvalues and the cumulated projections of the labels; the value is the share they hold."""
    s = cell.settings
    generator = torch.Generator().manual_seed(cell.seed)
    both = embedded(s["set"], s["embedding"], s["rows"], s["test"], s["units"], s["epochs"], generator)
    spectrum = analyze(ReLUGram(), both.x, both.y, k=s["top"])
    index = [float(i + 1) for i in range(s["top"])]
    share = spectrum.projections.cumsum(0).tolist()
    curves = {
        "eigenvalues": {"x": index, "y": (spectrum.eigenvalues / len(both.x)).tolist()},
        "projections": {"x": index, "y": share},
    }
    return Outcome(value=share[-1], values={"first 10": share[9]}, curves=curves, note=f"{len(both.x)} rows.")


def draw_spectra(results: list[Result]) -> Figure:
    """Eigenvalues of H / n on the left, cumulated projections on the right."""
    figure, (left, right) = figures.canvas(1, 2, width=10.4, height=3.8)
    for result in results:
        if result.seed == 0:
            left.plot(result.curves["eigenvalues"]["x"], result.curves["eigenvalues"]["y"])
            right.plot(result.curves["projections"]["x"], result.curves["projections"]["y"], label=result.row)
    left.set(title="Eigenvalues of H / n", xlabel="eigenvector i", xscale="log", yscale="log")
    right.set(title="Share of the labels in the first i", xlabel="eigenvector i", xscale="log", ylim=(0, 1))
    handles, names = right.get_legend_handles_labels()
    legend_below(figure, dict(zip(names, handles, strict=True)))
    return figure
