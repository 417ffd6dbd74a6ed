"""Figure 1: the regions that softmax and the kernelised head cut on the sphere (Section 6.1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ... import figures
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..results import Result
from .sphere_heads import SIZES, fit_on_sphere, sphere_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cells", "draw", "run"]

_ROWS = ("Data", "Softmax", "Kernelized", "Mercer's head", "Bayes optimal")
_GRID = (45, 90)  # latitudes, longitudes


def cells(entry: Entry, scale: str) -> list[Cell]:
    """The data and each classifier's map of the sphere; one draw of the centres, as in the paper."""
    settings = {**SIZES[scale], "grid": list(_GRID)}
    return [
        Cell(entry.id, row=row, settings={**settings, "shows": row}, seeds={"smoke": 1, "small": 3, "paper": 5}[scale])
        for row in _ROWS
    ]


def run(cell: Cell) -> Outcome:
    """Probability of the orange class at every latitude and longitude; of the data, a few hundred points."""
    drawn = sphere_of(cell.settings, cell.seed)
    shows = cell.settings["shows"]
    if shows == "Data":
        shown = drawn.x_train[:600]
        points = torch.stack((_longitude(shown), shown[:, 2].asin(), drawn.y_train[:600].float()), 1)
        return Outcome(arrays={"points": points.tolist()})
    latitude = torch.linspace(-math.pi / 2, math.pi / 2, cell.settings["grid"][0])
    longitude = torch.linspace(-math.pi, math.pi, cell.settings["grid"][1])
    u = torch.stack(
        [
            latitude.cos()[:, None] * longitude.cos()[None],
            latitude.cos()[:, None] * longitude.sin()[None],
            latitude.sin()[:, None].expand(-1, len(longitude)),
        ],
        2,
    ).reshape(-1, 3)
    best = drawn.posterior(u)[:, 1]
    if shows == "Bayes optimal":
        orange = best
    else:
        head = fit_on_sphere(shows, drawn, cell.settings, cell.seed)
        with torch.no_grad():
            orange = head(u).softmax(1)[:, 1]
    shape = (len(latitude), len(longitude))
    area = latitude.cos()[:, None].expand(shape).reshape(-1)  # of the sphere that a point of the grid stands for
    agreement = float((((orange > 0.5) == (best > 0.5)).float() * area).sum() / area.sum())
    return Outcome(
        arrays={"orange": orange.reshape(shape).tolist()}, values={"agreement with the Bayes rule": agreement}
    )


def draw(results: list[Result]) -> Figure:
    """Maps of the whole sphere, blue and orange, with the data's points in the first."""
    by_row = {result.settings["shows"]: result for result in results if result.seed == 0}
    shown = [row for row in _ROWS if row in by_row]
    figure, axes = figures.canvas(columns=len(shown), width=2.7 * len(shown), height=2.4)
    for axis, row in zip(axes, shown, strict=True):
        arrays = by_row[row].arrays
        axis.set_title(row, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        if "points" in arrays:
            x, y, orange = zip(*arrays["points"], strict=True)
            colours = [figures.LIGHT.series[1] if o else figures.LIGHT.series[0] for o in orange]
            axis.scatter(x, y, c=colours, s=3, linewidths=0)
            axis.set_xlim(-math.pi, math.pi)
            axis.set_ylim(-math.pi / 2, math.pi / 2)
        else:
            axis.contourf(
                torch.linspace(-math.pi, math.pi, len(arrays["orange"][0])),
                torch.linspace(-math.pi / 2, math.pi / 2, len(arrays["orange"])),
                arrays["orange"],
                levels=[-0.01, 0.5, 1.01],
                colors=[figures.LIGHT.series[0], figures.LIGHT.series[1]],
                alpha=0.75,
            )
    axes[0].set_xlabel("longitude")
    axes[0].set_ylabel("latitude")
    return figure


def _longitude(u: torch.Tensor) -> torch.Tensor:
    return torch.atan2(u[:, 1], u[:, 0])
