"""Plots in one style, for light and dark pages."""

from .narrow import narrow, write_svg
from .plots import band, bars, confidence, confusion, lines, reliability, scatter
from .theme import DARK, LIGHT, Figure, Theme, canvas, legend_below, png, svg

__all__ = [
    "DARK",
    "LIGHT",
    "Figure",
    "Theme",
    "band",
    "bars",
    "canvas",
    "confidence",
    "confusion",
    "legend_below",
    "lines",
    "narrow",
    "png",
    "reliability",
    "scatter",
    "svg",
    "write_svg",
]
