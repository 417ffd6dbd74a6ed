"""The tables of docs/papers are made from recorded runs, never typed."""

import importlib.util
import itertools
import shlex
from pathlib import Path

import pytest

from mercer.experiments import entries, recorded
from mercer.experiments.runner import Request, plan

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tables():
    path = ROOT / "tools" / "paper_tables.py"
    if not path.exists():
        pytest.skip("tools is not part of this checkout")
    spec = importlib.util.spec_from_file_location("paper_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_recorded_runs_say(tables, capsys):
    assert tables.main(check=True) == 0, capsys.readouterr().out


def test_a_page_that_was_edited_by_hand_is_found(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "PAGES", tmp_path)
    page = tmp_path / "chen2022.md"
    page.write_text("<!-- verdicts chen2022/thm3.1 -->\nreproduces, surely\n<!-- end -->\n")
    assert tables.main(check=True) == 1 and "chen2022.md" in capsys.readouterr().out
    assert tables.main(check=False) == 0 and tables.main(check=True) == 0
    assert "surely" not in page.read_text() and "chen2022/thm3.1" in page.read_text()


def test_the_command_beside_a_recorded_run_asks_for_every_line_of_it():
    runs = [run for entry in entries() for run in recorded(entry.id)]
    assert runs
    for run in runs:
        words = shlex.split(run.command)
        options = list(itertools.pairwise(words))
        seeds = [int(value) for name, value in options if name == "--seeds"]
        request = Request(
            ids=tuple(word for word in words[2 : words.index("--scale")]),
            scale=words[words.index("--scale") + 1],
            seeds=seeds[0] if seeds else None,
            settings=dict(value.split("=") for name, value in options if name == "--set"),
            only=tuple(value for name, value in options if name == "--only"),
        )
        planned = {(cell.entry, cell.row, cell.column, cell.seed) for cell in plan(request)[1]}
        assert {(r.entry, r.row, r.column, r.seed) for r in run.results} <= planned, run.command
