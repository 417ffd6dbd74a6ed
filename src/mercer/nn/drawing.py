"""The picture of a learned head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..figures.theme import LIGHT, Figure, canvas
from ..kernels import RadialSeries

if TYPE_CHECKING:
    from .kernel_classifier import KernelClassifier


def draw_head(head: KernelClassifier) -> Figure:
    """K against the cosine, beside the straight line of a linear head; the coefficients where there are some."""
    series = head.kernel
    columns, width = 1, 5.0
    if isinstance(series, RadialSeries):
        columns, width = 2, 9.0
    figure, axes = canvas(columns=columns, width=width)

    # Left: k, and the straight line between its ends, which is what a linear head would be.
    t = torch.linspace(-1, 1, 201, dtype=torch.float64, device=head.weight.device)
    t[0], t[-1] = -1 + 1e-6, 1 - 1e-6  # the indicators live on the ends alone and would draw a spike
    with torch.no_grad():
        k = head.profile(t).cpu()
    axes[0].plot(t.cpu(), k, color=LIGHT.series[0], linewidth=2)
    middle, slope = float(k.mean()), float((k[-1] - k[0]) / 2)
    axes[0].plot(t.cpu(), middle + slope * t.cpu(), color=LIGHT.soft, linewidth=1, linestyle=":")
    axes[0].set_xlabel("cosine t between embedding and class weight")
    axes[0].set_ylabel("k(t)")
    axes[0].set_title("Learned kernel (dotted: a linear one)")

    # Right: the coefficients in force; the first two are those of the indicators.
    if isinstance(series, RadialSeries):
        alpha = series.coefficients.detach().cpu()
        first = 0
        if series.indicators == "off":
            first = 2
        places = range(first - 2, series.order + 1)
        axes[1].bar(list(places), alpha[first:].tolist(), color=LIGHT.series[1])
        polynomial = "t^m"
        if series.basis == "gegenbauer":
            polynomial = "the m-th Gegenbauer polynomial"
        axes[1].set_xlabel("m")
        axes[1].set_ylabel(f"coefficient of {polynomial}")
        axes[1].set_title("Coefficients")
    return figure
