"""Methods on tables: one stored line for each fit, resumed; ranks, wins and costs of the lines; the documents."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from mercer.cli import main
from mercer_papers.bench import table_ranks, tables
from mercer_papers.bench.table_rivals import RIVALS, Rival, readable

ROOT = Path(__file__).parents[2]


def guess(x, y, c):
    """The target's mean, or the classes' frequencies: stands for ours, and costs nothing."""
    answer = np.bincount(y, minlength=c) / len(y) if c else y.mean()
    return lambda frame: np.broadcast_to(answer, (len(frame), c) if c else len(frame))


def fail(x, y, c):
    raise MemoryError("too many rows")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A table of classes and one of numbers, and four methods: one fails, one is not installed."""
    x = np.random.default_rng(0).normal(size=(60, 2))
    folder = tmp_path / "data" / "tables"
    folder.mkdir(parents=True)
    frame = pd.DataFrame({"a": x[:, 0], "day": pd.date_range("2024-01-30", periods=60).astype(str)})
    frame.assign(kind=np.where(x[:, 0] > 0, "yes", "no")).to_csv(folder / "classes.csv.gz", index=False)
    frame.assign(size=x[:, 0] + 0.1 * x[:, 1]).to_csv(folder / "numbers.csv.gz", index=False)
    rows = [("classes", "kind", "classification", 60), ("numbers", "size", "regression", 60)]
    pd.DataFrame(rows, columns=["table", "target", "task", "rows"]).to_csv(folder / "index.csv", index=False)
    monkeypatch.setenv("MERCER_DATA", str(tmp_path / "data"))
    methods = {
        tables.OURS: Rival(guess, raw=True),
        "linear": RIVALS["linear"],
        "SVM": Rival(fail),
        "CatBoost": Rival(guess, ("no-such-distribution",)),
    }
    monkeypatch.setattr(tables, "METHODS", methods)
    return tmp_path


def test_each_fit_has_a_line_and_is_not_made_twice(data):
    lines = []
    for _ in range(2):
        tables.measure(data / "lines.jsonl", folds=[0], progress=lines.append)
    assert [(line["table"], line["method"]) for line in lines] == [
        (table, method) for table in ("classes", "numbers") for method in (tables.OURS, "linear", "SVM")
    ]
    assert lines[1]["accuracy"] > 0.8 and lines[4]["r2"] > 0.8 and lines[0]["new_rows"] == 12
    assert lines[2]["error"] == "MemoryError: too many rows"
    assert lines[1]["settings"] == RIVALS["linear"].settings and "scikit-learn" in lines[1]["versions"]
    tables.measure(data / "lines.jsonl", ["linear"], folds=[1], tables=["numbers"], progress=lines.append)
    assert (len(lines), lines[-1]["fold"]) == (7, 1)


def test_the_command_prints_the_ranks_and_the_failures(data):
    command = ["bench", "tables", "-o", str(data / "run")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "**Below 3,000 rows** (1 tables of classes, 1 of numbers)" in result.output
    assert "| SVM | 0 + 0 | 0 (4 failed) |" in result.output
    again = CliRunner().invoke(main, [*command, "--json"])
    assert len(json.loads(again.stdout)) == 12  # the same lines, read


def test_the_command_says_that_there_are_no_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("MERCER_DATA", str(tmp_path))
    result = CliRunner().invoke(main, ["bench", "tables"])
    assert result.exit_code == 1 and "The folder tables is not in MERCER_DATA." in result.output


def lines_of(*rows):
    names = ["table", "rows", "fold", "method", "log_loss", "cpu_fit"]
    lines = pd.DataFrame(rows, columns=names)
    return lines.assign(cpu=lines["cpu_fit"], classes=2, cpu_predict=0.0, accuracy=0.5, auroc=0.5, r2=np.nan)


def test_methods_are_compared_on_the_folds_that_all_of_them_have():
    lines = lines_of(
        ("short", 100, 0, "mercer", 0.2, 2.0), ("short", 100, 1, "mercer", 9.0, 2.0),
        ("short", 100, 0, "linear", 0.3, 1.0),
        ("long", 20_000, 0, "mercer", 0.5, 9.0), ("long", 20_000, 0, "linear", 0.4, 1.0),
        ("alone", 100, 0, "mercer", 0.1, 1.0),
    )  # fmt: skip
    both = ["mercer", "linear"]
    assert table_ranks.scores(lines, "log_loss", both).to_dict("index") == {
        "long": {"mercer": 0.5, "linear": 0.4},
        "short": {"mercer": 0.2, "linear": 0.3},
    }
    assert table_ranks.mean_ranks(lines, "log_loss", both).to_dict() == {"mercer": 1.5, "linear": 1.5}
    assert table_ranks.wins(lines, "log_loss", "linear") == (1, 1, 0)
    assert table_ranks.wins(lines, "accuracy", "linear") == (0, 0, 2)
    assert table_ranks.cost_ratios(lines, "linear").to_dict() == {"short": 2.0, "long": 9.0}
    row = "| log loss: behind on 1 of 2 | `long` | 20,000 | 0.5000 | 0.4000 (linear) |"
    assert row in table_ranks.losses(lines, both)


def test_a_count_is_bold_where_chance_would_rarely_make_it():
    rows = [
        (f"table {i}", 100, 0, name, loss, 1.0) for i in range(6) for name, loss in (("mercer", 0.2), ("linear", 0.3))
    ]
    assert "| linear | 6 | 6 | 0 : 0 (6 equal) | **6 : 0** |" in table_ranks.duels(lines_of(*rows), ["linear"])
    assert "| linear | 5 | 5 | 0 : 0 (5 equal) | 5 : 0 |" in table_ranks.duels(lines_of(*rows[2:]), ["linear"])


def test_folds_of_a_table_may_name_different_winners():
    lines = lines_of(
        ("sure", 100, 0, "mercer", 0.2, 1.0), ("sure", 100, 0, "linear", 0.3, 1.0),
        ("sure", 100, 1, "mercer", 0.1, 1.0), ("sure", 100, 1, "linear", 0.3, 1.0),
        ("open", 100, 0, "mercer", 0.2, 1.0), ("open", 100, 0, "linear", 0.3, 1.0),
        ("open", 100, 1, "mercer", 0.4, 1.0), ("open", 100, 1, "linear", 0.3, 1.0),
        ("one fold", 100, 0, "mercer", 0.2, 1.0), ("one fold", 100, 0, "linear", 0.3, 1.0),
    )  # fmt: skip
    assert table_ranks.changing_winners(lines, "linear") == "1 of 2"


def test_a_band_without_tables_is_left_out():
    lines = lines_of(("short", 100, 0, "mercer", 0.2, 2.0), ("short", 100, 0, "linear", 0.3, 1.0))
    text = table_ranks.ranks_by_length(lines, ["mercer", "linear"])
    assert text.startswith("**Below 3,000 rows** (1 tables of classes, 0 of numbers)") and "12,000" not in text
    assert "| mercer | **1.50** | **1.00** | **1.50** |  |" in text
    assert table_ranks.ranks_by_length(lines, ["mercer", "CatBoost"]) == "No table that all of them have."


def test_intervals_are_scored_by_width_and_by_what_they_miss():
    y = np.array([0.0, 1.0, 2.0, 3.0])
    answer = np.column_stack([y, y - 0.5, y + 0.5])
    answer[3] = [3.0, 1.5, 2.5]
    scores = tables.score(y, answer, 0)
    assert scores["coverage"] == 0.75 and scores["r2"] == 1.0
    assert scores["interval_score"] == pytest.approx((1 + 20 * 0.5 / 4) / y.std())


def test_rivals_get_dates_as_numbers_and_words_as_categories():
    frame = pd.DataFrame({"a": ["2016/01/01 06:47:36", None], "b": ["9/30/1990 0:00:00", "10/1/1990 0:00:00"]})
    spans = ["10/21/2011 - 10/28/2011", "10/7/2011 - 10/9/2011"]  # no dates, though they begin as such
    columns = readable(frame.assign(c=["x", "2016"], d=[1, 2], e=spans))
    parts = [f"{name}{part}" for name in "ab" for part in ("", " day of year", " weekday", " hour")]
    assert list(columns) == [*parts, "c", "d", "e"]
    assert columns["a hour"][0] == 6 and np.isnan(columns["a"][1]) and columns["b"].tolist() == [0.0, 1.0]
    assert all(isinstance(columns[name].dtype, pd.CategoricalDtype) for name in "ce")


def test_the_documents_print_what_the_lines_say(capsys):
    spec = importlib.util.spec_from_file_location("table_ranks_tool", ROOT / "tools" / "table_ranks.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.main(check=True) == 0, capsys.readouterr().out
