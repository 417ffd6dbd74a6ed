"""The package's templates, filled in: the only text that goes into a page unescaped is the package's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from . import numbers


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with its values, each escaped unless it is ``Markup``."""
    environment = Environment(
        loader=PackageLoader("mercer.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": numbers.duration,
        "order": _order,
        "plain": numbers.plain,
        "percent": _percent,
        "words": words,
    }
    return environment.get_template(template).render(dict(values))


def own_text(name: str) -> Markup:
    """A file of ``static``, as it is."""
    return Markup((Path(__file__).parent / "static" / name).read_text(encoding="utf-8"))


def words(value: Any) -> str:
    """JSON values as a reader would say them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {words(item)}" for name, item in value.items() if item not in ("", None))
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value))
    return str(value)


def _order(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _percent(share: float | None) -> str:
    return "\N{EN DASH}" if share is None else f"{100 * share:.1f}%".replace("-", numbers.MINUS)
