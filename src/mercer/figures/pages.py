"""Pages: templates filled in, and figures as ``<svg>`` elements; only the package's own text goes in unescaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from . import numbers
from .narrow import narrow
from .theme import Figure, svg

_LONGEST = 34  # letters of a name in a figure


def fill(package: str, template: str, values: Mapping[str, Any]) -> str:
    """Fill in a template of ``package``; every value is escaped unless it is ``Markup``.

    The base page and the shared parts come from this package.
    """
    # Templates of the package first, then those that all pages share; an unknown name is an error.
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates"), PackageLoader("mercer.figures", "templates")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def percent(share: float | None) -> str:
        if share is None:
            return "\N{EN DASH}"
        return f"{100 * share:.1f}%".replace("-", numbers.MINUS)

    def order(value: float | None) -> str:
        """The number with every digit: the browser sorts a table by it."""
        if value is None:
            return ""
        return repr(float(value))

    environment.filters |= {
        "duration": numbers.duration,
        "order": order,
        "plain": numbers.plain,
        "percent": percent,
        "words": words,
    }
    return environment.get_template(template).render(dict(values))


def own_text(name: str, folder: Path = Path(__file__).parent) -> Markup:
    """Read a file of ``folder / "static"``, as it is."""
    return Markup((folder / "static" / name).read_text(encoding="utf-8"))


def words(value: Any) -> str:
    """JSON values as a reader would say them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {words(item)}" for name, item in value.items() if item not in ("", None))
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value))
    return str(value)


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
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if text.startswith("_"):  # matplotlib leaves such names out of a legend
        text = "\N{ZERO WIDTH SPACE}" + text
    return text.replace("$", r"\$")


def _element(figure: Figure, prefix: str, alt: str, css_class: str) -> Markup:
    """One ``<svg>`` whose ids begin with the prefix: a page holds many, and a browser takes the first of two alike."""
    text = svg(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    opening = Markup('<svg class="{}" role="img" aria-label="{}"').format(css_class, alt)
    return opening + Markup(text.removeprefix("<svg"))
