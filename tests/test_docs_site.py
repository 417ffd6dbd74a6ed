"""The site builds without a warning, asks nobody else for anything, and shows formulas as formulas."""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason=f"{package} is in the extra 'docs'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def pages(site):
    return {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}


def test_every_document_has_its_page(site):
    for document in (ROOT / "docs").rglob("*.md"):
        place = document.relative_to(ROOT / "docs").with_suffix("")
        assert (site / (place.parent if place.name == "index" else place) / "index.html").exists(), document


def test_a_tutorial_page_is_its_notebook_rendered(site):
    for book in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (site / "tutorials" / book.stem / "index.html").read_text()
        shown = "".join(unescape(re.sub(r"<[^>]+>", "", page)).split())
        for cell in json.loads(book.read_text())["cells"]:
            if cell["cell_type"] == "code" and cell["id"] != "install":
                texts = ["".join(cell["source"]), *("".join(output["text"]) for output in cell["outputs"])]
                assert all("".join(text.split()) in shown for text in texts), (book.name, cell["id"])


def test_nothing_is_loaded_from_elsewhere(site):
    for name, html in pages(site).items():
        assert not LOADED.findall(html), name
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(?:https?:)?//", style.read_text()), style


def test_formulas_and_examples_of_docstrings_are_drawn(site):
    reference = {name: html for name, html in pages(site).items() if name.startswith("reference")}
    assert sum(html.count("<math") for html in reference.values()) > 100
    for name, html in reference.items():
        assert not re.search(r":(?:math|class|func|meth):|\.\. math::|<p>&gt;&gt;&gt;", html), name
    assert 'id="mercer.kernels.RBF"' in reference["reference/kernels/index.html"]


PUBLIC = ("tabular", "optim", "bayes", "nn", "kernels", "features", "machines", "layerwise", "spectral")


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_names_all_that_is_public_and_nothing_else(module):
    page = (ROOT / "docs" / "reference" / f"{module}.md").read_text()
    listed = re.findall(r"^        - (\w+)$", page, re.M)
    package = importlib.import_module(f"mercer.{module}")
    public = {name for name in package.__all__ if not inspect.ismodule(getattr(package, name))}
    assert set(listed) == public
    assert len(listed) == len(public)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_class_has_an_example_and_says_when_to_use_it(module):
    bases = {"Kernel", "NetworkKernel", "FeatureMap", "Posterior", "Spectrum"}
    algebra = {"Sum", "Product", "Scaled", "Power", "Normalized"}  # made by +, * and **
    package = importlib.import_module(f"mercer.{module}")
    classes = {name for name in package.__all__ if inspect.isclass(getattr(package, name))} - bases - algebra
    for name in classes:
        text = vars(getattr(package, name)).get("__doc__") or ""
        assert ">>> " in text, f"{name} has no example"
        assert re.search(r"^ *Use it ", text, re.M), f"{name} does not say when to use it"


def test_public_names_are_in_the_reference(site):
    for module in PUBLIC:
        html = (site / "reference" / module / "index.html").read_text()
        package = importlib.import_module(f"mercer.{module}")
        names = {name for name in package.__all__ if not inspect.ismodule(getattr(package, name))}
        shown = set(re.findall(rf'id="mercer\.{module}\.(?:\w+\.)?(\w+)"', html))
        assert names <= shown, f"mercer.{module}: {names - shown}"


def test_the_reference_shows_what_a_class_inherits(site):
    html = (site / "reference" / "tabular" / "index.html").read_text()
    for method in ("fit", "explain", "unfamiliar", "predict_proba"):
        assert f'id="mercer.tabular.TabularClassifier.{method}"' in html, method
