"""Files in parts: what is learned from them and predicted for them does not depend on the parts."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import r2_score

from mercer.tabular import TabularModel, read, streaming
from mercer.tabular.columns.preparation import Preparation
from mercer.tabular.streaming import fit_file, predict_file
from mercer.tabular.training import Sizes


def quiet(message):
    logging.getLogger("test").debug(message)


SMALL = Sizes(exact=100, leaf=60, left_out=40)


def write(path, n=700, task="classification", seed=0):
    rng = np.random.default_rng(seed)
    size, shape = rng.normal(size=n), rng.choice(["1", "2", "x"], n)
    score = size + (shape == "x") + 0.2 * rng.normal(size=n)
    frame = pd.DataFrame({"id": np.arange(n) + 1, "size": size.round(4), "shape": shape})
    frame["y"] = np.where(score > 0.3, "high", "low") if task == "classification" else score
    frame.loc[5:7, "y"] = None
    frame.loc[9, "size"] = None
    frame.to_csv(path, index=False)
    return frame


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_long_file_is_learned_from_whatever_its_parts(tmp_path, task):
    path = tmp_path / "t.csv"
    frame = write(path, task=task)
    models = [
        fit_file(TabularModel(), path, "y", progress=quiet, rows=rows, sample=200, sizes=SMALL) for rows in (37, 1000)
    ]
    a, b = (model.predict(frame) for model in models)
    assert models[0].rows == models[1].rows > 190 and models[0].scores["rows"] in (39, 40)
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert models[0].preparation.columns == models[1].preparation.columns
    assert models[0].preparation.columns[0].kind == "identifier", "numbers the rows, though only some were drawn"
    assert models[0].notes[0] == "Of 700 rows, 200 drawn at random were learned from."


def test_matrices_are_factored_on_the_device_that_is_named(tmp_path, monkeypatch):
    """No second device is at hand: what is looked for is that rows are sent to the one named, and come back."""
    path = tmp_path / "t.csv"
    frame = write(path)
    plain = fit_file(TabularModel(), path, "y", progress=quiet, sample=200, sizes=SMALL)
    sent, move = [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **k: (sent.append((*a, None)[0]), move(self, *a, **k))[1])
    model = fit_file(TabularModel(), path, "y", progress=quiet, sample=200, sizes=SMALL, device="cpu:0")
    assert "cpu:0" in sent, "the Gram matrices of the leaves"
    pd.testing.assert_frame_equal(model.predict(frame), plain.predict(frame))
    with pytest.raises(ValueError, match="TabularModel: device 'cuda:99' must be usable"):
        TabularModel().fit(frame, "y", device="cuda:99")


def test_a_short_file_is_learned_from_as_a_whole(tmp_path):
    path = tmp_path / "t.csv"
    write(path, 150)
    model = fit_file(TabularModel(), path, "y", progress=quiet)
    whole = TabularModel().fit(read(path), "y")
    pd.testing.assert_frame_equal(model.predict(read(path)), whole.predict(read(path)), check_exact=True)


def test_rows_are_drawn_evenly_whatever_the_parts():
    frame = pd.DataFrame({"a": np.arange(1000)})
    counts = np.zeros(1000)
    for seed in range(200):
        drawn, total = streaming._draw((frame[i : i + 90] for i in range(0, 1000, 90)), 100, seed)
        assert total == 1000 and drawn.index.is_monotonic_increasing and (drawn["a"] == drawn.index).all()
        counts[drawn.index] += 1
    assert counts.sum() == 200 * 100 and counts.max() < 45 and abs(counts[:500].mean() - 20) < 1
    one, _ = streaming._draw(iter([frame]), 100, 3)
    parts, _ = streaming._draw((frame[i : i + 7] for i in range(0, 1000, 7)), 100, 3)
    pd.testing.assert_frame_equal(one, parts)


def test_the_same_rows_are_drawn_from_a_file_in_another_order(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=900), "b": rng.choice(["x", "y", None], 900)})
    frame["c"] = [*range(450), *[None] * 450]  # blank in some parts of the file, whole numbers in others
    twice = pd.concat([frame, frame[:100]], ignore_index=True)  # rows alike, too
    drawn = []
    for rows, part in ((twice, 1000), (twice[::-1], 70), (twice.sample(frac=1, random_state=1), 130)):
        rows.to_csv(tmp_path / "t.csv", index=False)
        found, total = streaming._draw(pd.read_csv(tmp_path / "t.csv", chunksize=part), 150, 0)
        assert total == 1000 and len(found) == 150
        drawn.append(found.sort_values(["a", "b", "c"]).reset_index(drop=True))
    pd.testing.assert_frame_equal(drawn[0], drawn[1])
    pd.testing.assert_frame_equal(drawn[0], drawn[2])


def test_rows_alike_are_drawn_one_by_one():
    """Of two kinds of rows, half of each are drawn: not all of one."""
    frame = pd.DataFrame({"a": [0, 1] * 500})
    drawn, _ = streaming._draw((frame[i : i + 64] for i in range(0, 1000, 64)), 500, 0)
    assert 200 < (drawn["a"] == 0).sum() < 300


def test_no_more_than_a_part_and_a_sample_are_held(tmp_path, monkeypatch):
    """Bounded by construction: every frame that is prepared has at most the rows of a part or of the sample."""
    path = tmp_path / "t.csv"
    write(path)
    seen = []
    prepare = Preparation.prepare

    def noted(self, frame):
        seen.append(len(frame))
        return prepare(self, frame)

    monkeypatch.setattr(Preparation, "prepare", noted)
    model = fit_file(TabularModel(), path, "y", progress=quiet, rows=50, sample=200, sizes=SMALL)
    assert max(seen) <= 200
    seen.clear()
    assert predict_file(model, path, tmp_path / "out.csv", progress=quiet, rows=50).rows == 700
    assert max(seen) <= 50


def test_rows_are_drawn_by_numbers_that_no_column_holds():
    """A column that was made by the generator of the same seed once decided which rows were drawn."""
    n = 3000
    frame = pd.DataFrame({"a": np.random.default_rng(0).random(n)})
    drawn, _ = streaming._draw(iter([frame]), 300, 0)
    assert abs(drawn["a"].mean() - 0.5) < 0.06


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".parquet"])
def test_predictions_do_not_depend_on_the_parts_or_the_format(tmp_path, suffix):
    frame = write(tmp_path / "t.csv", 150)
    model = TabularModel().fit(read(tmp_path / "t.csv"), "y")
    path = tmp_path / f"new{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    outs = []
    for rows in (11, 500):
        answers = predict_file(model, path, tmp_path / f"{rows}.csv", progress=quiet, rows=rows)
        assert (answers.rows, answers.scored) == (150, 147) and sum(answers.classes.values()) == 150
        outs.append(pd.read_csv(tmp_path / f"{rows}.csv"))
    numbers = ["p_high", "p_low", "unfamiliar"]
    np.testing.assert_allclose(outs[0][numbers], outs[1][numbers], atol=1e-12)
    truth = frame["y"].notna().to_numpy()
    assert answers.score == pytest.approx((outs[1]["prediction"] == frame["y"])[truth].mean())


def test_a_regression_is_scored_where_the_truth_is_there(tmp_path):
    frame = write(tmp_path / "t.csv", 150, task="regression")
    model = TabularModel().fit(read(tmp_path / "t.csv"), "y")
    answers = predict_file(model, tmp_path / "t.csv", tmp_path / "o.csv", progress=quiet, rows=40)
    found, there = pd.read_csv(tmp_path / "o.csv")["prediction"], frame["y"].notna()
    assert answers.score == pytest.approx(r2_score(frame["y"][there], found[there])) and not answers.classes


def test_63_blank_cells_in_a_file_are_answered_as_in_memory_whatever_the_parts(tmp_path):
    """A long model keeps the rows that lend their values; the parts of the file do not matter."""
    path, rng = tmp_path / "t.csv", np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=400), "b": rng.normal(size=400)})
    frame["y"] = 5 * frame["a"] + 0.3 * rng.normal(size=400)
    frame.to_csv(path, index=False)
    model = fit_file(TabularModel(), path, "y", progress=quiet, sample=200, sizes=SMALL)
    new = frame.assign(a=frame["a"].where(frame.index % 4 > 0))
    new.to_csv(tmp_path / "new.csv", index=False)
    answers = predict_file(model, tmp_path / "new.csv", tmp_path / "p.csv", progress=quiet, rows=70)
    written, memory = pd.read_csv(tmp_path / "p.csv"), model.predict(new)
    np.testing.assert_allclose(written.to_numpy(), memory.to_numpy(), atol=1e-6)
    assert [(what[:8], rows) for what, rows in answers.surprises.items()] == [("a: blank", 100)]
    blank = memory[new["a"].isna()]
    assert frame["y"][new["a"].isna()].between(blank["low"], blank["high"]).mean() > 0.85
    assert (blank["unfamiliar"] >= 0.5).all()


def test_64_marks_and_dates_are_decided_over_all_parts_of_a_file(tmp_path):
    """1.125 is a thousand where another part has 2,5; 01/02 is in February where another part has the 13th."""
    path, rng = tmp_path / "t.csv", np.random.default_rng(0)
    size = np.concatenate((rng.integers(1000, 5000, 350), rng.uniform(1, 5, 50).round(2) * 1000 + 0.5))
    text = [f"{int(v) // 1000}.{int(v) % 1000:03d}" for v in size[:350]]
    text += [f"{v:.1f}".replace(".", ",") for v in size[350:]]
    days = [f"0{1 + i % 9}/0{1 + i % 7}/2021" for i in range(399)] + ["13/01/2021"]
    target = [f"{v / 10000:.3f}".replace(".", ",") for v in size[:399]] + ["n.v."]
    pd.DataFrame({"size": text, "day": days, "y": target}).to_csv(path, sep=";", index=False)
    model = fit_file(TabularModel(), path, "y", progress=quiet, rows=50, sample=200, sizes=SMALL)
    columns = {column.name: column.encoder for column in model.preparation.columns}
    assert columns["size"].decimal == model.target.decimal == "," and columns["day"].pattern == "%d/%m/%Y"
    assert model.rows in (199, 200) and model.target.task == "regression"
    answers = predict_file(model, path, tmp_path / "p.csv", progress=quiet, rows=70)
    assert answers.score > 0.99 and answers.scored == 399
    pd.DataFrame({"size": ["1.125", "4.250"], "day": "01/02/2021"}).to_csv(tmp_path / "new.csv", sep=";", index=False)
    predict_file(model, tmp_path / "new.csv", tmp_path / "p.csv", progress=quiet)
    assert (pd.read_csv(tmp_path / "p.csv")["prediction"] - [0.1125, 0.425]).abs().max() < 0.01
    whole = fit_file(TabularModel(), path, "y", progress=quiet, rows=50)
    assert whole.preparation.columns[0].encoder.decimal == "," and whole.rows == 399
    assert whole.notes == ["y: 1 row left out, where it is no number (first 'n.v.' in row 399)."]
