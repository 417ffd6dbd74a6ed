"""Spectra drawn: eigenvalues, cumulated projections, predicted loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import figures

if TYPE_CHECKING:
    from .spectrum import Spectrum


def picture(spectra: Mapping[str, Spectrum], *, steps: int = 200, theme: str = "light") -> figures.Figure:
    """Three panels over the spectra: where H's mass lies, where the targets' mass lies, how fast it is learned.

    Args:
        spectra: By name; an empty name gets no legend. The legend has each ratio, the number to read.
        steps: Steps of the predicted curve, at half of each spectrum's largest stable rate.
        theme: ``light`` or ``dark``.
    """
    figure, (values, shares, losses) = figures.canvas(1, 3, theme=theme)
    for name, spectrum in spectra.items():
        index = range(1, spectrum.k + 1)
        values.plot(index, spectrum.eigenvalues.clamp_min(1e-300).cpu().numpy(), label=name)
        shares.plot(index, spectrum.projections.cumsum(0).cpu().numpy(), label=f"{name} (ratio {spectrum.ratio:.2f})")
        curve = spectrum.convergence(0.5 * spectrum.largest_stable_lr, steps)
        losses.plot((curve / curve[0]).cpu().numpy(), label=name)
    values.set(xlabel="eigenvalue, by rank", title="Eigenvalues of H", xscale="log", yscale="log")
    shares.set(xlabel="eigenvalues counted", title="Share of the targets they hold", ylim=(0, 1.02))
    losses.set(xlabel="step, at half the largest rate", title="Predicted residual", yscale="log")
    if any(spectra):
        shares.legend(frameon=False, fontsize=9, labelcolor=shares.title.get_color())
    return figure
