"""What a fitted model learned: weights of columns, the page, the command."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import mercer
from mercer.cli.commands import main
from mercer.machines import StackedRidge
from mercer.tabular import TabularModel
from mercer.tabular.columns import Numbers
from mercer.tabular.columns.column import Column
from mercer.tabular.effects import correlated, effect_curves, reasons
from mercer.tabular.importance import column_weights, permutation_losses
from mercer.tabular.pages import model_page
from mercer.tabular.pages.diagnosis_page import ColumnLine, column_lines
from mercer.tabular.pages.model_page import confusions, headline, machine_lines
from tests.tabular.cases import HOSTILE, check_page, measured


def table(n=80, seed=0):
    """``kind`` follows ``x`` and nothing else."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"noise": draw.normal(size=n), "x": draw.normal(size=n), "c": draw.choice(list("abc"), n)})
    return frame.assign(kind=np.where(frame["x"] + 0.3 * draw.normal(size=n) > 0, "up", "down"), same=1)


@pytest.fixture(scope="module")
def model():
    return TabularModel().fit(table(), "kind")


@pytest.fixture(scope="module")
def regression():
    frame = table()
    return TabularModel().fit(frame.drop(columns="kind").assign(y=3 * frame["x"] + 100.5), "y")


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "model"
    mercer.save(model, place)
    return place


def test_weights_are_shares_and_find_the_column_that_matters(model, regression):
    for fitted in (model, regression):
        columns = column_weights(fitted)
        assert sum(columns.values()) == pytest.approx(1)
        assert next(iter(columns)) == "x" and "same" not in columns


@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_weights_agree_with_finite_differences_in_any_unit(unit):
    """Of a smooth function, Var(x_j) times the mean squared slope; of words, the squared change from level to level."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": draw.normal(size=300), "b": unit * draw.normal(size=300), "w": draw.choice(["p", "q"], 300)}
    )
    frame["y"] = 2 * frame["a"] + frame["b"] / unit + 1.0 * (frame["w"] == "p") + 0.01 * draw.normal(size=300)
    model = TabularModel().fit(frame, "y")

    def answer(changed):
        return model.predict(changed)["prediction"].to_numpy()

    expected = {}
    for name, step in (("a", 0.05), ("b", 0.05 * unit)):
        slope = (answer(frame.assign(**{name: frame[name] + step})) - answer(frame)) / step
        expected[name] = frame[name].var() * np.square(slope).mean()
    share = (frame["w"] == "p").mean()
    jump = answer(frame.assign(w="p")) - answer(frame.assign(w="q"))
    expected["w"] = share * (1 - share) * np.square(jump).mean()
    found = column_weights(model)
    total = sum(expected.values())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value / total, abs=0.06), name


def test_rows_without_themselves_equal_fits_without_them():
    """The same machines and shares, refitted with every row but one."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=g, dtype=torch.float64)
    y = x[:, :1].sin() + 0.1 * torch.randn(30, 1, generator=g, dtype=torch.float64)
    stack = StackedRidge(random_state=0).fit(x, y)
    rows, changed = torch.tensor([3, 17]), torch.randn(2, 2, generator=g, dtype=torch.float64)
    found = stack.without(rows)(changed)
    for place, row in enumerate(rows.tolist()):
        stay = torch.arange(30) != row
        total = stack.mean_.clone()
        for share, machine in zip(stack.shares_.tolist(), stack.machines_, strict=True):
            view = stack.views_[machine.view]
            system = machine.kernel(view(x[stay])) + machine.penalty * torch.eye(29, dtype=x.dtype)
            weights = torch.linalg.solve(system, y[stay] - stack.mean_)
            total = total + share * (machine.kernel(view(changed[place : place + 1]), view(x[stay])) @ weights)[0]
        torch.testing.assert_close(found[place], total, rtol=1e-6, atol=1e-8)


def test_effect_curves_follow_the_function(model, regression):
    line = next(effect for effect in effect_curves(regression) if effect.column == "x")
    slope = np.diff(line.mean) / np.diff(line.values)
    assert line.of == "" and np.allclose(slope, 3, atol=0.3)
    assert all(low <= mean <= high for low, mean, high in zip(line.low, line.mean, line.high, strict=True))
    first = effect_curves(model)[0]
    assert first.column == "x" and first.of == "up" and first.mean[-1] - first.mean[0] > 0.5
    words = next(effect for effect in effect_curves(model) if effect.column == "c")
    assert words.values == ["a", "b", "c"]


def test_every_kind_of_column_has_a_curve():
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=120).astype(str), "flag": draw.random(120) < 0.5})
    frame["town"] = [f"t{i}" for i in draw.integers(0, 40, 120)]
    frame["y"] = np.arange(120) * 0.1 + 3 * frame["flag"] + draw.normal(size=120)
    effects = effect_curves(TabularModel().fit(frame, "y"))
    found = {effect.column: effect for effect in effects if effect.part in ("", "trend")}
    assert found["day"].values[0].startswith("2020-01") and found["day"].mean[-1] > found["day"].mean[0] + 5
    assert found["flag"].mean[1] > found["flag"].mean[0] + 1
    assert len(found["town"].values) == 8


def test_reasons_add_up_and_name_the_column(model, regression):
    new = table(5, seed=4).assign(x=[-2.0, -1.5, -1.0, 1.0, 2.0])
    answers = model.predict(new)
    for why, (_, answer) in zip(reasons(model, new), answers.iterrows(), strict=True):
        assert next(iter(why.parts)) == "x" and why.answer == answer["prediction"] == why.of
        assert why.value == pytest.approx(answer[f"p_{why.of}"])
        assert why.average + sum(why.parts.values()) == pytest.approx(why.value)
    linear = reasons(regression, new)
    for why, x in zip(linear, new["x"], strict=True):  # of 3 x + 100.5 the part of x is 3 (x - mean)
        assert why.parts["x"] == pytest.approx(why.value - why.average, abs=0.3)
        assert why.value == pytest.approx(3 * x + 100.5, abs=0.5)


def test_columns_that_say_the_same_are_named_together(model):
    draw = np.random.default_rng(0)
    a = draw.normal(size=100)
    frame = pd.DataFrame(
        {"a": a, "b": draw.normal(size=100), "c": a + 0.1 * draw.normal(size=100), "d": -a, "y": a + 0.5}
    )
    fitted = TabularModel().fit(frame, "y")
    assert [sorted(group) for group in correlated(fitted)] == [["a", "c", "d"]]
    assert fitted.explain().loc["a", "correlated"] == "c, d" and correlated(model) == []


def test_the_command_gives_reasons_for_rows(folder, tmp_path):
    table(3, seed=5).drop(columns="kind").to_csv(tmp_path / "rows.csv", index=False)
    done = run("explain", folder, tmp_path / "rows.csv")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("row 0: ") and lines[1].split()[0] == "x" and "points" in lines[1]
    assert max(map(len, lines)) <= 79
    document = json.loads(run("explain", folder, tmp_path / "rows.csv", "--json").stdout)
    assert len(document) == 3 and set(document[0]["parts"]) == {"x", "noise", "c"}
    page = tmp_path / "why.html"
    assert run("explain", folder, tmp_path / "rows.csv", "-o", page).stdout == done.stdout
    assert "Why these rows get their answers" in page.read_text() and "row 2: " in page.read_text()


def test_levels_tried_as_columns_of_their_own_count_for_their_feature():
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"a": draw.integers(0, 3, 120), "b": draw.integers(0, 3, 120)})
    model = TabularModel().fit(frame.assign(y=np.where(frame["a"] == 1, "one", "other")), "y")
    assert next(iter(column_weights(model))) == "a"


def test_shuffling_costs_where_the_column_is_needed(model, regression):
    losses = permutation_losses(model, table(seed=1))
    assert next(iter(losses)) == "x" and losses["x"] > 0.2 and abs(losses["noise"]) < losses["x"]
    frame = table(seed=1)
    assert permutation_losses(regression, frame.assign(y=3 * frame["x"] + 100.5))["x"] > 1
    assert permutation_losses(model, table(seed=1)) == losses


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.drop(columns="kind"), "the data must have the target column 'kind'"),
        (lambda f: f.assign(kind="sideways"), "at least two rows must have a known value in 'kind'; got 0"),
        (lambda f: f.drop(columns="x"), "but lacks 'x'"),
    ],
)
def test_data_that_does_not_fit_is_refused(model, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        permutation_losses(model, change(table()))


def test_the_page_of_a_classifier(model, tmp_path):
    losses = {"x": 0.3, "noise": 0.0}
    text = model_page(model, tmp_path / "p.html", folder="model", losses=losses).read_text(encoding="utf-8")
    reader = check_page(text)
    assert headline(model) in reader.text
    for words in ("dropped: every value is", "Its most frequent mistakes", "unfamiliar", "mercer predict model"):
        assert words in reader.text
    labels = [attributes["aria-label"] for tag, attributes in reader.tags if tag == "svg"]
    for start in ("Confusion matrix", "Reliability diagram", "Weights of the columns: x", "What shuffling"):
        assert any(label.startswith(start) for label in labels)
    assert "could not be drawn" not in reader.text


@pytest.mark.parametrize("width", [390, 1440])
def test_a_browser_shows_the_page_without_an_error_or_a_sideways_scroll(model, tmp_path, width):
    seen = measured(model_page(model, tmp_path / "page.html"), tmp_path, width)
    assert seen["width"] == width and seen["scroll"] <= width and len(seen["figures"]) == 6
    assert all(0 <= left < right <= width for left, right in seen["figures"])


def test_the_page_of_a_regression(regression, tmp_path):
    reader = check_page(model_page(regression, tmp_path / "p.html").read_text(encoding="utf-8"))
    assert "of its variation" in reader.text and "Confusion" not in reader.text and "Penalty" in reader.text
    assert any(
        attributes["aria-label"].startswith("Predicted value") for tag, attributes in reader.tags if tag == "svg"
    )


def test_confusions_are_the_largest_off_the_diagonal(model):
    counts = np.array(model.scores["confusion"])
    found = confusions(model, 9)
    assert [count for _, _, count, _ in found] == sorted((counts - np.diag(np.diag(counts)))[counts > 0], reverse=True)[
        : len(found)
    ]
    assert all(own != other and of == counts.sum(1)[["down", "up"].index(own)] for own, other, _, of in found)


def test_machines_are_said_in_words(model):
    lines = machine_lines(model)
    assert len(lines) == len(model.learner.machine.machines_)
    assert sum(line["values"]["share"] for line in lines) == pytest.approx(1)
    assert all(line["what"].endswith(".") for line in lines)


def test_columns_that_are_treated_alike_share_a_line():
    lines = column_lines(
        [
            *(Column(f"p{i}", "numeric", "a number", Numbers([f"p{i}"], 0.0, flagged=False)) for i in range(12)),
            Column("c", "constant", "gone"),
        ]
    )
    assert lines == [
        ColumnLine("p0, p1, p2, p3, p4, p5, p6, p7 and 4 more", "numeric", "each a number"),
        ColumnLine("c", "constant", "gone"),
    ]


def test_hostile_names_are_text(tmp_path):
    frame = table(60).rename(columns={"x": HOSTILE, "noise": "_$a$"})
    frame["c"] = frame["c"].replace({"a": HOSTILE})
    frame["kind"] = frame["kind"].replace({"up": HOSTILE, "down": "]]>$x_{"})
    model = TabularModel().fit(frame.rename(columns={"kind": HOSTILE + "!"}), HOSTILE + "!")
    text = model_page(model, tmp_path / "p.html", folder=HOSTILE).read_text(encoding="utf-8")
    check_page(text)
    assert "&lt;script&gt;" in text and "could not be drawn" not in text


def test_a_model_too_small_to_be_scored_has_a_page(tmp_path):
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": ["a", "b", "b"]})
    model = TabularModel().fit(frame, "y")
    assert model.scores["folds"] == 0
    reader = check_page(model_page(model, tmp_path / "p.html").read_text(encoding="utf-8"))
    assert "too few" in headline(model) and "No scores" in reader.text


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_command_writes_the_page_into_the_model(folder):
    done = run("explain", folder)
    assert done.exit_code == 0, done.output
    assert (folder / "explain.html").exists() and done.stdout.splitlines()[-1] == f"Page: {folder / 'explain.html'}"
    assert re.search(r"\n  x +\d+\.\d%  #{30}\n", done.stdout) and "How it is built" in done.stdout
    assert isinstance(mercer.load(folder), TabularModel)  # the page does not disturb the folder


def test_json_with_data(folder, tmp_path):
    table(seed=2).to_csv(tmp_path / "new.csv", index=False)
    done = run("explain", folder, "--data", tmp_path / "new.csv", "-o", tmp_path / "p.html", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["page"] == str(tmp_path / "p.html") and document["target"] == "kind"
    assert set(document["shuffling_costs"]) == set(document["weights"]) == {"x", "noise", "c"}
    assert document["machines"][0]["share"] > 0 and document["scores"]["accuracy"] > 0.7
    assert set(document["mistakes"][0]) == {"true", "predicted", "rows", "of"}


def test_exit_codes(folder, tmp_path):
    assert run("explain", tmp_path / "nothing").exit_code == 2
    (tmp_path / "empty").mkdir()
    broken = run("explain", tmp_path / "empty")
    assert broken.exit_code == 1 and "Traceback" not in broken.output
    nowhere = run("explain", folder, "-o", tmp_path / "no" / "p.html")
    assert nowhere.exit_code == 1 and "the page's folder must be there" in nowhere.stderr
    mercer.save(mercer.kernels.RBF(), tmp_path / "kernel")
    other = run("explain", tmp_path / "kernel")
    assert other.exit_code == 1 and "must hold a model of `mercer fit`" in other.stderr


def test_the_page_shows_other_models_beside_ours(tmp_path):
    x = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"x": x, "y": 100 * x**2})
    model = TabularModel().fit(frame, "y", compare=True)
    page = model_page(model, tmp_path / "page.html").read_text()
    assert "Other models on the same rows" in page and "HistGradientBoosting" in page
    assert f"{100 * model.scores['beside']['linear']['r2']:.1f}%" in page
