"""Run the blocks of a document in order, in one folder, and hold what they print against what the document shows.

A comment right before a block speaks to the tests:

    <!-- needs: gpytorch -->            skip the block where the package is absent
    <!-- not run: it takes an hour -->  never run it; the reason is for the reader of the source

A block ``output`` is what the block before it prints. A line ``...`` there stands for any lines. Words must be equal;
numbers may differ by a twentieth, because other processors round otherwise and documents are no test of digits; seconds
may differ by anything. ``python tests/document_blocks.py docs/a.md ...`` writes the outputs.
"""

import contextlib
import importlib.util
import io
import os
import re
import runpy
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from click.testing import CliRunner

from mercer.cli import main

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?:<!-- (needs|not run): (.*?) -->\n)?^```(\w+)\n(.*?)^```$", re.S | re.M)
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
SECONDS = re.compile(r"[\d.]+ s(?:econds)?\b")


@dataclass(frozen=True)
class Block:
    """One fenced block; ``end`` is where it ends in the document's text."""

    marker: str
    text: str
    language: str
    code: str
    end: int

    @property
    def lacking(self):
        """Packages that the block needs and this environment has not."""
        return [n for n in self.text.split() if importlib.util.find_spec(n) is None] if self.marker == "needs" else []

    @property
    def runs(self):
        return self.language in ("python", "sh") and self.marker != "not run"


def blocks(text):
    return [Block(*found.groups(default=""), found.end()) for found in BLOCK.finditer(text)]


def run(block, name):
    """What the block prints."""
    torch.manual_seed(0)
    if block.language == "sh":
        return "".join(_command(line, name) for line in block.code.replace("\\\n", " ").splitlines())
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(block.code, f"<{name}>", "exec"), {"__name__": "document"})
    return out.getvalue()


def _command(line, name):
    """A line that calls ``mercer``, or a script of ours that makes what it needs; others are for the reader's shell."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["mercer"]:
        done = CliRunner().invoke(main, words[1:])
        assert done.exit_code == 0, f"{name}: {line}\n{done.output}\n{done.exception!r}"
        return done.stdout
    if words[:1] == ["python"]:
        with mock.patch.object(sys, "argv", words[1:]), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
    return ""


def difference(shown, printed):
    """The first line of ``shown`` that is not in ``printed`` at its place; None where all are."""
    lines, free = printed.splitlines(), False
    for line in shown.splitlines():
        if line.strip() == "...":
            free = True
            continue
        while free and lines and not _alike(line, lines[0]):
            lines.pop(0)
        if not lines or not _alike(line, lines.pop(0)):
            return line
        free = False
    return None if free or not lines else lines[0]


def _alike(shown, printed):
    (text, numbers), (other, others) = _parts(shown), _parts(printed)
    return text == other and all(
        abs(a - b) <= max(0.02, 0.05 * max(a, b)) for a, b in zip(numbers, others, strict=True)
    )


def _parts(line):
    """The line's words with its numbers and bars taken out, and its numbers; seconds are left out."""
    line = SECONDS.sub("? s", line)
    numbers = [float(number.replace(",", "")) for number in NUMBER.findall(line)]
    return NUMBER.sub("0", re.sub("#+", "#", line)).split(), numbers


def written(path):
    """The document with the outputs that its blocks print now; elided outputs stay."""
    text, parts, done = path.read_text(), [], 0
    found = blocks(text)
    for block, after in zip(found, [*found, None][1:], strict=True):
        shown = after if after and after.language == "output" else None
        if not block.runs or block.lacking or (shown and "\n...\n" in "\n" + shown.code):
            if block.runs and not block.lacking:
                run(block, path.name)
            continue
        printed = run(block, path.name)
        if printed and block.language == "python":
            end = shown.end if shown else block.end
            parts += [text[done : block.end], f"\n```output\n{printed.rstrip()}\n```"]
            done = end
    return "".join([*parts, text[done:]])


if __name__ == "__main__":
    os.environ.pop("MERCER_DATA", None)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for document in map(Path, sys.argv[1:]):
        document, here = document.resolve(), Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                text = written(document)
            finally:
                os.chdir(here)
        document.write_text(text)
