"""What each kind of column becomes, what is said of it, and what happens to values that were not there at fit."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch

import mercer
from mercer.tabular.columns.preparation import Preparation
from mercer.tabular.columns.target import Target

N = 200


def rng():
    return np.random.default_rng(0)


def one(values, name="c", n=None):
    """The column and its features, of a table with nothing else but a number."""
    frame = pd.DataFrame({name: values})
    frame["z"] = rng().normal(size=len(frame))
    preparation = Preparation().fit(frame)
    x = preparation.transform(frame)
    assert x.dtype == torch.float64 and torch.isfinite(x).all()
    assert x.shape == (len(frame), len(preparation.feature_names))
    return preparation.columns[0], x[:, :-1], preparation


def test_numbers_stay_as_they_are():
    values = rng().normal(size=N)
    column, x, _ = one(values)
    assert (column.kind, column.how, column.encoder.features) == ("numeric", "a number", ["c"])
    np.testing.assert_array_equal(x[:, 0], values)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "Int64", "Float64"])
def test_numbers_of_any_type(dtype):
    column, x, _ = one(pd.Series(np.arange(N) % 50, dtype=dtype))
    assert column.kind == "numeric"
    np.testing.assert_array_equal(x[:, 0], np.arange(N) % 50)


def test_missing_numbers_become_the_median_and_a_flag():
    values = np.arange(N, dtype=float) ** 2
    values[:20] = np.nan
    column, x, _ = one(values)
    median = float(np.median(values[20:]))
    assert column.how == f"a number; where missing (20 rows) the median {median:.6g}, with a column that says so"
    assert column.encoder.features == ["c", "c is missing"]
    assert x[:20].tolist() == [[median, 1.0]] * 20 and not x[20:, 1].any()
    assert one(np.where(np.arange(N) == 3, np.nan, values + 1))[0].encoder.features == ["c", "c is missing"]
    few = one(np.where(np.arange(N) == 3, np.nan, np.arange(N) ** 2.0))[0]
    assert few.encoder.features == ["c"]


INFINITE = "c: values that are infinite or no numbers count as missing"


def test_numbers_as_text_with_marks():
    values = pd.Series([f" {i / 4}" for i in range(N)])
    values[:5] = ["?", "NA", "", "n.a.", "unknown"]
    column, x, preparation = one(values)
    assert column.kind == "numeric" and x[5:, 0].tolist() == [i / 4 for i in range(5, N)]
    assert preparation.notes == [
        "c: values that are infinite or no numbers count as missing (1 row, first 'unknown' in row 4)."
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("3,5", 3.5), ("1,234", 1234.0), ("1,234,567.5", 1234567.5), ("12%", 12.0), ("-1e3", -1000.0)],
)
def test_punctuated_numbers(written, meant):
    column, x, _ = one([written] * 5 + ["2"] * 5)
    assert column.kind == "numeric" and x[:, 0].tolist() == [meant] * 5 + [2.0] * 5


def test_infinite_values_count_as_missing_and_are_said():
    values = rng().normal(size=N)
    values[[1, 2]] = np.inf, -np.inf
    _, x, preparation = one(values)
    assert x[1, 0] == x[2, 0] == np.median(np.delete(values, [1, 2]))
    assert preparation.notes == [
        "c: values that are infinite or no numbers count as missing (2 rows, first 'inf' in row 1)."
    ]


def test_57_one_absurd_cell_is_missing_and_named():
    _, x, preparation = one([1e200, 1.0, 2.0, 4.0])
    assert x[0, 0] == 2.0 and "(1 row, first '1e+200' in row 0)" in preparation.notes[0]
    found = preparation.prepare(pd.DataFrame({"c": [1.0, -1e300], "z": 0.0}))
    assert dict(found.surprises) == {"c: values that are no numbers count as missing, first '-1e+300' in row 1": 1}
    assert found.unseen.tolist() == [False, True]
    with pytest.raises(ValueError, match=r"column 'c' must hold a finite number below 1e\+140; got 1e\+200"):
        one([1e200, 2e200, 3e200])


def test_59_denormal_numbers_are_zero():
    column, x, _ = one([1e-310, 2e-310, 1.0, 3.0])
    assert column.kind == "numeric" and x[:, 0].tolist() == [0.0, 0.0, 1.0, 3.0]
    preparation = Preparation().fit(pd.DataFrame({"c": [1e-310, 2e-310, 3e-310], "d": [1.0, 2.0, 4.0]}))
    assert preparation.columns[0].how == "dropped: every value is 0"


@pytest.mark.parametrize(
    ("values", "need"),
    [
        ([1.5e306, 2.0, 3.5], r"numbers below 1e\+140 for regression; got 1.5e\+306 in row 0"),
        ([1e-310, 2e-310, 3e-310], "must vary; got 0 in every row"),
        ([1e-200, 2e-200, 3.5e-200], "must vary by more than 1e-140"),
    ],
    ids=["huge", "denormal", "tiny"],
)
def test_targets_beyond_any_unit_are_refused(values, need):
    with pytest.raises(ValueError, match=need):
        Target.of(pd.Series(values, name="y"), task="regression")
    if max(values) > 1:
        with pytest.raises(ValueError, match=need):  # and are no classes
            Target.of(pd.Series(values, name="y"))


def test_categories_get_a_column_each_and_rare_ones_share_one():
    values = ["a"] * 90 + ["b"] * 60 + [None] * 10 + ["c"] * 37 + ["d", "e", "f"]
    column, x, _ = one(values)
    assert column.kind == "categorical"
    assert column.encoder.features == ["c is a", "c is b", "c is c", "c is another", "c is missing"]
    assert column.how == (
        "one column for each of 3 categories; 3 rare ones share one; missing (10 rows) is a category of its own"
    )
    assert x.sum(0).tolist() == [90, 60, 37, 3, 10] and (x.sum(1) == 1).all()


def test_two_categories_need_one_column():
    column, x, _ = one(["m", "w"] * 50)
    assert column.encoder.features == ["c is m"] and x[:, 0].tolist() == [1.0, 0.0] * 50


def test_no_more_than_thirty_categories():
    values = [f"w{i % 60}" for i in range(1200)]
    column, x, _ = one(values)
    assert x.shape[1] == 31 and "30 categories; 30 rare ones share one" in column.how


@pytest.mark.parametrize("values", [["yes", "no"], ["True", "False"], ["t", "F"], ["Y", "n"], [True, False]])
def test_truth_values(values):
    column, x, _ = one(values * 50)
    assert column.kind == "boolean" and x[:, 0].tolist() == [1.0, 0.0] * 50
    yes, no = values if isinstance(values[0], str) else ("true", "false")
    assert column.how == f"1 for {yes}, 0 for {no}" and column.encoder.words == [no, yes]


def test_missing_truth_values():
    _, x, _ = one(["yes", "no", "yes", None] * 10)
    assert x[:4].tolist() == [[1, 0], [0, 0], [1, 0], [2 / 3, 1]]


def days(pattern):
    return pd.date_range("2019-03-01", periods=N, freq="7D").strftime(pattern)


@pytest.mark.parametrize("pattern", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d %B %Y", "%Y-%m-%dT%H:%M:%S"])
def test_dates_are_taken_apart(pattern):
    column, x, _ = one(days(pattern))
    assert column.kind == "date" and column.how == "a date as days, year, season"
    expected = pd.date_range("2019-03-01", periods=N, freq="7D")
    assert x[:, 0].tolist() == [7.0 * i for i in range(N)]
    assert x[:, 1].tolist() == expected.year.tolist()
    np.testing.assert_allclose(x[:, 2], np.sin(2 * np.pi * expected.day_of_year / 365.2425))


def test_moments_have_weekdays_and_times():
    moments = pd.Series(pd.date_range("2024-03-05", periods=N, freq="7h", tz="Europe/Paris"))
    moments[3] = pd.NaT
    column, x, _ = one(moments)
    assert column.how.startswith("a date as days, season, weekday, time; where missing (1 row) the middle date")
    assert torch.isfinite(x).all()


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (lambda day: f"{day.year} Q{day.quarter}", {"days", "year", "season"}),
        (lambda day: f"Q{day.quarter}-{day.year}", {"days", "year", "season"}),
        (lambda day: "{}-W{:02}".format(*day.isocalendar()[:2]), {"days", "year", "season"}),
        (lambda day: day.strftime("%Y %b"), {"days", "year", "season"}),
        (lambda day: day.strftime("%B %Y"), {"days", "year", "season"}),
    ],
)
def test_quarters_weeks_and_months_are_dates_without_a_weekday(write, parts):
    first = pd.date_range("2001-01-01", periods=N, freq="QS")
    column, x, _ = one([write(day) for day in first])
    assert column.kind == "date" and {part.split()[0] for part in column.encoder.parts} == parts
    gaps = np.diff(x[:, 0])
    assert gaps.min() > 80 and gaps.max() < 100, "a quarter of a year apart"


def test_days_and_months_that_could_be_swapped_are_said():
    notes = one(["01/02/2020", "03/04/2021", "05/06/2022"])[2].notes
    assert notes == ["c: days and months could be swapped; read as %m/%d/%Y. Write dates as 2024-12-31 to be sure."]


@pytest.mark.parametrize(
    ("values", "kind", "how"),
    [
        ([7] * N, "constant", "dropped: every value is '7'"),
        (["a"] * N, "constant", "dropped: every value is 'a'"),
        ([None] * N, "constant", "dropped: every value is missing"),
        (["?", ""] * (N // 2), "constant", "dropped: every value is missing"),
        (range(1, N + 1), "identifier", "dropped: it numbers the rows"),
        ([f"K{i:04}" for i in range(N)], "identifier", f"dropped: it names the row ({N} different words in {N} rows)"),
        ([[1, 2]] * N, "nested", "dropped: its values are lists or records, not single values"),
    ],
)
def test_what_cannot_be_learned_from_is_dropped_and_said(values, kind, how):
    column, x, preparation = one(pd.Series(values))
    assert (column.kind, column.how, x.shape[1]) == (kind, how, 0) and column.dropped
    assert len(preparation.notes) == (kind == "nested")


def test_identifiers_by_name_and_by_row():
    scattered = rng().permutation(10**6)[:N]
    assert one(scattered, name="customer_id")[0].kind == "identifier"
    assert one(scattered, name="income")[0].kind == "numeric"
    sample = pd.Series(np.arange(N) * 3 + 1000, index=np.arange(N) * 3)
    assert Preparation().fit(pd.DataFrame({"c": sample, "z": sample % 17.0})).columns[0].kind == "identifier"


def test_numbers_that_count_the_rows_stay_where_nothing_else_is_left():
    counted = pd.Series(np.arange(1, N + 1))
    (alone,) = Preparation().fit(pd.DataFrame({"x": counted})).columns
    assert (alone.kind, alone.how) == ("numeric", "a number"), "the x of a curve"
    columns = Preparation().fit(pd.DataFrame({"x": counted, "same": 7, "name": [f"K{i:04}" for i in counted]})).columns
    assert [column.kind for column in columns] == ["numeric", "constant", "identifier"]


def test_a_value_that_is_there_or_not_is_a_flag():
    column, x, _ = one(["x", None] * 50)
    assert column.kind == "boolean" and x[:, 0].tolist() == [1.0, 0.0] * 50


def test_a_table_with_nothing_to_learn_from_is_refused():
    with pytest.raises(ValueError, match="some column must be left to learn from; got a dropped: every value is '1'"):
        Preparation().fit(pd.DataFrame({"a": [1, 1, 1]}))
    with pytest.raises(ValueError, match=r"at least one row; got \(0, 1\)"):
        Preparation().fit(pd.DataFrame({"a": []}))
    with pytest.raises(ValueError, match="each column must have its own name; got 'a' twice"):
        Preparation().fit(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="fit must come first"):
        Preparation().transform(pd.DataFrame({"a": [1]}))


@pytest.fixture
def mixed():
    frame = pd.DataFrame(
        {
            "size": rng().normal(size=N),
            "colour": rng().choice(["red", "green", "blue"], N),
            "old": rng().choice(["yes", "no"], N),
            "when": days("%Y-%m-%d"),
            "note": "same",
        }
    )
    return frame, Preparation().fit(frame)


def test_new_rows_do_not_depend_on_each_other_or_on_their_types(mixed):
    frame, preparation = mixed
    x = preparation.transform(frame)
    torch.testing.assert_close(preparation.transform(frame[10:11]), x[10:11], rtol=0, atol=0)
    as_text = frame.astype(str).assign(size=frame["size"].map(repr))
    torch.testing.assert_close(preparation.transform(as_text), x, rtol=0, atol=0)
    shuffled = frame[["when", "old", "size", "colour"]]  # the constant column is not missed
    torch.testing.assert_close(preparation.transform(shuffled), x, rtol=0, atol=0)


def test_the_users_table_is_left_alone(mixed):
    frame, preparation = mixed
    before = frame.copy(deep=True)
    preparation.transform(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_surprises_are_counted(mixed, caplog):
    frame, preparation = mixed
    strange = frame.astype(object)
    strange.loc[:2, "colour"] = "violet"
    strange.loc[5:6, "size"] = "tall"
    strange.loc[9, "when"] = "soon"
    found = preparation.prepare(strange)
    assert dict(found.surprises) == {
        "size: values that are no numbers count as missing, first 'tall' in row 5": 2,
        "colour: categories that no training row had": 3,
        "when: values that are no dates count as missing, first 'soon' in row 9": 1,
    }
    assert np.flatnonzero(found.unseen).tolist() == [0, 1, 2, 5, 6, 9]
    assert torch.isfinite(found.x).all()
    with caplog.at_level(logging.WARNING, "mercer"):
        preparation.transform(strange)
    assert "colour: categories that no training row had (3 rows)" in caplog.text


def test_missing_and_wrong_columns_are_refused(mixed):
    frame, preparation = mixed
    with pytest.raises(ValueError, match=r"but lacks 'colour'; got size, Color, .*\. Is it 'Color'\?"):
        preparation.transform(frame.rename(columns={"colour": "Color"}))
    with pytest.raises(ValueError, match=r"but lacks 'size', 'colour', 'old'; got when, note. Is it the right file"):
        preparation.transform(frame[["when", "note"]])
    with pytest.raises(ValueError, match="column 'size' must hold numbers; got 'tall'"):
        preparation.transform(frame.assign(size="tall"))
    with pytest.raises(ValueError, match="column 'when' must hold dates; got 'soon'"):
        preparation.transform(frame.assign(when="soon"))
    with pytest.raises(ValueError, match="column 'colour' must hold words; got lists or records"):
        preparation.transform(frame.assign(colour=[[1]] * N))
    assert preparation.extra_columns(frame.assign(more=1)) == ["more"]


def test_preparations_and_targets_are_saved(mixed, tmp_path):
    frame, preparation = mixed
    mercer.save(preparation, tmp_path / "p")
    loaded = mercer.load(tmp_path / "p")
    assert torch.equal(loaded.transform(frame), preparation.transform(frame))
    assert loaded.columns == preparation.columns
    for column in ("colour", "size"):
        target = Target.of(frame[column])
        mercer.save(target, tmp_path / column)
        again = mercer.load(tmp_path / column)
        assert torch.equal(again.encode(frame[column]), target.encode(frame[column]))


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["b", "a", " b", "a"], "classification", ["a", "b"]),
        ([True, False, True], "classification", ["False", "True"]),
        (["yes", "no", "yes"], "classification", ["no", "yes"]),
        ([3, 1, 1, 3, 3], "classification", [1, 3]),
        ([3.0, 1.0, None, 3.0, 1.0], "classification", [1, 3]),
        (["3", "1", "?", "1", "3"], "classification", [1, 3]),
        (pd.Series([10, 20, 10], dtype="category"), "classification", [10, 20]),
        ([0.5, 1.0, 1.0, 2.5], "regression", None),
        (list(range(30)), "regression", None),
    ],
)
def test_the_task_follows_from_the_target(values, task, classes):
    series = pd.Series(values, name="y")
    target = Target.of(series)
    assert (target.name, target.task) == ("y", task) and target.why.startswith(f"{task}: y holds ")
    assert classes is None or target.classes.tolist() == classes
    kept = series[target.known(series)]
    encoded = target.encode(kept)
    if task == "classification":
        assert encoded.dtype == torch.int64
        assert [str(c) for c in target.decode(encoded)] == [str(c).strip().removesuffix(".0") for c in kept]
    else:
        assert encoded.tolist() == kept.astype(float).tolist()


def test_bad_targets_are_refused():
    for values, sentence in [
        (["a"] * 5, "column 'y' must hold two classes; got only a. A classifier needs"),
        ([None, "?"], "column 'y' must hold classes or numbers; got no value at all"),
        (["2020-01-01", "2020-05-01"] * 2, "column 'y' must hold classes or numbers; got dates"),
        ([[1], [2]], "column 'y' must hold classes or numbers; got lists or records"),
        ([f"n{i}" for i in range(40)], "classes in column 'y' must repeat; got 40 different ones in 40 rows"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            Target.of(pd.Series(values, name="y"))
    with pytest.raises(ValueError, match="column 'y' must hold finite numbers for regression; got 'a'"):
        Target.of(pd.Series(["a", "b"], name="y"), task="regression")
    with pytest.raises(ValueError, match="column 'y' must vary; got 2 in every row"):
        Target.of(pd.Series([2.0, 2.0], name="y"), task="regression")
    with pytest.raises(ValueError, match="task must be one of 'auto', 'classification', 'regression'; got 'rank'"):
        Target.of(pd.Series([1, 2], name="y"), task="rank")
    with pytest.raises(ValueError, match="column 'y' must hold the classes a, b; got 'c'"):
        Target.of(pd.Series(["a", "b"], name="y")).encode(pd.Series(["a", "c"]))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("$1,234.50", 1234.5),
        ("-$1,234.50", -1234.5),
        ("(1,234.50)", -1234.5),
        ("1.148,28", 1148.28),
        ("1.148,28 €", 1148.28),
        ("1'148.28 CHF", 1148.28),
        ("1 148,28", 1148.28),
        ("12 %", 12.0),
        ("0,881", 0.881),
        ("1.234.567", 1234567.0),
    ],
)
def test_64_numbers_as_people_write_them(written, meant):
    """Values that one reading explains need no others."""
    column, x, preparation = one([written] * 5 + ["2"] * 5)
    assert column.kind == "numeric" and x[:, 0].tolist() == [meant] * 5 + [2.0] * 5
    assert preparation.notes == []


def test_64_the_meaning_of_a_comma_is_decided_at_fit_and_stored(tmp_path):
    mercer.save(Preparation().fit(pd.DataFrame({"c": ["1,125", "2,5", "1.500", "0,75"]})), tmp_path / "m")
    comma = mercer.load(tmp_path / "m")
    assert comma.text_columns == ["c"]
    assert comma.transform(pd.DataFrame({"c": ["1,125", "1.125", "3.5"]}))[:, 0].tolist() == [1.125, 1125.0, 3.5]
    assert comma.transform(pd.DataFrame({"c": [1.125, 2.0]}))[:, 0].tolist() == [1.125, 2.0]
    point = Preparation().fit(pd.DataFrame({"c": ["1,125", "2.5", "0.75"]}))
    found = point.prepare(pd.DataFrame({"c": ["1,125", "2,5"]}))
    assert found.x[:, 0].tolist() == [1125.0, 2.5]
    assert list(found.surprises) == ["c: decimal commas, where training had points; what is unclear is read as there"]
    typed = comma.prepare(pd.DataFrame({"c": [1.125, 2.25]}))
    assert "typed numbers are taken as they are" in next(iter(typed.surprises))


def test_64_what_cannot_be_decided_is_said_with_the_way_out():
    _, x, preparation = one(["1,125", "2,250", "3,500", "7"])
    assert x[:, 0].tolist() == [1125.0, 2250.0, 3500.0, 7.0]
    assert preparation.notes == [
        "c: marks could be decimal or between thousands; '1,125' is read as 1125. Write all decimals with a point, "
        "without marks between thousands, to be sure."
    ]
    _, x, preparation = one(["1.5", "2.5", "2,5", "1,125"])
    assert x[:, 0].tolist() == [1.5, 2.5, 2.5, 1125.0]
    assert "What is unclear is read with the point" in preparation.notes[0]


def test_64_times_with_am_and_pm_and_the_order_of_day_and_month():
    moments = pd.date_range("2023-01-01 03:00", periods=N, freq="29h")
    column, x, preparation = one(moments.strftime("%m/%d/%Y %I:%M %p"))
    assert column.kind == "date" and column.encoder.pattern == "%m/%d/%Y %I:%M %p" and not preparation.notes
    assert x[:, 0].tolist() == [0.125 + 29 * i / 24 for i in range(N)]
    values = ["01/02/2020"] * (N - 1) + ["13/02/2020"]  # one value settles it, though fewer than 1 % have a say
    assert one(values)[0].encoder.pattern == "%d/%m/%Y" and not one(values)[2].notes


def test_64_targets_with_a_decimal_comma():
    target = Target.of(pd.Series(["0,881", "0,125", "0,999", "1,125"], name="y"))
    assert target.task == "regression" and target.decimal == "," and target.text_columns == ["y"]
    assert target.encode(pd.Series(["0,881", "1,125"])).tolist() == [0.881, 1.125]
    unsure = Target.of(pd.Series(["1,125", "2,250", "3,500"], name="y"), task="regression")
    assert unsure.notes[0].startswith("y: marks could be decimal or between thousands; '1,125' is read as 1125.")


def test_66_one_stray_word_leaves_numbers_numbers():
    values = [str(v) for v in rng().normal(size=30).round(3)]
    values[4] = "n.v."
    column, _, preparation = one(values)
    assert column.kind == "numeric" and "(1 row, first 'n.v.' in row 4)" in preparation.notes[0]
    target = Target.of(pd.Series(values, name="y"))
    assert target.task == "regression" and target.notes == [
        "y: 1 row left out, where it is no number (first 'n.v.' in row 4)."
    ]
    assert target.known(pd.Series(values)).tolist() == [i != 4 for i in range(30)]
    assert Target.of(pd.Series(["1", "2", "none of these"] * 10, name="y")).task == "classification"
    with pytest.raises(ValueError, match=r"must hold finite numbers for regression; got 'n\.v\.'"):
        Target.of(pd.Series(values[:5], name="y"), task="regression")
