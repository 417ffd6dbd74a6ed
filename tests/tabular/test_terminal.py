"""What a reader of the terminal and the pages is told: every column's fate, which model is best, what to do next."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from mercer.cli import main
from mercer.cli.output import width, wrap
from mercer.tabular import TabularModel, diagnose
from mercer.tabular.pages.model_page import headline, next_steps
from mercer.tabular.scoring import best_beside
from mercer.tabular.training import expected_seconds


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A table of 24 columns with one constant, fitted by the command."""
    folder, rng = tmp_path_factory.mktemp("terminal"), np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 20)), columns=[f"measure {i}" for i in range(20)])
    frame["plan"] = rng.choice(["a", "b", "c"], 120)
    frame["unit"] = "kg"
    frame["y"] = np.where(frame["measure 0"] + (frame["plan"] == "a") > 0.3, "yes", "no")
    frame.to_csv(folder / "table.csv", index=False)
    arguments = ["fit", str(folder / "table.csv"), "--target", "y", "-o", str(folder / "model")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return folder, done


def test_fit_names_every_columns_decision(fitted):
    _, done = fitted
    words = " ".join(done.stdout.split())
    assert "20 columns, numeric: each a number" in words
    assert all(f"measure {i}" in words for i in range(20))
    assert "plan categorical" in words
    assert "unit constant dropped: every value is 'kg'" in words


def test_fit_marks_the_best_and_reports_until_the_page_is_drawn(fitted):
    _, done = fitted
    assert done.stdout.count(" *") == 2  # the best one's line and the note below
    assert "* best by log loss" in done.stdout
    assert done.stderr.splitlines()[-1] == "drawing the page"


def test_the_model_page_says_what_to_do_next_and_folds_the_kernels_away(fitted):
    folder, _ = fitted
    page = (folder / "model" / "explain.html").read_text()
    assert "What to do next" in page
    assert "Not used: unit" in page
    assert page.count('<span class="tie">best</span>') == 1
    assert page.index("<details") < page.index("How it is built")


def test_lines_are_as_wide_as_the_terminal_from_80_to_120(monkeypatch):
    text = "word " * 60
    for columns, longest in ((40, 79), (80, 79), (100, 99), (200, 119)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert width() == longest
        assert longest - 5 < max(map(len, wrap(text))) <= longest


def test_the_best_is_by_log_loss_or_r2():
    classes = {"log_loss": 0.50001, "beside": {"linear": {"log_loss": 0.4}, "trees": {"log_loss": 0.6}}}
    assert best_beside(classes) == ("linear", "log loss")
    assert best_beside({"r2": 0.5, "beside": {"linear": {"r2": 0.50001}}}) == ("this model", "R2")
    assert best_beside({"r2": 0.5}) == ("", "")


def test_a_model_of_noise_does_not_claim_a_share():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80), "y": rng.normal(size=80)})
    model = TabularModel().fit(frame, "y")
    for r2, words in ((-0.1, "no better than always predicting the mean"), (0.03, "hardly better than")):
        model.scores["r2"] = r2
        assert words in headline(model)
        assert any("Look for columns" in step for step in next_steps(model))


def test_a_diagnosis_of_a_rare_class_speaks_of_its_ranking_and_of_boosting():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(600, 3))
    rare = rng.random(600) < 1 / (1 + np.exp(4 - 1.5 * x[:, 0]))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.where(rare, "yes", "no"))
    found = diagnose(frame, "y")
    assert "likeliest to be yes holds" in found.verdict.headline
    assert any("(AUROC, 0.5 is chance and 1 perfect)" in reason for reason in found.verdict.reasons)
    assert any("HistGradientBoosting" in reason for reason in found.verdict.reasons)
    assert not any("kernel" in reason.lower() for reason in found.verdict.reasons)


def test_longer_fits_are_announced_with_their_time():
    assert expected_seconds(1000, 10, 12000) < 10
    assert 10 < expected_seconds(11000, 12, 12000) < 40
    assert expected_seconds(200_000, 40, 12000) > 100
