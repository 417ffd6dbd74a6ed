"""What the documents show must run and print what stands below it, and what they point to must exist."""

import json
import re
import runpy
from pathlib import Path

import pytest

from tests.document_blocks import blocks, difference, run

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = 6  # blocks that may go unrun in all; more would make the promise hollow


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.timeout(900)  # whole documents, on a machine that may be busy
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the packages that are shown
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d.read_text())], ids=named)
def test_blocks_run_and_print_what_is_shown(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERCER_DATA", raising=False)  # a reader may have none
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    absent, printed = [], None
    for number, block in enumerate(blocks(document.read_text())):
        where = f"{document.name}, block {number}"
        if block.language == "output" and printed is not None:
            line = difference(block.code, printed)
            assert line is None, f"{where}: {line!r} is not what the block before it prints:\n{printed}"
        absent += block.lacking
        printed = run(block, where) if block.runs and not block.lacking else None
    if absent:
        pytest.skip(f"not all blocks ran: {', '.join(sorted(absent))} not installed")


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_snippet_prints_and_its_output_stands_below_it(document):
    found = blocks(document.read_text())
    for block, after in zip(found, [*found, None][1:], strict=True):
        if block.language == "python" and block.runs:
            assert "print(" in block.code, block.code
            assert after is not None and after.language == "output", block.code


def test_snippets_and_outputs_fit_the_box_of_the_site():
    for document in DOCUMENTS[1:]:
        found = [block for block in blocks(document.read_text()) if block.language in ("python", "output")]
        long = [line for block in found for line in block.code.splitlines() if len(line) > 88]
        assert not long, f"{named(document)}: {long[0]}"


@pytest.mark.parametrize(
    ("shown", "printed", "line"),
    [
        ("a 0.5\n", "a 0.51\n", None),
        ("a 0.5\n", "a 0.6\n", "a 0.5"),
        ("a\n...\nb 3 s\n", "a\nx\nb 9 s\n", None),
        ("a\nb\n", "a\nx\nb\n", "b"),
        ("a\n", "a\nb\n", "b"),
        ("1,200 rows\n", "1,201 lines\n", "1,200 rows"),
    ],
    ids=["near", "far", "elided", "line-missing", "line-more", "word"],
)
def test_outputs_are_compared_by_words_and_nearly_by_numbers(shown, printed, line):
    assert difference(shown, printed) == line


def test_few_blocks_go_unrun_and_each_says_why():
    found = [block for document in DOCUMENTS for block in blocks(document.read_text())]
    unrun = [block.text for block in found if block.marker == "not run"]
    assert len(unrun) <= NOT_RUN
    assert all(len(text.split()) > 3 for text in unrun), "a reason is a sentence"


def test_every_fence_is_a_block_that_the_tests_see():
    for document in DOCUMENTS:
        text = document.read_text()
        fences = len(re.findall(r"^```", text, re.M))
        assert fences == 2 * len(blocks(text)), f"{named(document)}: every fence needs its language, unindented"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith(("http:", "https:", "../../actions/")):  # GitHub's own pages of the repository
            assert (document.parent / target).exists(), f"{document.name} points to {target}, which is not there"


QUESTIONS = [  # what a reader asks, the pages to click on from README, and words of the answer on the last of them
    ("How do I get it without CUDA?", [], "--index-url https://download.pytorch.org/whl/cpu"),
    ("Which class do I take for my table?", ["docs/how-to/choose.md"], "`TabularClassifier`, `TabularRegressor`"),
    ("Is it better than CatBoost?", ["docs/tables.md"], "| CatBoost |"),
    ("What if my class is rare?", ["docs/commands/fit.md"], "## A rare class"),
    ("How does it treat my dates, words and holes?", ["docs/tutorials/table.md", "docs/tables.md"], "| dates"),
    ("Why does this row get its answer?", ["docs/commands/index.md", "docs/commands/explain.md"], "Why does one row"),
    ("When is the model guessing?", ["docs/tutorials/table.md"], "`unfamiliar` says which rows are unlike"),
    ("How do I save it, and is it safe to load?", ["docs/tutorials/table.md"], "no pickle"),
    ("How many rows can it take, and how long?", ["docs/how-to/choose.md", "docs/how-to/million-rows.md"], "estimate"),
    ("Does it run on my GPU?", ["docs/how-to/choose.md", "docs/how-to/gpu.md"], '.to("cuda")'),
    ("How do I swap my optimizer?", ["docs/tutorials/network.md"], "`FunctionSpaceSGD` goes where Adam was"),
    ("Are my network's probabilities right?", ["docs/how-to/calibrate.md"], "`TemperatureScaling`"),
    ("Does the paper's claim hold?", ["docs/papers/chen2022.md"], "<!-- verdicts chen2022 -->"),
    ("Does it work with Lightning or the Trainer?", ["docs/how-to/index.md", "docs/how-to/trainer.md"], "Trainer("),
    ("When should I take something else?", ["docs/not-for.md"], "## Something else does better"),
    ("How do I report a weakness?", ["SECURITY.md"], "## Reporting"),
]


@pytest.mark.parametrize(("question", "clicks", "answer"), QUESTIONS, ids=[question for question, *_ in QUESTIONS])
def test_a_question_is_answered_within_two_clicks_of_the_readme(question, clicks, answer):
    page = ROOT / "README.md"
    assert len(clicks) <= 2
    for click in clicks:
        targets = re.findall(r"\]\(([^)#]+)", page.read_text())
        linked = {(page.parent / target).resolve() for target in targets if not target.startswith("http")}
        assert (ROOT / click).resolve() in linked, f"{named(page)} does not lead to {click}"
        page = ROOT / click
    assert answer in page.read_text(), f"{named(page)} does not say {answer!r}"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140


def test_every_tutorial_has_its_notebook():
    path = ROOT / "tools" / "notebooks.py"
    if not path.exists():
        pytest.skip("tools is not part of this checkout")
    make = runpy.run_path(str(path))["notebook"]
    tutorials = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    kept = {p.stem: json.loads(p.read_text()) for p in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert kept == {p.stem: make(p.read_text()) for p in tutorials}, "run python tools/notebooks.py"
    code = {name: sum(cell["cell_type"] == "code" for cell in book["cells"]) for name, book in kept.items()}
    assert code == {p.stem: 1 + sum(b.language == "python" for b in blocks(p.read_text())) for p in tutorials}
    for name, book in kept.items():
        assert "pip install" in "".join(book["cells"][1]["source"]), f"{name} does not say how to install"
    for door in ("table", "network", "paper"):
        assert any("attachments" in cell for cell in kept[door]["cells"]), f"{door} has no picture"
