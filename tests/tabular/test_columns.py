"""No column is lost: words of many levels, free text, and what the user is told of the columns that are dropped."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.metrics import r2_score

from mercer import load, save
from mercer.cli import main
from mercer.tabular import TabularClassifier, TabularModel, TabularRegressor
from mercer.tabular.columns.preparation import Preparation
from mercer.tabular.pages.diagnosis_page import column_lines

GOOD = ["lovely and quiet", "clean, helpful people", "would come again", "splendid breakfast buffet"]
BAD = ["dirty and loud", "broken shower, no towels", "never again", "smell of smoke everywhere"]


def shops(rows, levels, seed=0):
    """A word that decides the target, with a few rows for each level, and a number that hardly matters."""
    rng = np.random.default_rng(seed)
    shop = np.arange(rows) % levels
    sales = 3 * rng.normal(size=levels)[shop] + 0.5 * rng.normal(size=rows)
    frame = pd.DataFrame({"shop": [f"shop{i:03}" for i in shop], "size": rng.normal(size=rows)})
    return frame, sales


def reviews(rows, seed=0):
    """Sentences, each once, and whether the guest liked it; two thirds of the words say nothing."""
    rng = np.random.default_rng(seed)
    liked = rng.random(rows) < 0.5
    said = [GOOD[rng.integers(4)] if like else BAD[rng.integers(4)] for like in liked]
    text = [f"stay {rng.integers(10**6)} on floor {rng.integers(30)}: {word}, thank you" for word in said]
    return pd.DataFrame({"remark": text, "nights": rng.integers(1, 9, rows)}), np.where(liked, "yes", "no")


def test_words_of_many_levels_stay_while_they_repeat():
    frame, sales = shops(1000, 250)  # four rows each, where a level used to need five
    model = TabularRegressor().fit(frame[:750], sales[:750])
    assert not model.columns_.loc["shop", "dropped"]
    assert "the mean of the target over other rows with the same word (250 words)" in model.columns_.loc["shop", "how"]
    assert r2_score(sales[750:], model.predict(frame[750:])) > 0.8
    assert model.model_.scores["r2"] > 0.8


def test_words_of_many_levels_tell_several_classes():
    frame, sales = shops(900, 150)
    y = np.digitize(sales, [-2, 2])
    model = TabularClassifier().fit(frame[:750], y[:750])
    assert (model.predict(frame[750:]) == y[750:]).mean() > 0.8


def test_free_text_is_read(tmp_path):
    frame, liked = reviews(240)
    model = TabularModel().fit(frame[:180].assign(liked=liked[:180]), "liked")
    column = model.preparation.columns[0]
    assert column.kind == "text" and not column.dropped and "runs of three and four letters" in column.how
    answers = model.predict(frame[180:])
    assert (answers["prediction"] == liked[180:]).mean() > 0.9
    save(model, tmp_path / "model")
    pd.testing.assert_frame_equal(load(tmp_path / "model").predict(frame[180:]), answers)


def test_a_text_alone_and_a_blank_text():
    frame = reviews(120)[0][["remark"]]
    frame.loc[::10, "remark"] = None
    preparation = Preparation().fit(frame)
    x = preparation.transform(frame)
    assert preparation.feature_names[-1] == "remark is missing" and x[:, -1].sum() == 12
    assert (x[::10, :-1] == 0).all() and x.isfinite().all()
    again = preparation.transform(frame[7:9])  # a row does not depend on the others
    assert (again - x[7:9]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([f"K{i:04}" for i in range(200)], "identifier"),
        ([f"customer {i}" for i in range(200)], "identifier"),
        ([f"Smith{i}, {('Mr.', 'Mrs.', 'Miss')[i % 3]} A{i}" for i in range(200)], "text"),
    ],
)
def test_names_that_share_words_are_text_and_others_name_the_row(values, kind):
    assert (
        Preparation().fit(pd.DataFrame({"c": values, "z": range(200)[::-1], "w": [1.5, 2] * 100})).columns[0].kind
        == kind
    )


def test_shuffled_targets_score_as_chance():
    """Neither the means over words nor the ridge on texts sees a row's own target."""
    explained, losses, areas, gains = [], [], [], []
    for seed in range(4):
        rng = np.random.default_rng(100 + seed)  # not the numbers that the columns are made of
        frame = shops(200, 80, seed)[0].assign(remark=reviews(200, seed)[0]["remark"])
        explained.append(TabularModel().fit(frame.assign(y=rng.normal(size=200)), "y").scores["r2"])
        scores = TabularModel().fit(frame.assign(y=rng.integers(0, 2, 200)), "y").scores
        losses.append(scores["log_loss"])
        areas.append(scores["auroc"])
        gains.append(scores["accuracy"] - scores["always_most_frequent"])
    assert np.mean(explained) < 0.02 and max(explained) < 0.1
    assert np.mean(losses) > 0.68 and min(losses) > 0.65
    assert np.mean(areas) < 0.54 and np.mean(gains) < 0.03


def test_words_with_means_score_as_new_rows_do():
    """A machine that knows a word and its mean over other folds must not work out the row's own target."""
    over = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        effect = 0.5 * rng.normal(size=50)
        shop = rng.integers(0, 50, 3600)
        frame = pd.DataFrame({"shop": [f"shop{i:02}" for i in shop], "size": rng.normal(size=3600)})
        frame["sales"] = effect[shop] + rng.normal(size=3600)
        model = TabularModel(trees=False).fit(frame[:600], "sales")
        assert "shop" in model.means.tables_
        over.append(model.scores["r2"] - r2_score(frame["sales"][600:], model.predict(frame[600:])["prediction"]))
    assert np.mean(over) < 0.04
    assert model.feature_names == ["shop is another", "size", "shop: mean"]
    assert "(50 words)" in model.preparation.columns[0].how


def wide_table(rows=60):
    """Fourteen columns that are used, then six that are not."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 14)), columns=[f"a{i}" for i in range(14)])
    frame["y"] = frame["a0"] + 0.1 * rng.normal(size=rows)
    return frame.assign(**{f"flat{i}": 7 for i in range(5)}, ticket=[f"T{i:05}" for i in range(rows)])


def test_dropped_columns_are_named_with_their_reasons(tmp_path):
    frame = wide_table()
    frame.to_csv(tmp_path / "table.csv", index=False)
    result = CliRunner().invoke(main, ["fit", str(tmp_path / "table.csv"), "--target", "y", "-o", str(tmp_path / "m")])
    printed = " ".join(result.output.split())
    assert result.exit_code == 0, result.output
    assert "a10, a11, a12, a13" in printed
    assert "5 columns, constant: each dropped: every value is '7' flat0, flat1, flat2, flat3, flat4" in printed
    assert "ticket identifier dropped: it names the row (60 different words in 60 rows)" in printed


def test_the_page_names_all_dropped_columns():
    frame = wide_table().assign(**{f"none{i:02}": np.nan for i in range(12)})
    lines = column_lines(Preparation().fit(frame).columns)
    assert next(line.names for line in lines if "missing" in line.how).endswith("none11")
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 12)))
    assert column_lines(Preparation().fit(frame).columns)[0].names.endswith("and 4 more")
