"""What the documents show must run, and what they point to must exist.

Blocks of one document run in order, in one folder. A comment right before a block speaks to this test:

    <!-- needs: gpytorch -->            skip the block where the package is absent
    <!-- not run: it takes an hour -->  never run it; the reason is for the reader of the source

A block ``output`` right after a block of Python is what that one prints.
"""

import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from click.testing import CliRunner

from mercer.cli import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (needs|not run): (.*?) -->\n)?^```(\w+)\n(.*?)^```$", re.S | re.M)
NOT_RUN = 6  # blocks that may go unrun in all; more would make the promise hollow


def blocks(document: Path) -> list[tuple[str, str, str, str]]:
    """(marker, its text, language, code) of every block."""
    return BLOCK.findall(document.read_text())


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.timeout(900)  # whole documents, on a machine that may be busy
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the packages that are shown
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d)], ids=named)
def test_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERCER_DATA", raising=False)  # a reader may have none
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    absent, printed = set(), ""
    for number, (marker, text, language, code) in enumerate(blocks(document)):
        torch.manual_seed(0)
        lacking = {name for name in text.split() if importlib.util.find_spec(name) is None} if marker == "needs" else ()
        absent |= set(lacking)
        if marker == "not run" or lacking:
            continue
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, f"<{document.name}, block {number}>", "exec"), {"__name__": "document"})
            printed = out.getvalue()
        elif language == "output":
            assert printed == code, f"{document.name}, block {number}: what the block before it prints"
        elif language in ("sh", "console"):
            run_commands(code, f"{document.name}, block {number}")
    if absent:
        pytest.skip(f"not all blocks ran: {', '.join(sorted(absent))} not installed")


def run_commands(code: str, where: str) -> None:
    """Every line of a shell block that calls ``mercer``, or a script of ours that makes what it needs."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["mercer"]:
            done = CliRunner().invoke(main, words[1:])
            assert done.exit_code == 0, f"{where}: {line}\n{done.output}\n{done.exception!r}"
        elif words[:1] == ["python"]:
            with mock.patch.object(sys, "argv", words[1:]), contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")


def test_few_blocks_go_unrun_and_each_says_why():
    unrun = [text for document in DOCUMENTS for marker, text, _, _ in blocks(document) if marker == "not run"]
    assert len(unrun) <= NOT_RUN
    assert all(len(text.split()) > 3 for text in unrun), "a reason is a sentence"


def test_every_fence_is_a_block_that_the_tests_see():
    for document in DOCUMENTS:
        fences = len(re.findall(r"^```", document.read_text(), re.M))
        assert fences == 2 * len(blocks(document)), f"{named(document)}: every fence needs its language, unindented"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith(("http:", "https:")):
            assert (document.parent / target).exists(), f"{document.name} points to {target}, which is not there"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
