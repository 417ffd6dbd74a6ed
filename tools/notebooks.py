"""Every tutorial as a notebook: ``python tools/notebooks.py`` writes ``docs/notebooks/<tutorial>.ipynb``.

Text becomes Markdown cells; a block of Python becomes a code cell with the output that stands below it, which the tests
hold against what the block prints. So a notebook is executed whenever its tutorial is. Pictures go into the notebook,
and a cell installs the library: a notebook that was downloaded alone is whole.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
_BLOCK = re.compile(r"(?:<!--.*?-->\n)?^```python\n(.*?)^```$(?:\n```output\n(.*?)^```$)?", re.S | re.M)
_LINK = re.compile(r"\]\((?!https?:|#|attachment:)([^)]+)\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+\.svg)\)")
_INSTALL = """# Once, in a fresh environment, from a clone; elsewhere put "mercer @ git+URL" in the place of ../..
# On Linux without a GPU, before it: %pip install torch --index-url https://download.pytorch.org/whl/cpu
%pip install --quiet ../..
"""
_AS_NOTEBOOK = re.compile(r"^\[This page as a notebook\].*\n\n?", re.M)


def notebook(markdown: str) -> dict[str, Any]:
    """The notebook of one tutorial, as nbformat 4.5 spells it."""
    text, cells, done = _AS_NOTEBOOK.sub("", markdown), [], 0
    for found in _BLOCK.finditer(text):
        cells += [_prose(text[done : found.start()]), _code(found[1], found[2])]
        done = found.end()
    cells = [cell for cell in [*cells, _prose(text[done:])] if cell["source"]]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    cells.insert(1, {**_code(_INSTALL, None), "id": "install"})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _prose(text: str) -> dict[str, Any]:
    # pictures become attachments of the cell, other links lead to the tutorial's folder
    attachments = {}
    for picture in _PICTURE.finditer(text):
        path = DOCS / "tutorials" / picture[2]
        attachments[path.name] = {"image/svg+xml": base64.b64encode(path.read_bytes()).decode()}
    text = _PICTURE.sub(lambda picture: f"![{picture[1]}](attachment:{Path(picture[2]).name})", text)
    linked = _LINK.sub(r"](../tutorials/\1)", text.strip())
    cell = {"cell_type": "markdown", "metadata": {}, "source": linked.splitlines(keepends=True)}
    return {**cell, "attachments": attachments} if attachments else cell


def _code(code: str, printed: str | None) -> dict[str, Any]:
    output = {"name": "stdout", "output_type": "stream", "text": (printed or "").splitlines(keepends=True)}
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [output] if printed else [],
        "source": code.rstrip("\n").splitlines(keepends=True),
    }


def main() -> None:
    """Write all of them."""
    (DOCS / "notebooks").mkdir(exist_ok=True)
    for tutorial in sorted((DOCS / "tutorials").glob("*.md")):
        text = json.dumps(notebook(tutorial.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
        (DOCS / "notebooks" / f"{tutorial.stem}.ipynb").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
