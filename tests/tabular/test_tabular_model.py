"""A table's model: its scores, its predictions, how it knows a strange row, and its folder."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sk

import mercer
from mercer.machines import KernelRidge
from mercer.tabular import TabularModel, effects
from mercer.tabular.familiarity import Familiarity
from mercer.tabular.scoring import rank_scores, score_classes, score_values
from mercer.tabular.training import Sizes


def table(n=240, seed=0):
    rng = np.random.default_rng(seed)
    size, shape = rng.normal(size=n), rng.choice(["round", "flat", "long"], n)
    noise = rng.normal(size=n)
    score = size + (shape == "round") - (shape == "long")
    frame = pd.DataFrame({"size": size, "shape": shape, "noise": noise})
    frame["kind"] = np.where(score > 0.7, "a", np.where(score > -0.7, "b", "c"))
    frame["value"] = 10 * score + 3
    return frame


@pytest.fixture(scope="module")
def classes():
    return TabularModel().fit(table().drop(columns="value"), "kind")


@pytest.fixture(scope="module")
def values():
    return TabularModel().fit(table().drop(columns="kind"), "value")


def test_classes_are_learned_and_scored_on_held_out_rows(classes):
    new = table(400, seed=1)
    answer = classes.predict(new)
    assert answer.columns.tolist() == ["prediction", "p_a", "p_b", "p_c", "unfamiliar"]
    np.testing.assert_allclose(answer[["p_a", "p_b", "p_c"]].sum(axis=1), 1)
    accuracy = float((answer["prediction"] == new["kind"]).mean())
    assert accuracy > 0.88
    scores = classes.scores
    assert abs(scores["accuracy"] - accuracy) < 0.06, "held-out scores tell the truth"
    assert (scores["rows"], scores["folds"], classes.rows) == (240, 5, 240)
    assert np.array(scores["confusion"]).sum() == sum(scores["reliability"]["rows"]) == 240
    assert np.trace(scores["confusion"]) / 240 == pytest.approx(scores["accuracy"])
    assert scores["auroc"] > 0.9 and scores["log_loss"] < 0.5 and classes.seconds > 0
    json.dumps(scores, allow_nan=False)


def test_values_are_learned_and_scored_on_held_out_rows(values):
    new = table(400, seed=1)
    answer = values.predict(new)
    assert answer.columns.tolist() == ["prediction", "low", "high", "unfamiliar"]
    inside = new["value"].between(answer["low"], answer["high"]).mean()
    assert 0.83 < inside < 0.97, "nine in ten"
    wide = values.predict(new, level=0.99)
    assert (wide["high"] - wide["low"] > answer["high"] - answer["low"]).all()
    r2 = sk.r2_score(new["value"], answer["prediction"])
    assert r2 > 0.95 and abs(values.scores["r2"] - r2) < 0.05
    assert len(values.scores["pairs"]["value"]) == 240
    json.dumps(values.scores, allow_nan=False)


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    p = torch.from_numpy(rng.dirichlet(np.ones(2), 300))
    y = torch.from_numpy(rng.integers(0, 2, 300))
    found, guess = score_classes(p, y), p.argmax(1).numpy()
    assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, guess))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
    assert found["log_loss"] == pytest.approx(sk.log_loss(y, p))
    assert found["confusion"] == sk.confusion_matrix(y, guess).tolist()
    a, b = torch.from_numpy(rng.normal(size=(2, 300)))
    found = score_values(a, b)
    assert found["r2"] == pytest.approx(sk.r2_score(b, a))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(b, a))
    assert found["rmse"] ** 2 == pytest.approx(sk.mean_squared_error(b, a))


@pytest.mark.parametrize("name", ["classes", "values"])
def test_unfamiliar_is_low_at_home_and_one_far_away(name, request):
    model = request.getfixturevalue(name)
    home = model.predict(table(400, seed=2))["unfamiliar"]
    assert home.between(0, 1).all() and home.median() < 0.15
    assert 0.01 < (home > 0.5).mean() < 0.12, "about one in twenty"
    far = model.predict(table(50, seed=3).assign(size=50.0, noise=-40.0))["unfamiliar"]
    assert far.min() > 0.95


def test_a_category_never_seen_raises_it(classes, caplog):
    new = table(50, seed=4)
    strange = new.assign(shape="square", extra=1)
    with caplog.at_level(logging.WARNING, "mercer"):
        answer = classes.predict(strange)
    assert (answer["unfamiliar"] >= 0.5).all()
    assert "shape: categories that no training row had (50 rows)" in caplog.text
    assert "extra: a column that the model does not know is ignored (50 rows)" in caplog.text


def test_the_variance_is_the_gaussian_processs(generator):
    """Literally; the scale is that of training rows, each left out by a refit."""
    z = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    familiarity = Familiarity.of(z, torch.Generator().manual_seed(0))
    rows, kernel, noise = familiarity.machine.anchors_, familiarity.machine.kernel_, 1e-3

    def variance(at, seen):
        k, system = kernel(at, seen), kernel(seen) + noise * torch.eye(len(seen), dtype=torch.float64)
        return 1 - (k * torch.linalg.solve(system, k.mT).mT).sum(1)

    near = z[:7] + 0.1
    torch.testing.assert_close(familiarity.variance(near), variance(near, rows), rtol=0, atol=1e-9)
    left_out = torch.cat([variance(rows[i : i + 1], torch.cat((rows[:i], rows[i + 1 :]))) for i in range(60)])
    quantiles = left_out.clamp(0, 1).quantile(torch.tensor([0.5, 0.95]).double()).clamp_max(0.999)
    assert [familiarity.middle, familiarity.tail] == pytest.approx(quantiles.tolist(), rel=1e-6)


def test_where_training_rows_are_all_alone_nothing_is_nan(monkeypatch):
    for middle, tail in ((0.999, 0.999), (0.0, 0.0), (0.2, 0.2)):
        familiarity = Familiarity(KernelRidge(), middle, tail)
        monkeypatch.setattr(familiarity, "variance", lambda z: z)
        assert familiarity(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [0.0, 1.0]


def test_a_model_is_a_folder(classes, values, tmp_path):
    new = table(60, seed=5)
    for model in (classes, values):
        mercer.save(model, tmp_path / "m")
        loaded = mercer.load(tmp_path / "m")
        pd.testing.assert_frame_equal(loaded.predict(new), model.predict(new), check_exact=True)
        for name in ("scores", "seconds", "rows", "notes", "made_with"):
            assert getattr(loaded, name) == getattr(model, name)
        assert loaded.preparation.columns == model.preparation.columns
    assert {"python", "mercer", "torch"} <= loaded.made_with.keys()


def test_rows_without_a_target_are_left_out_and_said():
    frame = table().drop(columns="value")
    frame.loc[:9, "kind"] = [None, "?", "", "NA", None, None, None, None, None, None]
    model = TabularModel().fit(frame, "kind")
    assert model.rows == 230 and model.notes[0] == "10 rows without kind left out."


def test_a_class_with_one_row_is_learned_and_said():
    frame = table(60).drop(columns="value")
    frame.loc[0, "kind"] = "rare"
    model = TabularModel().fit(frame, "kind")
    assert "rare has a single row" in model.notes[-1]
    answer = model.predict(frame)
    assert "p_rare" in answer and np.isfinite(answer.drop(columns="prediction")).all(axis=None)


def test_few_rows():
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]})
    model = TabularModel().fit(frame, "y")
    assert model.scores == {"rows": 2, "folds": 0, "note": "too few rows of each class to cross-validate"}
    assert model.predict(frame)["prediction"].tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="at least two rows must have a value in 'y'; got 1"):
        TabularModel().fit(frame[:1], "y")


def test_intervals_are_wide_where_errors_are_large():
    """Noise of 0.1 on the left, of 1 on the right: both sides are covered, by intervals of different width."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 1400)
    frame = pd.DataFrame({"x": x, "y": np.sin(3 * x) + np.where(x > 0, 1.0, 0.1) * rng.normal(size=1400)})
    answer, new = TabularModel().fit(frame[:400], "y").predict(frame[400:]), frame[400:]
    inside, width = new["y"].between(answer["low"], answer["high"]), answer["high"] - answer["low"]
    right = new["x"] > 0
    assert width[right].mean() > 4 * width[~right].mean()
    assert abs(inside.mean() - 0.9) < 0.06  # of 400 rows and 1,000 new ones, three deviations are 0.05
    assert inside[right].mean() > 0.84, "intervals of one width would miss a fifth of the noisy side"


def test_of_many_rows_one_fifth_is_held_out():
    scores = TabularModel().fit(table().drop(columns="value"), "kind", sizes=Sizes(every_row=200)).scores
    assert (scores["rows"], scores["folds"]) == (48, 1) and np.array(scores["confusion"]).sum() == 48
    assert scores["accuracy"] > 0.8


def test_words_of_many_levels_are_learned_from():
    rng = np.random.default_rng(0)
    town = rng.integers(0, 60, 1500)
    effect = rng.normal(size=60)
    frame = pd.DataFrame({"town": [f"town {i}" for i in town], "x": rng.normal(size=1500)})
    frame["y"] = effect[town] + 0.2 * frame["x"] + 0.1 * rng.normal(size=1500)
    model = TabularModel().fit(frame[:1200], "y")
    assert sk.r2_score(frame["y"][1200:], model.predict(frame[1200:])["prediction"]) > 0.9
    assert model.scores["r2"] > 0.9 and next(iter(model.explain().index)) == "town"
    unseen = model.predict(frame[1200:].assign(town="nowhere"))
    assert unseen["prediction"].between(frame["y"].min(), frame["y"].max()).all()
    assert (unseen["unfamiliar"] >= 0.5).all()


def test_probabilities_are_never_surer_than_the_rows_allow():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": np.r_[rng.normal(-4, 1, 60), rng.normal(4, 1, 60)], "y": ["a"] * 60 + ["b"] * 60})
    p = TabularModel().fit(frame, "y").predict(pd.DataFrame({"x": [-9.0, 9.0]}))[["p_a", "p_b"]].to_numpy()
    assert p.min() >= 1 / (2 * 122) - 1e-12


def test_numbers_far_outside_stay_within_the_training_range_and_a_tenth():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=200)})
    frame["y"] = 3 * frame["x"] + 0.01 * rng.normal(size=200)
    found = TabularModel().fit(frame, "y").predict(pd.DataFrame({"x": [1e6, -1e6, 1e200]}))["prediction"]
    low, high = frame["y"].min(), frame["y"].max()
    assert found.between(low - 0.101 * (high - low), high + 0.101 * (high - low)).all()


def test_a_blank_row_is_answered_and_called_unfamiliar(classes, caplog):
    blank = pd.DataFrame({"size": [None, 0.1], "shape": [None, "round"], "noise": [None, 0.0]})
    with caplog.at_level(logging.WARNING, "mercer"):
        answer = classes.predict(blank)
    assert answer["unfamiliar"][0] >= 0.5 and answer["unfamiliar"][1] < 0.5
    assert "rows without a value in any column" in caplog.text


def test_56_more_columns_than_rows_by_far():
    """No d x d matrix: 2,000 columns and 40 rows take no more than the rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2000))
    frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(2000)]).assign(y=np.where(x[:, 0] > 0, "a", "b"))
    model = TabularModel().fit(frame, "y", compare=True)
    p = model.predict(frame)[["p_a", "p_b"]].to_numpy()
    assert np.isfinite(p).all() and set(model.scores["beside"]) == {"linear"}
    assert model.scores["log_loss"] < 1, "no worse than a coin by much"


def test_polars_frames_are_taken(classes):
    polars = pytest.importorskip("polars")
    new = table(40, seed=6)
    pd.testing.assert_frame_equal(classes.predict(polars.DataFrame(new.to_dict("list"))), classes.predict(new))


def test_others_are_scored_on_the_same_folds():
    frame = table(150)
    for target, gone in (("kind", "value"), ("value", "kind")):
        beside = TabularModel().fit(frame.drop(columns=gone), target, compare=True).scores["beside"]
        assert set(beside) == {"linear", "HistGradientBoosting"}
        assert all(score > 0.5 for one in beside.values() for name, score in one.items() if name != "log_loss")


def test_numbers_and_truth_values_as_classes_come_back_as_they_were():
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    for labels, kind in ((np.where(x > 0, 7, 3), [3, 7]), (x > 0, ["False", "True"])):
        answer = TabularModel().fit(pd.DataFrame({"x": x, "y": labels}), "y").predict(pd.DataFrame({"x": [-2.0, 2.0]}))
        assert answer["prediction"].tolist() == kind
        assert answer.columns.tolist() == ["prediction", f"p_{kind[0]}", f"p_{kind[1]}", "unfamiliar"]


def test_wrong_use_is_refused(classes):
    frame = table()
    with pytest.raises(ValueError, match=r"must be one of the columns size, .*; got 'kin'\. Did you mean 'kind'\?"):
        TabularModel().fit(frame, "kin")
    with pytest.raises(ValueError, match="fit must come first"):
        TabularModel().predict(frame)
    with pytest.raises(ValueError, match="fit must come first"):
        mercer.save(TabularModel(), "nowhere")
    with pytest.raises(ValueError, match="task must be one of"):
        TabularModel(task="ranking")
    with pytest.raises(ValueError, match=r"random_state must be in 0\.\.4294967295; got -1"):
        TabularModel(random_state=-1)
    with pytest.raises(ValueError, match="level must lie between 0 and 1; got 2"):
        TabularModel().fit(frame.drop(columns="kind"), "value").predict(frame, level=2)


def test_the_same_seed_gives_the_same_model():
    frame = table(120).drop(columns="value")
    first, second = (TabularModel(random_state=3).fit(frame, "kind").predict(frame) for _ in range(2))
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_a_model_shows_itself_in_a_notebook():
    empty = TabularModel()
    assert "TabularModel task=&#x27;auto&#x27;" in empty._repr_html_() and "fitted" not in repr(empty)
    frame = pd.DataFrame({"x": [0, 1, 2, 3] * 10, "<b>": ["u", "v"] * 20, "sort": ["low", "low", "high", "high"] * 10})
    model = TabularModel().fit(frame, "sort")
    assert repr(model).endswith("fitted to 40 rows of 'sort'>")
    shown = model._repr_html_()
    assert "sort: classification, 40 rows" in shown and "accuracy" in shown
    assert "&lt;b&gt;" in shown and "<td><b>" not in shown


def _hole_frame(n: int, seed: int) -> pd.DataFrame:
    """One column decides, no cell is blank."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "c": rng.choice(["x", "y", "z"], n)})
    kind = np.where(frame["a"] + 0.1 * rng.normal(size=n) > 0.3, "high", "low")
    return frame.assign(y=5 * frame["a"] + 0.5 * rng.normal(size=n), kind=kind)


@pytest.fixture(scope="module")
def hole_models():
    frame = _hole_frame(200, 0)
    return (
        TabularModel().fit(frame.drop(columns="kind"), "y"),
        TabularModel().fit(frame.drop(columns="y"), "kind"),
        (frame["kind"] == "high").mean(),
    )


def test_63_a_blank_decisive_number_widens_the_interval(hole_models, caplog, tmp_path):
    model, new = hole_models[0], _hole_frame(300, 1).drop(columns="kind")
    with caplog.at_level(logging.WARNING, "mercer"):
        answer = model.predict(new.assign(a=np.nan))
    assert 0.85 <= new["y"].between(answer["low"], answer["high"]).mean() <= 0.98
    assert answer["unfamiliar"].min() >= 0.5
    assert [record.getMessage() for record in caplog.records] == [
        "a: blank, as in no training row; the answer averages over values of similar training rows (300 rows)"
    ]
    mercer.save(model, tmp_path / "m")
    some = model.predict(new.assign(a=new["a"].where(new.index != 7)))
    whole = model.predict(new)
    assert np.allclose(some.drop(index=7), whole.drop(index=7)), "other rows stay as they were"
    assert np.allclose(some.loc[7], answer.loc[7]), "an answer depends on its own row only"
    assert np.allclose(mercer.load(tmp_path / "m").predict(new.assign(a=np.nan)), answer)


def test_63_a_blank_column_that_says_nothing_changes_little(hole_models):
    model, new = hole_models[0], _hole_frame(300, 1).drop(columns="kind")
    whole = model.predict(new)
    for name in "bc":
        answer = model.predict(new.assign(**{name: None}))
        assert (answer["prediction"] - whole["prediction"]).abs().mean() < 0.3
        assert (answer["unfamiliar"] >= 0.5).mean() < 0.2
        assert 0.85 <= new["y"].between(answer["low"], answer["high"]).mean() <= 0.98


def test_63_a_blank_decisive_cell_makes_a_classifier_unsure(hole_models):
    _, model, share = hole_models
    new = _hole_frame(300, 1)
    answer = model.predict(new[["b", "c"]].assign(a=None))
    sure = answer[["p_high", "p_low"]].max(axis=1).mean()
    assert sure < (answer["prediction"] == new["kind"]).mean() + 0.1
    assert answer["unfamiliar"].min() >= 0.5
    blank = model.predict(pd.DataFrame({"a": [None, None], "b": None, "c": None}))
    assert np.allclose(blank["p_high"], share, atol=0.05) and blank["unfamiliar"].min() >= 0.5


def test_63_reasons_of_a_row_with_a_blank_cell_leave_its_column_out(hole_models):
    row = _hole_frame(5, 2).assign(a=np.nan)
    for why in effects.reasons(hole_models[0], row):
        assert abs(why.parts["a"]) < 1e-6 and abs(why.average + sum(why.parts.values()) - why.value) < 1e-9


def test_63_blank_cells_that_training_had_are_learned():
    """Where blank means something, the model's own answer stays."""
    frame = _hole_frame(200, 0).drop(columns="kind")
    frame.loc[::4, "a"] = np.nan
    frame["y"] = frame["y"].where(frame["a"].notna(), 20 + 0.1 * frame["b"])
    answer, surprises = TabularModel().fit(frame, "y").predict_with_surprises(frame.iloc[::4])
    assert (answer["prediction"] - 20).abs().max() < 2 and not surprises.keys() - {"y"}


def test_the_last_day_of_the_year_9999_is_drawn(tmp_path):
    """A common mark for no end: parts of days as nanoseconds end in the year 2262."""
    days = pd.Series(pd.date_range("2020-01-01 10:30", periods=60).strftime("%Y-%m-%d %H:%M:%S"))
    days[::3] = "9999-12-31 23:59:59"
    frame = pd.DataFrame({"until": days, "y": np.arange(60) / 10.0})
    model = TabularModel().fit(frame, "y")
    assert effects.effect_curves(model)[0].values[-1] == "9999-12-31"
    assert np.isfinite(model.predict(frame.assign(until=None))["prediction"]).all()


def test_columns_named_by_numbers_and_labels_of_several_types():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({0: rng.choice([f"w{i}" for i in range(40)], 120), 1: rng.normal(size=120)})
    frame[2] = [1, "a", 2.5] * 40
    model = TabularModel().fit(frame, 2)
    assert model.target.classes.tolist() == ["1", "2.5", "a"]
    assert len(model.predict(frame)) == len(effects.reasons(model, frame)) * 6 == 120
    with pytest.raises(ValueError, match="must be one of the columns 0, 1, 2; got '7'"):
        TabularModel().fit(frame, 7)
    with pytest.raises(ValueError, match="but lacks '0', '1'; got no columns"):
        model.predict(frame[[]])


def test_infinite_intervals_are_said():
    frame = pd.DataFrame({"x": np.arange(8.0), "y": np.arange(8.0) ** 2})
    model = TabularModel(task="regression").fit(frame, "y")
    sentence = "low and high are infinite: 8 rows left out are too few for intervals of level 0.9; "
    sentence += "levels up to 0.88 are finite"
    assert model.notes[-1] == f"{sentence}." and model.predict_with_surprises(frame)[1] == {sentence: 8}
    finite, surprises = model.predict_with_surprises(frame, level=0.88)
    assert np.isfinite(finite["low"]).all() and not surprises


def test_boosted_trees_of_many_classes_are_left_out_and_said():
    """500 classes took 140 seconds, 135 of them for trees."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=80), "y": [f"k{i % 40}" for i in range(80)]})
    model = TabularModel().fit(frame, "y", compare=True)
    assert set(model.scores["beside"]) == {"linear"}
    assert model.notes[-1].startswith("Boosted trees were not scored beside: with 40 classes")


def test_auroc_compares_rows_that_one_model_answered():
    # two models that order their own rows without a mistake; the second puts all of its answers lower
    p = torch.tensor([0.2, 0.3, 0.8, 0.9, 0.01, 0.02, 0.03, 0.04], dtype=torch.float64)
    y, fold = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    both = torch.stack((1 - p, p), 1)
    assert rank_scores(both, y, fold)["auroc"] == 1.0
    assert rank_scores(both, y)["auroc"] == 0.75
    apart = torch.arange(8)  # no fold has two classes: all rows are compared
    assert rank_scores(both, y, apart)["auroc"] == 0.75
