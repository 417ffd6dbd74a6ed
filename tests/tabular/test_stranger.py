"""A stranger's table through all four commands: money, a word of 400 levels, hours, holes, a rare class."""

import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner

import mercer
from mercer.cli import main
from mercer.tabular.effects import effect_curves

ROOT = Path(__file__).parents[2]
ORDERS = runpy.run_path(str(ROOT / "examples" / "tables.py"))["orders"]
COLUMNS = ("order", "placed", "amount", "seller", "items", "express", "currency")


def run(*arguments):
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    table, model = folder / "orders.csv", folder / "model"
    frame = ORDERS(1200)
    assert frame["seller"].nunique() > 370 and 0.03 < (frame["fraud"] == "yes").mean() < 0.05
    frame.to_csv(table, index=False)
    printed = {
        "diagnose": run("diagnose", table, "--target", "fraud", "--rows", 600, "-o", folder / "diagnosis.html"),
        "fit": run("fit", table, "--target", "fraud", "-o", model),
        "predict": run("predict", model, table, "-o", folder / "p.csv"),
        "sooner": run("predict", model, table, "-o", folder / "p.csv", "--cost", "yes=10"),
        "explain": run("explain", model),
    }
    return folder, printed


def test_the_fate_of_every_column_is_named(walk):
    folder, printed = walk
    for name in COLUMNS:
        assert f"\n  {name} " in printed["fit"], name
        assert name in printed["explain"], name
        assert f">{name}<" in (folder / "diagnosis.html").read_text(), name
    columns = {column.name: column for column in mercer.load(folder / "model").preparation.columns}
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds["amount"] == "numeric" and kinds["placed"] == "date" and kinds["seller"] == "categorical"
    assert columns["order"].dropped and columns["currency"].dropped
    assert "time" in columns["placed"].how and "words" in columns["seller"].how


def test_a_rare_class_is_spoken_of_by_what_is_found_of_it(walk):
    folder, printed = walk
    said = " ".join(printed["fit"].split())
    assert "fraud: the tenth of unseen rows that the model finds likeliest holds " in said
    assert "yes is rare (4.0%): " in said and " false alarms." in said and "--cost yes=10" in said
    assert "the tenth of unseen rows" in (folder / "model" / "explain.html").read_text()

    def found(text):
        line = next(line for line in text.splitlines() if line.startswith("fraud: "))
        return int(line.partition("yes ")[2] or 0)

    assert found(printed["sooner"]) > found(printed["predict"])


def test_lines_fit_a_terminal_of_80_columns(walk):
    for command, printed in walk[1].items():
        long = [line for line in printed.splitlines() if len(line) > 80 and str(walk[0]) not in line]
        assert not long, (command, long)


def test_of_400_words_the_page_draws_those_that_move_the_prediction(walk):
    model = mercer.load(walk[0] / "model")
    (effect,) = (one for one in effect_curves(model) if one.column == "seller")
    assert len(effect.values) == 8 and effect.mean[0] < 0.05
    bad = [int(word.split()[1]) < 15 for word in effect.values]
    assert sum(bad[4:]) >= 3 and not any(bad[:4])
    assert "words, those with the lowest and the highest mean" in (walk[0] / "model" / "explain.html").read_text()
