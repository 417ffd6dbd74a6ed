"""The package's templates, filled in: the only text that goes into a page unescaped is the package's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from . import numbers


def fill(package: str, template: str, values: Mapping[str, Any]) -> str:
    """Fill in a template of ``package``; every value is escaped unless it is ``Markup``.

    The base page and the shared parts come from this package.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates"), PackageLoader("mercer.figures", "templates")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": numbers.duration,
        "order": lambda value: "" if value is None else repr(float(value)),
        "plain": numbers.plain,
        "percent": _percent,
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


def _percent(share: float | None) -> str:
    return "\N{EN DASH}" if share is None else f"{100 * share:.1f}%".replace("-", numbers.MINUS)
