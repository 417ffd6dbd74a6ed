"""The front door for Python: scikit-learn estimators on raw frames, and models of the last version."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import mercer
from mercer.tabular import TabularClassifier, TabularRegressor


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


def test_it_is_a_scikit_learn_estimator(tmp_path):
    frame, labels, y = table(90)
    assert clone(TabularClassifier(random_state=3)).get_params() == {"random_state": 3}
    assert cross_val_score(TabularClassifier(), frame, labels, cv=3).mean() > 0.8
    pipeline = make_pipeline(FunctionTransformer(lambda f: f.drop(columns="day")), TabularRegressor()).fit(frame, y)
    assert pipeline.score(frame, y) > 0.8
    model = TabularClassifier().fit(frame, labels)
    mercer.save(model, tmp_path / "m")
    np.testing.assert_array_equal(mercer.load(tmp_path / "m").predict_proba(frame), model.predict_proba(frame))


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
        (lambda x, y: (x[:, 0], y), "X must have shape"),
        (lambda x, y: (x, y[:-1]), "y must have a value for each of the 20 rows"),
        (lambda x, y: (x, np.zeros(20)), "at least two classes"),
        (lambda x, y: (x, np.array([None] * 20)), "y must have a value in every row"),
    ],
    ids=["one-dimension", "short", "one-class", "missing"],
)
def test_faults_are_sentences(change, sentence):
    x = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match=sentence):
        TabularClassifier().fit(*change(x, (x[:, 0] > 0).astype(float)))


def test_before_fit_and_with_too_few_columns():
    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(ValueError, match="must be fitted first"):
        TabularRegressor().predict(x)
    with pytest.raises(ValueError, match="X has 1 features, but TabularRegressor is expecting 2 features"):
        TabularRegressor().fit(x, x[:, 0]).predict(x[:, :1])
