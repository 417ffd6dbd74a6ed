"""The front door for Python: scikit-learn estimators on raw frames, and models of the last version."""

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import mercer
from mercer.tabular import TabularClassifier, TabularModel, TabularRegressor
from mercer.tabular.training import Sizes

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "kernel and ridge are chosen by leave-one-out, which leaves out "
    "one of two equal rows, but the whole of a row of weight 2; scales and random subsets count rows"
}


def table(n=150, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"size": rng.normal(size=n), "shape": rng.choice(["round", "flat"], n)})
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    frame.loc[3, "size"] = np.nan
    score = frame["size"].fillna(0) + (frame["shape"] == "round")
    return frame, np.where(score > 0.5, "big", "small"), 10 * score.to_numpy() + rng.normal(size=n)


def test_a_classifier_on_raw_columns():
    frame, labels, _ = table()
    model = TabularClassifier().fit(frame, labels)
    assert model.classes_.tolist() == ["big", "small"] and model.score(frame, labels) > 0.9
    p = model.predict_proba(frame)
    assert p.shape == (150, 2) and np.allclose(p.sum(1), 1)
    assert (model.predict(frame) == model.classes_[p.argmax(1)]).all()
    assert set(model.explain().index) == {"size", "shape", "day"}
    new, truth, _ = table(seed=1)
    assert model.score(new, truth) > 0.85


def test_a_regressor_with_intervals():
    frame, _, y = table()
    model = TabularRegressor().fit(frame, y)
    new, _, truth = table(300, seed=1)
    assert model.score(new, truth) > 0.9
    ends = model.predict_interval(new, 0.9)
    assert ends.shape == (300, 2) and (ends[:, 0] <= model.predict(new)).all()
    assert 0.8 < ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() < 0.98


def test_a_signal_along_a_sum_of_columns_is_learned_in_any_order_of_rows():
    """A sine of one direction of ten columns is noise to machines that see the columns as they are."""
    rng = np.random.default_rng(0)
    x, direction = rng.normal(size=(3000, 10)), rng.normal(size=10)
    y = np.sin(3 * x @ direction / np.linalg.norm(direction)) > 0
    model, backwards = (
        TabularClassifier(trees=False, random_state=0).fit(x[:2000][::step], y[:2000][::step]) for step in (1, -1)
    )
    assert model.score(x[2000:], y[2000:]) > 0.9
    np.testing.assert_array_equal(model.predict_proba(x[2000:]), backwards.predict_proba(x[2000:]))
    assert "sums of columns that matter count more" in model.model_.learner.parts()[0]["what"]
    assert abs(model.model_.scores["accuracy"] - model.score(x[2000:], y[2000:])) < 0.02


def test_estimators_say_which_rows_are_unfamiliar():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.normal(size=120), "b": rng.normal(size=120)})
    strange = pd.DataFrame({"a": [0.0, 90.0], "b": [0.0, -90.0]})
    for model, y in ((TabularClassifier(), x["a"] > 0), (TabularRegressor(), x["a"] + x["b"])):
        known, far = model.fit(x, y).unfamiliar(strange)
        assert known < 0.5 < far <= 1


def test_it_is_a_scikit_learn_estimator(tmp_path):
    frame, labels, y = table(90)
    known = {"random_state": 3, "class_weight": None, "trees": "auto", "time": None, "groups": None}
    assert clone(TabularClassifier(random_state=3)).get_params() == known
    assert cross_val_score(TabularClassifier(), frame, labels, cv=3).mean() > 0.8
    pipeline = make_pipeline(FunctionTransformer(lambda f: f.drop(columns="day")), TabularRegressor()).fit(frame, y)
    assert pipeline.score(frame, y) > 0.8
    model = TabularClassifier().fit(frame, labels)
    mercer.save(model, tmp_path / "m")
    np.testing.assert_array_equal(mercer.load(tmp_path / "m").predict_proba(frame), model.predict_proba(frame))


def test_scores_of_later_rows_and_of_whole_groups(tmp_path):
    """An estimator has the scores and answers of the model; a column of an array keeps its place."""
    frame, labels, y = table()
    for estimator, target in ((TabularClassifier, labels), (TabularRegressor, y)):
        later = clone(estimator(time="day", trees=False)).fit(frame, target)
        assert later.time == "day" and later.model_.scores["of"].startswith("the last")
        grouped = clone(estimator(groups="shape", trees=False)).fit(frame, target)
        assert grouped.model_.scores["of"] == "whole groups of shape, by models fitted without them"
        assert list(grouped.columns_.index) == list(frame.columns)
        mercer.save(grouped, tmp_path / estimator.__name__)
        again = mercer.load(tmp_path / estimator.__name__)
        assert again.groups == "shape" and (again.predict(frame) == grouped.predict(frame)).all()
    model = TabularModel(groups="shape", trees=False, task="regression").fit(frame.assign(y=y), "y")
    assert model.scores == grouped.model_.scores
    x = np.column_stack((np.arange(150) % 3, frame["size"].fillna(0)))
    by_place = TabularRegressor(groups="x0", trees=False).fit(x, y)
    assert np.corrcoef(by_place.predict(x), y)[0, 1] > 0.8


def test_arrays_and_polars_are_taken():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    model = TabularClassifier().fit(x, (x[:, 0] > 0).astype(int))
    assert model.classes_.tolist() == [0, 1] and model.score(x, (x[:, 0] > 0).astype(int)) > 0.9
    polars = pytest.importorskip("polars")
    frame, labels, _ = table(60)
    plain = frame.drop(columns="day").fillna(0.0)
    a = TabularClassifier().fit(plain, labels).predict_proba(plain)
    b = TabularClassifier().fit(polars.DataFrame(plain.to_dict("list")), labels)
    np.testing.assert_allclose(b.predict_proba(polars.DataFrame(plain.to_dict("list"))), a)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, y: (x[:, 0], y), "Reshape your data"),
        (lambda x, y: (x + 1j, y), "Complex data not supported"),
        (lambda x, y: ((x + 1j).astype(object), y), "Complex data not supported"),
        (lambda x, y: (pd.DataFrame(x + 1j), y), "Complex data not supported"),
        (lambda x, y: (x[:0], y[:0]), r"0 sample\(s\)"),
        (lambda x, y: (pd.DataFrame(x[:0]), y[:0]), r"0 sample\(s\)"),
        (lambda x, y: (x, np.array(["a", 1] * 10, dtype=object)), "Unknown label type"),
        (lambda x, y: (x, y[:-1]), "y must have a value for each of the 20 rows"),
        (lambda x, y: (x, np.zeros(20)), "at least two classes"),
        (lambda x, y: (x, np.array([None] * 20)), "y must have a value in every row"),
    ],
    ids=[
        *("one-dimension", "complex", "complex-objects", "complex-frame", "no-rows", "no-rows-frame", "mixed-labels"),
        *("short", "one-class", "missing"),
    ],
)
def test_faults_are_sentences(change, sentence):
    x = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match=sentence):
        TabularClassifier().fit(*change(x, (x[:, 0] > 0).astype(float)))


@pytest.mark.parametrize("method", ["predict", "predict_proba", "explain"])
def test_before_fit_the_error_is_scikit_learns(method):
    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(NotFittedError, match="must be fitted first"):
        getattr(TabularClassifier(), method)(*[x] * (method != "explain"))
    with pytest.raises(NotFittedError, match="fit must come first"):
        TabularModel().predict(pd.DataFrame(x))


@pytest.mark.parametrize("width", [1, 3])
def test_arrays_with_other_widths_are_refused(width):
    x = np.random.default_rng(0).normal(size=(30, 3))
    model = TabularRegressor().fit(x[:, :2], x[:, 0])
    need = f"X has {width} features, but TabularRegressor is expecting 2 features as input"
    with pytest.raises(ValueError, match=need):
        model.predict(x[:, :width])
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        model.predict(x[:0, :2])


@pytest.mark.parametrize("names", [["a", "b", "c"], [0, 1, 2]], ids=["text", "numbers"])
def test_columns_of_a_frame_go_by_name(names):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 3)), columns=names)
    model = TabularRegressor().fit(frame, 5 * frame[names[0]])
    expected = model.predict(frame)
    np.testing.assert_array_equal(model.predict(frame[names[::-1]]), expected)
    for changed in (frame.rename(columns={names[0]: type(names[0])(7)}), frame[names[:2]], frame.assign(more=1)):
        with pytest.raises((ValueError, TypeError), match=r"names|columns of the fit"):
            model.predict(changed)
    if names[0] == "a":
        assert model.feature_names_in_.tolist() == names
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            np.testing.assert_array_equal(model.predict(frame.to_numpy()), expected)
    assert not hasattr(TabularRegressor().fit(frame.to_numpy(), frame[names[0]]), "feature_names_in_")


def test_a_seed_may_be_drawn(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 2))
    labels = x[:, 0] > 0
    drawn = [TabularClassifier(random_state=None).fit(x, labels).model_.random_state for _ in range(2)]
    assert drawn[0] != drawn[1]
    first, second = (TabularClassifier(random_state=np.random.RandomState(3)).fit(x, labels) for _ in range(2))
    assert first.model_.random_state == second.model_.random_state
    model = TabularModel(random_state=None).fit(pd.DataFrame(x, columns=["a", "b"]), "b")
    mercer.save(model, tmp_path / "m")
    assert mercer.load(tmp_path / "m").random_state == model.random_state


def test_a_row_of_weight_0_is_no_row():
    frame, labels, y = table(80)
    weight = np.where(np.arange(80) % 4 == 0, 0.0, 1.0 + np.arange(80) % 3)
    used = weight > 0
    for model, target in ((TabularClassifier(), labels), (TabularRegressor(), y)):
        whole = clone(model).fit(frame, target, sample_weight=weight).predict(frame)
        np.testing.assert_array_equal(
            clone(model).fit(frame[used], target[used], sample_weight=pd.Series(weight[used])).predict(frame), whole
        )
    assert set(TabularClassifier().fit(frame, labels, np.where(labels == "big", 1, 2)).classes_) == {"big", "small"}
    with pytest.raises(ValueError, match="two classes"):
        TabularClassifier().fit(frame, labels, sample_weight=labels == "big")
    frame["y"] = np.where(used, y, np.nan)
    model = TabularModel().fit(frame, "y", sample_weight=1 + np.arange(80))
    assert model.rows == 60
    frame["y"] = y
    assert "20 rows of weight 0 left out." in TabularModel().fit(frame, "y", sample_weight=weight).notes


def test_weights_move_probabilities_and_intervals():
    """Where x says nothing, the weighted share of a class and the weighted quantile of errors are the answer."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    p = TabularClassifier().fit(x, labels, sample_weight=1 + 8 * labels).predict_proba(x)[:, 1]
    assert 0.8 < np.median(p) < 0.97
    loud = rng.random(300) < 0.5
    y = 3 * x[:, 0] + rng.normal(size=300) * np.where(loud, 3.0, 0.1)
    widths = []
    for weight in (np.where(loud, 1e-3, 1.0), np.where(loud, 1.0, 1e-3)):
        model = TabularRegressor().fit(x, y, sample_weight=weight)
        widths.append(np.median(np.ptp(model.predict_interval(x), axis=1)))
    assert 5 * widths[0] < widths[1]
    errors = []
    for weight in (np.where(loud, 1e-3, 1.0), None):
        predicted = TabularRegressor().fit(x, y, sample_weight=weight).predict(x)
        errors.append(np.abs(predicted - 3 * x[:, 0]).mean())
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (np.ones(29), r"must have shape \(30,\)"),
        (-np.ones(30), "must be 0 or more"),
        (np.full(30, np.nan), "must be finite"),
        (np.zeros(30), "above zero"),
        (["a"] * 30, "must hold numbers"),
    ],
    ids=["short", "negative", "nan", "zero", "words"],
)
def test_weights_that_are_none(weight, sentence):
    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(ValueError, match=sentence):
        TabularRegressor().fit(x, x[:, 0], sample_weight=weight)
    with pytest.raises(ValueError, match=sentence):
        TabularModel().fit(pd.DataFrame(x, columns=["a", "b"]), "b", weight)


def test_weights_are_routed():
    x = np.random.default_rng(0).normal(size=(40, 2))
    weight = 1.0 + np.arange(40) % 2
    with config_context(enable_metadata_routing=True):
        model = make_pipeline(FunctionTransformer(), TabularRegressor().set_fit_request(sample_weight=True))
        routed = model.fit(x, x[:, 0], sample_weight=weight).predict(x)
    np.testing.assert_array_equal(routed, TabularRegressor().fit(x, x[:, 0], sample_weight=weight).predict(x))


def test_weights_of_long_tables():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.uniform(0, 6, 400)})
    frame["y"] = np.sin(frame["x"]) + (np.arange(400) % 2)
    weight = np.where(np.arange(400) % 2, 9.0, 1.0)
    model = TabularModel().fit(frame, "y", weight, sizes=Sizes(exact=100, leaf=100, left_out=80))
    assert np.abs(model.predict(frame)["prediction"] - np.sin(frame["x"]) - 0.9).mean() < 0.1


@parametrize_with_checks(
    [TabularClassifier(), TabularRegressor()], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)
