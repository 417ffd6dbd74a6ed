"""What the documents show must run, and what they point to must exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{document.relative_to(ROOT)}-{number}")
    for document in DOCUMENTS
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.S))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "<document>", "exec"), {"__name__": "document"})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith(("http:", "https:")):
            assert (document.parent / target).exists(), f"{document.name} points to {target}, which is not there"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
