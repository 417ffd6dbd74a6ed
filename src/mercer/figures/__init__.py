"""Plots in one style, for light and dark pages."""

from .plots import bars, heat_map, lines, regions, reliability
from .scores import confusion, scatter
from .theme import DARK, LIGHT, Theme, canvas, legend_below, png, svg
from .uncertainty import band, confidence

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "band",
    "bars",
    "canvas",
    "confidence",
    "confusion",
    "heat_map",
    "legend_below",
    "lines",
    "png",
    "regions",
    "reliability",
    "scatter",
    "svg",
]
