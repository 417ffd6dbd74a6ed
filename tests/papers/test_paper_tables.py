"""The numbers of the documents are made from stored runs and bench lines, never typed."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from mercer_papers.catalogue import entries
from mercer_papers.cli.reproduce import parse_settings, reproduce
from mercer_papers.recorded_runs import find_recorded
from mercer_papers.runner import Request, plan

ROOT = Path(__file__).parents[2]


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
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("No marker.")
    page = tmp_path / "docs" / "chen2022.md"
    page.write_text("<!-- verdicts chen2022/thm3.1 -->\nreproduces, surely\n<!-- end -->\n")
    assert tables.main(check=True) == 1 and "chen2022.md" in capsys.readouterr().out
    assert tables.main(check=False) == 0 and tables.main(check=True) == 0
    assert "surely" not in page.read_text() and "chen2022/thm3.1" in page.read_text()


def test_a_table_and_a_number_of_stored_lines(tables, tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text(
        '{"table": "a", "method": "ours", "r2": 0.5}\n{"table": "a", "method": "ours", "r2": 0.7}\n'
        '{"table": "b", "method": "ours", "r2": 0.1}\n{"table": "a", "method": "theirs", "r2": null}\n'
    )
    (tmp_path / "y.json").write_text('{"lines": [{"case": "k > 1", "who": "ours", "cpu": 2, "accuracy": 0.25}]}')
    monkeypatch.setattr(tables, "LINES", tmp_path)
    text = (
        "<!-- lines x.jsonl; method by table; r2; table=a; table=b; .2f -->\n<!-- end -->\n"
        "<!-- lines y.json; who; accuracy as right, cpu; case=k > 1 --><!-- end -->\n"
        "It has <!-- number x.jsonl; table=a; r2; .1% --><!-- end --> and <!-- number x.jsonl; r2; .2f --><!-- end -->."
    )
    assert tables.MARKED.sub(tables._fill, text).splitlines() == [
        "<!-- lines x.jsonl; method by table; r2; table=a; table=b; .2f -->",
        "| | a | b |", "|---|---|---|", "| ours | 0.60 | 0.10 |",
        "<!-- end -->",
        "<!-- lines y.json; who; accuracy as right, cpu; case=k > 1 -->",
        "| | right | cpu |", "|---|---|---|", "| ours | 0.25 | 2 |",
        "<!-- end -->",
        "It has <!-- number x.jsonl; table=a; r2; .1% -->60.0 %<!-- end --> and "
        "<!-- number x.jsonl; r2; .2f -->0.43<!-- end -->.",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="table=c"):
        tables.MARKED.sub(tables._fill, "<!-- number x.jsonl; table=c; r2 --><!-- end -->")


def test_a_number_of_a_run_and_the_counts(tables):
    marks = (
        "<!-- number checks; chen2022/thm3.1; mini-batch; share of draws with a rise; .1% --><!-- end -->\n"
        "<!-- tally chen2022/thm3.1 --><!-- end -->\n<!-- counts -->\n<!-- end -->\n"
    )
    number, words, *table = tables.MARKED.sub(tables._fill, marks).splitlines()
    assert "48.2 %" in number
    assert any(f"{word} 1" in words for word in tables.VERDICTS)
    assert table[0] == "<!-- counts -->" and table[-2].startswith("| all | ") and table[-1] == "<!-- end -->"
    with pytest.raises(SystemExit, match="no such number"):
        tables.MARKED.sub(tables._fill, "<!-- number checks; chen2022/thm3.1; mini-batch; luck --><!-- end -->")
    printed = tables.MARKED.sub(tables._fill, "<!-- printed masoomi2020/exp4; face, CE; test; .2f --><!-- end -->")
    assert ">0.79<" in printed
    with pytest.raises(SystemExit, match="prints no such number"):
        tables.MARKED.sub(tables._fill, "<!-- printed masoomi2020/exp4; face, CE; luck --><!-- end -->")


WITHOUT_TYPED_NUMBERS = [
    ROOT / "README.md",
    ROOT / "docs" / "not-for.md",
    ROOT / "docs" / "distributed.md",
    ROOT / "docs" / "tutorials" / "sentiment.md",
    *sorted((ROOT / "docs").glob("which-*.md")),
    *sorted((ROOT / "docs" / "papers").glob("*.md")),
]
CODE = re.compile(
    r"^```.*?^```"  # a fenced block,
    r"|^ {4}[^\s|].*?$"  # an indented one,
    r"|`(?P<span>[^`\n]*)`"  # a setting or a formula in backticks,
    r"|<!-- tables .*?<!-- end -->"  # what tools/table_ranks.py writes
    r"|\]\([^)]*\)",  # where a link leads
    re.S | re.M,
)
PLACE = re.compile(
    r"(?:Section|Theorem|Proposition|Eq\.|Appendix \w|table|version|Python|torch|release) ?\d[\d.]*(?: to [\d.]+)?"
    r"|\b(?:thm|prop|sec)\d+\.\d+",
    re.I,
)
DECIMAL = re.compile(r"(?<![\w.])\d*\.\d+")


def typed_decimals(tables, text: str) -> list[str]:
    """Decimals that a hand wrote, in a table or in a sentence.

    A result or a number of a paper is generated between markers. A setting is code and stands in backticks with its
    name (``lr=0.1``). The number of a section, theorem, equation or release does not count.
    """
    alone = re.compile(r"[\d., %]+")
    typed = CODE.sub(lambda m: m["span"] if alone.fullmatch(m["span"] or "") else "", tables.MARKED.sub("", text))
    return [found for line in typed.splitlines() for found in DECIMAL.findall(PLACE.sub("", line))]


@pytest.mark.parametrize("document", WITHOUT_TYPED_NUMBERS, ids=lambda path: path.name)
def test_no_result_is_typed(tables, document):
    found = typed_decimals(tables, document.read_text(encoding="utf-8"))
    assert not found, f"{document.name}: {', '.join(found[:10])}. Put a marker of tools/paper_tables.py in its place."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("| ours | .94 |", [".94"]),
        ("It has 87.3 % of them, and a loss of 0.25.", ["87.3", "0.25"]),
        ("It ends at `0.97`.", ["0.97"]),
        ("| Theorem 3.1, `lr=0.1` | Eq. 3 |\n```\n| 0.5 |\n```\nPython 3.11 to 3.13, at `|cos| > 0.9`.", []),
        ("<!-- lines x; y; z -->\n| a | 0.5 |\n<!-- end -->\n", []),
        ("It has <!-- number x; y -->87.3 %<!-- end -->, printed <!-- printed x; y -->0.5<!-- end -->.", []),
    ],
)
def test_what_counts_as_typed(tables, text, found):
    assert typed_decimals(tables, text) == found


def test_the_command_beside_a_recorded_run_asks_for_its_lines_and_no_others_but_new_rows():
    """By the command line's own parser; of sets that were not at hand there are no lines, nor of rows added since."""
    runs = [run for entry in entries() for run in find_recorded(entry.id)]
    assert runs
    for run in runs:
        program, command, *words = shlex.split(run.command)
        assert (program, command) == ("mercer", "reproduce")
        asked = reproduce.make_context(command, words).params
        request = Request(
            ids=asked["ids"], scale=asked["scale"], seeds=asked["seeds"], download=not asked["bundled"],
            settings=parse_settings(asked["changes"]), only=asked["only"],
        )  # fmt: skip
        sets = {name for result in run.results for name in result.data}
        planned = {(c.entry, c.row, c.column, c.seed) for c in plan(request)[1] if sets.issuperset(c.data)}
        stored = {(r.entry, r.row, r.column, r.seed) for r in run.results}
        rows = {line[:3] for line in stored}
        assert stored == {line for line in planned if line[:3] in rows}, run.command
