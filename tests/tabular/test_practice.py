"""What a practitioner asks: rare classes, counts, quantiles, later rows and new groups, thresholds, Excel's files."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mercer import load, save
from mercer.cli import main
from mercer.tabular import TabularClassifier, TabularModel, TabularRegressor, read
from mercer.tabular.pages.model_page import headline
from mercer.tabular.scoring import deal_groups
from mercer.tabular.splits import choose_scored_rows
from mercer.tabular.training import Sizes, Training

ROWS = 200


def run(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def rare(rows=ROWS, share=0.06, signal=0.0):
    """A class of few rows, about which the number says as much as ``signal``."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(rows) < share * rows, "ill", "well")
    return pd.DataFrame({"x": rng.normal(size=rows) + signal * (y == "ill"), "z": rng.normal(size=rows), "y": y})


@pytest.fixture(scope="module")
def unlearnable(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rare")
    rare().to_csv(folder / "rare.csv", index=False)
    printed = run("fit", folder / "rare.csv", "--target", "y", "-o", folder / "model")
    return folder, printed


def test_a_class_that_is_never_predicted_is_said_first(unlearnable):
    folder, printed = unlearnable
    said = "y: ill is never predicted"
    assert said in " ".join(printed.splitlines()[1:3]) and "--threshold" in printed
    model = load(folder / "model")
    assert headline(model).startswith(said) and "where the most frequent" not in headline(model)
    assert model.scores["average_precision"] < 0.4 and "balanced" in printed and "avg prec" in printed
    beside = model.scores["beside"]["linear"]
    assert set(beside) == {"accuracy", "balanced_accuracy", "log_loss", "auroc", "average_precision"}


def test_nothing_gained_is_said():
    model = TabularModel().fit(rare(60, 0.5), "y")
    model.scores.update(accuracy=0.5, always_most_frequent=0.5, confusion=[[15, 15], [15, 15]])
    assert "no more rows right than by the most frequent class alone, 50.0% on unseen rows." in headline(model)
    model.scores.update(accuracy=0.9, confusion=[[27, 3], [3, 27]])
    assert headline(model).startswith("y is predicted from 2 columns: 90.0% right")


def test_several_classes_have_an_area_under_the_curve():
    frame = rare(90).assign(y=lambda t: pd.cut(t["x"], [-9, -0.5, 0.5, 9], labels=["a", "b", "c"]).astype(str))
    scores = TabularModel().fit(frame, "y").scores
    assert scores["auroc"] > 0.9 and scores["average_precision"] > 0.8


def test_balanced_classes_are_found():
    frame = rare(signal=1.5)
    x, y = frame[["x", "z"]], frame["y"]
    plain = TabularClassifier().fit(x, y)
    even = TabularClassifier(class_weight="balanced").fit(x, y)
    by_hand = TabularClassifier(class_weight={"ill": 0.94 / 0.06}).fit(x, y)
    ill = np.array(y == "ill")
    assert (even.predict(x)[ill] == "ill").mean() > (plain.predict(x)[ill] == "ill").mean() + 0.3
    np.testing.assert_allclose(by_hand.predict_proba(x), even.predict_proba(x), atol=1e-6)
    with pytest.raises(ValueError, match="class_weight must name classes, ill, well; got 'sick'"):
        TabularClassifier(class_weight={"sick": 2}).fit(x, y)
    with pytest.raises(ValueError, match="class_weight must be"):
        TabularModel(class_weight="equal")


def test_counts_are_not_negative_and_quantiles_do_not_cross():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"x": rng.normal(size=ROWS), "z": rng.normal(size=ROWS)})
    visits = rng.poisson(np.exp(x["x"] - 1)).astype(float) + 0.5 * (rng.random(ROWS) < 0.2)
    model = TabularRegressor().fit(x, visits)
    assert model.predict_interval(x).min() == 0 and model.predict(x * 3).min() >= 0
    quantiles = model.predict_quantiles(x, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert (np.diff(quantiles) >= 0).all() and quantiles.min() >= 0
    np.testing.assert_array_equal(quantiles[:, 2], model.predict(x))
    np.testing.assert_allclose(quantiles[:, [0, 4]], model.predict_interval(x, 0.9))
    shifted = TabularRegressor().fit(x, visits - 1)
    assert shifted.predict_interval(x).min() < -1  # numbers of both signs are left as they are
    with pytest.raises(ValueError, match="levels must lie between 0 and 1"):
        model.predict_quantiles(x, [1.0])


def drifting(rows=ROWS):
    """Each shop has a level of its own, which its number tells; the level of all rises with the day."""
    rng = np.random.default_rng(0)
    shop = rng.integers(0, 10, rows)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(rows), unit="D")
    sales = 5 * rng.normal(size=10)[shop] + 0.1 * rng.normal(size=rows)
    frame = pd.DataFrame({"day": day.strftime("%Y-%m-%d"), "shop": [f"shop {i}" for i in shop], "floor": shop * 1.0})
    return frame.sample(frac=1, random_state=0).assign(sales=lambda t: sales[t.index] + 0.0)


def test_scores_of_whole_groups_and_of_later_rows(tmp_path):
    frame = drifting()
    mixed = TabularModel().fit(frame, "sales")
    grouped = TabularModel(groups="shop").fit(frame, "sales")
    assert mixed.scores["r2"] > 0.95 and grouped.scores["r2"] < 0.8  # a new shop's level is not known
    assert [c.name for c in grouped.preparation.columns] == ["day", "shop", "floor"]
    assert grouped.preparation.columns[1].how == "dropped: it names the groups"
    assert grouped.scores["rows"] == ROWS and grouped.scores["folds"] == 5  # every shop was left out
    long = TabularModel(groups="shop").fit(frame, "sales", sizes=Sizes(exact=100, leaf=50, left_out=20))
    assert long.scores["r2"] < 0.8 and 0.1 * ROWS < long.scores["rows"] < 0.4 * ROWS and long.rows == ROWS
    later = TabularModel(time="day").fit(frame, "sales")
    assert later.scores["rows"] == ROWS // 5
    assert "Scores are of the last 20% of the rows by day, predicted from those before them" in later.notes[-1]
    long = TabularModel(time="day").fit(frame, "sales", sizes=Sizes(exact=100, leaf=50, left_out=20))
    assert long.scores["rows"] == ROWS // 5 and "the last 20% of the rows by day" in long.notes[-1]
    save(grouped, tmp_path / "model")
    again = load(tmp_path / "model")
    for option in ({"groups": "shop"}, {"time": "day"}):  # the same scores for the same rows in another order
        one, other = (TabularModel(**option, trees=False).fit(rows, "sales") for rows in (frame, frame[::-1]))
        assert one.scores == other.scores
        pd.testing.assert_frame_equal(one.predict(frame), other.predict(frame), check_exact=True)
    assert again.groups == "shop" and again.scores == grouped.scores
    pd.testing.assert_frame_equal(again.predict(frame[:5]), grouped.predict(frame[:5]))
    with pytest.raises(ValueError, match="time or groups must be None"):
        TabularModel(time="day", groups="shop")
    with pytest.raises(ValueError, match="groups: must be one of the columns"):
        TabularModel(groups="shops").fit(frame, "sales")


@pytest.mark.parametrize("sizes", [None, Sizes(exact=100, leaf=50, left_out=20)], ids=["short", "long"])
def test_a_score_of_later_rows_is_that_of_a_model_that_never_saw_them(sizes):
    """Not their values, nor target means with them, nor a choice by them: as if they had come after the fit."""
    frame = drifting().assign(sales=lambda t: t["sales"] + 0.02 * t.index)
    late = frame["day"] >= sorted(frame["day"])[160]
    scores = TabularModel(time="day").fit(frame, "sales", sizes=sizes).scores
    earlier_sizes = None if sizes is None else Sizes(exact=100, leaf=50, left_out=20)
    earlier = TabularModel(time="day").fit(frame[~late], "sales", sizes=earlier_sizes)
    missed = frame["sales"][late] - earlier.predict(frame[late])["prediction"]
    assert scores["rows"] == 40
    np.testing.assert_allclose(scores["rmse"], np.sqrt((missed**2).mean()), rtol=1e-9)
    np.testing.assert_allclose(scores["r2"], 1 - (missed**2).mean() / frame["sales"][late].var(ddof=0), rtol=1e-9)


@pytest.mark.parametrize("rows", [4000, 100], ids=["in turn", "a fifth"])
def test_scores_of_groups_are_those_of_models_that_never_saw_them(rows):
    """Not their values, nor target means with them, nor a choice by them."""
    frame = drifting().assign(sales=lambda t: t["sales"] + t["floor"])
    names = frame["shop"].to_numpy(dtype=str)
    sizes = Sizes(every_row=rows)
    model = TabularModel(groups="shop", trees=False).fit(frame, "sales", sizes=sizes)
    fold = deal_groups(names, 0).numpy()
    parts = [fold == i for i in range(5)] if rows > len(frame) else [choose_scored_rows(names, None, 0)]
    missed, truth = [], []
    for part in parts:
        training = Training("auto", 0, lambda what: None, sizes)
        training.learn(frame.drop(columns="shop")[~part], "sales", groups=names[~part])
        others = TabularModel()
        others.set_state(training.state())
        missed.append(frame["sales"][part] - others.predict(frame[part])["prediction"])
        truth.append(frame["sales"][part])
    missed, truth = np.concatenate(missed), np.concatenate(truth)
    assert model.scores["rows"] == len(truth) and model.scores["folds"] == len(parts)
    np.testing.assert_allclose(model.scores["rmse"], np.sqrt((missed**2).mean()), rtol=1e-9)
    assert "by " + ("models" if len(parts) > 1 else "a model") + " fitted without them" in model.scores["of"]


def test_levels_of_groups_that_nothing_tells_score_below_chance():
    """The mean of the other groups is the best answer; a choice of machines by the groups that are scored beat it."""
    shares = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(40), np.ceil(rng.lognormal(1.8, 1, 40)).astype(int))
        frame = pd.DataFrame({"g": [f"g{i}" for i in group], "a": rng.normal(size=len(group))})
        frame = frame.assign(b=rng.normal(size=40)[group], y=rng.normal(size=40)[group])
        scores = TabularModel(groups="g", trees=False).fit(frame, "y").scores
        fold = deal_groups(frame["g"].to_numpy(dtype=str), 0).numpy()
        y = frame["y"].to_numpy()
        best = np.array([y[fold != i].mean() for i in range(5)])[fold]
        shares.append(scores["rmse"] ** 2 / ((y - best) ** 2).mean())
    assert np.mean(shares) > 0.97  # 0.88 of it where the groups that are scored choose


def test_every_group_is_scored_with_the_same_chance_whatever_its_size():
    names = np.repeat([f"g{i}" for i in range(10)], [200, *[10] * 9])
    drawn = [choose_scored_rows(names, None, seed)[0] for seed in range(300)]
    assert 0.12 < np.mean(drawn) < 0.28  # 2 of 10 groups
    assert choose_scored_rows(np.array(["a", "b", "b"]), None, 0).sum() in (1, 2)


def test_where_all_other_groups_are_of_one_class_nothing_is_scored():
    x = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"g": np.repeat(["a", "b"], 30), "x": x, "y": ["u"] * 30 + ["u", "v"] * 15})
    scores = TabularModel(groups="g", trees=False).fit(frame, "y").scores
    assert scores["folds"] == 0 and scores["note"] == "all rows of other groups are of one class"
    # the one column is the same in all rows of a group
    frame = frame.assign(x=frame["g"] == "a", y=x)
    scores = TabularModel(groups="g", trees=False).fit(frame, "y").scores
    assert scores["folds"] == 0 and "rows of other groups teach nothing: Preparation: some column" in scores["note"]


def test_later_rows_of_one_moment_stay_together_and_rows_to_predict_are_not_scored():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"year": np.repeat([1, 2, 3, 4], [30, 10, 70, 90]), "x": rng.normal(size=200)})
    frame["y"] = frame["x"] + 0.1 * rng.normal(size=200)
    model = TabularModel(time="year", trees=False).fit(frame, "y")
    assert model.scores["rows"] == 90 and "the last 45% of the rows by year" in model.notes[-1]
    # the rows of year 4 are still to come
    later = TabularModel(time="year", trees=False).fit(frame.assign(y=frame["y"].where(frame["year"] < 4)), "y")
    assert later.scores["rows"] == 70 and "the last 64% of the rows by year" in later.notes[-1]
    with pytest.raises(ValueError, match="column 'year' must tell earlier from later rows"):
        TabularModel(time="year").fit(frame[frame["year"] == 4], "y")
    with pytest.raises(ValueError, match="at least two rows must have a value in 'year' and in 'y'; got 0"):
        TabularModel(time="year").fit(frame.assign(y=np.nan), "y")


def test_others_stand_beside_on_the_same_later_rows():
    """With weights, and with a class that no earlier row has."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"day": np.arange(150), "shop": np.arange(150) % 10, "x": rng.normal(size=150)})
    kind = np.where(frame["x"] > 0, "c", "b")
    frame["y"] = np.where((frame["day"] >= 140) & (frame["x"] < -1), "a", kind)
    weight = rng.uniform(1, 2, 150)
    scores = TabularModel(time="day", trees=False).fit(frame, "y", weight, compare=True).scores
    assert scores["rows"] == 30 and set(scores["beside"]) == {"linear", "HistGradientBoosting"}
    learned, asked = frame[:120], frame[120:]
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    linear.fit(learned[["day", "shop", "x"]], learned["y"], logisticregression__sample_weight=weight[:120])
    accuracy = linear.score(asked[["day", "shop", "x"]], asked["y"])
    assert abs(scores["beside"]["linear"]["accuracy"] - accuracy) < 0.07
    small = Sizes(exact=100, leaf=50, left_out=20)
    grouped = TabularModel(groups="shop", trees=False).fit(frame, "x", compare=True, sizes=small)
    assert set(grouped.scores["beside"]) == {"linear", "HistGradientBoosting"} and grouped.scores["rows"] < 60


def test_there_is_no_score_of_later_rows_where_the_earlier_ones_teach_nothing():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"day": np.arange(100), "x": rng.normal(size=100)})
    for target, note in (
        (np.where(frame["day"] < 90, "a", "b"), "all rows before the last ones are of one class"),
        (np.where(frame["day"] < 80, frame["x"], 7.0), "y is the same in all of the last rows"),
    ):
        model = TabularModel(time="day", trees=False).fit(frame.assign(y=target), "y")
        assert model.scores["folds"] == 0 and model.scores["note"] == note
        assert "too few to say how well" in headline(model)


def test_the_command_scores_later_rows_and_ignores_columns(tmp_path):
    drifting(80).to_csv(tmp_path / "t.csv", index=False)
    words = ("fit", tmp_path / "t.csv", "--target", "sales", "-o", tmp_path / "m", "--time", "day", "--ignore", "floor")
    document = json.loads(run(*words, "--json"))
    assert document["scores"]["of"].startswith("the last 20% of the rows by day")
    assert set(document["scores"]["beside"]) == {"linear", "HistGradientBoosting"}
    assert {"name": "floor", "kind": "ignored", "how": "dropped: as asked"} in document["columns"]
    out = run("predict", tmp_path / "m", tmp_path / "t.csv", "-o", tmp_path / "p.csv")
    assert "floor" not in out
    page = (tmp_path / "m" / "explain.html").read_text()
    assert "Measured on the last 20% of the rows by day" in page and "cross-validation" not in page


def test_thresholds(unlearnable, tmp_path):
    folder, _ = unlearnable
    for option, least in (("--threshold", "ill=0.05"), ("--cost", "ill=19")):
        run("predict", folder / "model", folder / "rare.csv", "-o", tmp_path / "p.csv", option, least)
        answers = pd.read_csv(tmp_path / "p.csv")
        assert ((answers["prediction"] == "ill") == (answers["p_ill"] >= 0.05)).all()
        assert (answers["prediction"] == "ill").any()
    words = ["predict", str(folder / "model"), str(folder / "rare.csv"), "-o", str(tmp_path / "p.csv"), "--threshold"]
    for wrong in ("0.2", "ill=2", "ill=x"):
        result = CliRunner().invoke(main, [*words, wrong])
        assert result.exit_code == 2 and "--threshold must be CLASS=NUMBER" in result.output
    assert CliRunner().invoke(main, [*words, "sick=0.2"]).exit_code == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_files_as_excel_writes_them(tmp_path, encoding):
    text = "größe;preis\r\nklein;5 €\r\nmüßig;7 €\r\n"
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    frame = read(tmp_path / "t.csv")
    assert frame.columns.tolist() == ["größe", "preis"] and frame["größe"].tolist() == ["klein", "müßig"]


def test_sheets(tmp_path):
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    try:
        frame.to_excel(tmp_path / "t.xlsx", index=False)
    except ImportError:
        (tmp_path / "t.xlsx").write_bytes(b"PK")
        with pytest.raises(ValueError, match="needs openpyxl; got none"):
            read(tmp_path / "t.xlsx")
    else:
        pd.testing.assert_frame_equal(read(tmp_path / "t.xlsx"), frame)


def test_one_stray_word_among_whole_numbers_makes_no_classes():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300)})
    frame["n"] = (50 + 20 * frame["x"]).round().astype(int).astype(str)
    frame.loc[7, "n"] = "unknown"
    model = TabularModel().fit(frame, "n")
    assert model.target.classes is None and "1 row left out, where it is no number (first 'unknown' in row 7)" in str(
        model.notes
    )


def test_intervals_cover_rows_of_new_groups():
    rng = np.random.default_rng(0)
    shop = np.arange(1200) // 6
    level, floor = rng.normal(size=200), rng.normal(size=200)  # the floor tells the shop, and so its level
    frame = pd.DataFrame({"shop": [f"s{i}" for i in shop], "floor": floor[shop], "size": rng.normal(size=1200)})
    frame["sales"] = level[shop] + frame["size"] + 0.3 * rng.normal(size=1200)
    model = TabularModel(groups="shop", trees=False).fit(frame[:600], "sales")
    answers = model.predict(frame[600:])  # of 100 shops that the model does not know
    inside = (answers["low"] <= frame["sales"][600:]) & (frame["sales"][600:] <= answers["high"])
    assert inside.mean() > 0.84
    assert "intervals are as wide as their errors ask for" in str(model.notes)


def test_intervals_of_later_rows_are_those_of_the_worse_half():
    """Of a long table the worse half of the last fifth sets the widths; of a short one the last period, if worse."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"day": np.arange(400), "x": rng.normal(size=400)})
    frame["y"] = frame["x"] + np.where(frame["day"] >= 360, 1.0, 0.1) * rng.normal(size=400)
    shuffled = frame.sample(frac=1, random_state=1)
    model = TabularModel(time="day", trees=False).fit(shuffled, "y", sizes=Sizes(exact=100, leaf=80, left_out=40))
    assert len(model.learner.errors) == 40 and model.scores["rows"] == 80
    errors = (frame["y"] - frame["x"]).abs()[360:]
    assert model.learner.errors.median() > 0.5 * errors.median()  # not of the calm half, where it is .07
    assert "the errors of their worse half" in model.notes[-1]
    short = TabularModel(time="day", trees=False).fit(shuffled, "y")
    # 80 rows of the last period, 40 of them calm
    assert len(short.learner.errors) == 80 and short.scores["rows"] == 80
    assert TabularModel(time="day", trees=False).fit(frame, "y").scores == short.scores


def test_folds_of_groups_are_even_and_keep_groups_whole():
    names = np.repeat([f"g{i}" for i in range(12)], [40, 30, 30, 20, 20, 10, 10, 10, 10, 10, 5, 5])
    fold = deal_groups(names, 0)
    assert all(len(fold[torch.from_numpy(names == name)].unique()) == 1 for name in np.unique(names))
    assert torch.bincount(fold).tolist() == [40] * 5
    assert deal_groups(names[:70], 0).unique().tolist() == [0, 1]  # two groups, two folds


def test_a_sheet_is_learned_from_and_predicted(tmp_path):
    """Dates, blank cells and whole numbers of a sheet arrive as such."""
    pytest.importorskip("openpyxl")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=60), "size": rng.normal(size=60)})
    frame["kind"] = np.where(frame["size"] > 0, "big", "small")
    frame.loc[5, "size"] = None
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    sheet = str(tmp_path / "t.xlsx")
    result = CliRunner().invoke(main, ["fit", sheet, "--target", "kind", "-o", str(tmp_path / "m")])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["predict", str(tmp_path / "m"), sheet, "-o", str(tmp_path / "p.csv")])
    assert result.exit_code == 0, result.output
    assert (read(tmp_path / "p.csv")["prediction"] == frame["kind"]).mean() > 0.9


@pytest.mark.parametrize(("minutes", "rows"), [("1e-9", 50), ("600", 230)])
def test_a_time_budget_leaves_rows_out(tmp_path, monkeypatch, minutes, rows):
    monkeypatch.setattr("mercer.tabular.streaming._FIRST_ROWS", 50)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=230)})
    frame.assign(y=2 * frame["x"] + 1).to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", tmp_path / "t.csv", "--target", "y", "-o", tmp_path / "m", "--minutes", minutes, "--json"]
    document = json.loads(run(*words))
    assert document["rows"] == rows and document["scores"]["r2"] > 0.95
    said = "Of 230 rows, 50 drawn at random were learned from in 1e-09 minutes." in document["notes"]
    assert said == (rows < 230)
    frame[::-1].assign(y=2 * frame["x"] + 1).to_csv(tmp_path / "t.csv", index=False)
    assert json.loads(run(*words, "--force"))["scores"] == document["scores"]  # the same rows in another order
