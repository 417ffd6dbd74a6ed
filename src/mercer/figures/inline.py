"""Matplotlib figures as ``<svg>`` elements of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup

from .narrow import narrow
from .theme import Figure, svg

_LONGEST = 34  # letters of a name in a figure


@dataclass(frozen=True)
class Picture:
    """A figure on the page; ``why`` is set where it could not be drawn."""

    alt: str
    caption: str
    markup: str = ""
    why: str = ""


def inline(figure: Figure, anchor: str, alt: str) -> Markup:
    """The figure for a desk and again for a phone, where it is narrow; the page shows one of them."""
    wide = _element(figure, f"{anchor}-w", alt, "wide")
    return wide + _element(narrow(figure), f"{anchor}-n", alt, "narrow")


def label(name: str) -> str:
    """A user's name as matplotlib must get it: no formula, no legend entry lost, not too long."""
    text = " ".join(name.split())
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    text = text.replace("$", r"\$")
    return "\N{ZERO WIDTH SPACE}" + text if text.startswith("_") else text


def _element(figure: Figure, prefix: str, alt: str, css_class: str) -> Markup:
    """One ``<svg>`` whose ids are its own, for a page holds many and a browser takes the first of two alike."""
    text = svg(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    opening = Markup('<svg class="{}" role="img" aria-label="{}"').format(css_class, alt)
    return opening + Markup(text.removeprefix("<svg"))
