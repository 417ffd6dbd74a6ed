"""Matplotlib figures as ``<svg>`` elements of a page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from markupsafe import Markup

from .. import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NARROW = 4.1  # inches: at 96 px each, about the width of a phone, so that text keeps its size there
_LONGEST = 34  # letters of a name in a figure


def inline(figure: Figure, anchor: str, alt: str) -> Markup:
    """The figure for a desk and, where it is one plot that can be made narrow, again for a phone."""
    if _panels(figure) > 1:  # panels side by side cannot be squeezed: on a phone they scroll
        return _element(figure, f"{anchor}-w", alt, "only")
    wide = _element(figure, f"{anchor}-w", alt, "wide")
    width, height = figure.get_size_inches()
    figure.set_size_inches(_NARROW, _NARROW * max(0.8, min(1.1, 1.25 * height / width)))
    for legend in list(figure.legends):  # as many columns as the new width holds
        handles = {text.get_text(): handle for text, handle in zip(legend.texts, legend.legend_handles, strict=True)}
        legend.remove()
        figures.legend_below(figure, handles)
    return wide + _element(figure, f"{anchor}-n", alt, "narrow")


def label(name: str) -> str:
    """A user's name as matplotlib must get it: no formula, no legend entry lost, not too long."""
    text = " ".join(name.split())
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    text = text.replace("$", r"\$")
    return "\N{ZERO WIDTH SPACE}" + text if text.startswith("_") else text


def _panels(figure: Figure) -> int:
    """How many axes stand side by side; a colour bar is not one."""
    places = [axes.get_subplotspec() for axes in figure.axes]
    return max((place.get_gridspec().ncols for place in places if place is not None), default=1)


def _element(figure: Figure, prefix: str, alt: str, css_class: str) -> Markup:
    """One ``<svg>`` whose ids are its own, for a page holds many and a browser takes the first of two alike."""
    text = figures.svg(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    opening = Markup('<svg class="{}" role="img" aria-label="{}"').format(css_class, alt)
    return opening + Markup(text.removeprefix("<svg"))
