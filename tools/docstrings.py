"""The house's docstrings on the site: TeX as MathML, which browsers draw without a script; roles and doctests as code.

A griffe extension, named in mkdocs.yml. It runs before the docstring's sections are parsed.
"""

from __future__ import annotations

import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_BLOCK = re.compile(  # the directive's line, and the lines that are indented deeper
    r"^(?P<indent> *)\.\. math:: *(?P<first>.*)\n(?P<rest>(?:(?P=indent) +\S.*\n?|\n(?=(?P=indent) +\S))*)", re.M
)
_INLINE = re.compile(r":math:`([^`]+)`")
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?(?:[\w.]*\.)?(\w+)`")
_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)(?!\s*$).*)*", re.M)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """One docstring as Markdown with MathML in it."""
    text = _BLOCK.sub(_display, text + "\n")
    text = _INLINE.sub(lambda found: mathml(found[1]), text)
    text = _ROLE.sub(r"`\1`", text)
    return _DOCTEST.sub(lambda found: _fenced(found[0], found["indent"]), text)


def mathml(tex: str, display: str = "inline") -> str:
    """TeX as one line of MathML that Markdown leaves alone."""
    made = convert(re.sub(r"\s+", " ", tex.strip()), display=display)
    made = made.replace("*", "&#x2A;").replace("_", "&#x5F;").replace("\n", "")
    return f"<span>{made}</span>"  # a line that begins with <math> would end the paragraph


def _display(found: re.Match[str]) -> str:
    tex = f"{found['first']} {found['rest']}"
    return f'{found["indent"]}<div class="math">{mathml(tex, "block")}</div>\n\n'


def _fenced(lines: str, indent: str) -> str:
    return f"{indent}```pycon\n{lines}\n{indent}```"
