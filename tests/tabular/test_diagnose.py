"""The diagnosis of a table: its numbers, its verdict, its page, its command."""

import html
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from sklearn.datasets import load_wine

from mercer.cli.commands import main
from mercer.kernels import RBF, Laplacian, Linear
from mercer.spectral import analyze
from mercer.tabular import TabularModel, diagnose
from mercer.tabular.diagnosis.candidates import Candidate, Description, leave_folds_out, list_embedding_kernels
from mercer.tabular.diagnosis.problem import sample
from mercer.tabular.diagnosis.ranking import NOISE, SHUFFLES, analyze_gram, centre_columns
from mercer.tabular.pages import diagnosis_page
from mercer.tabular.training import order_by_content
from tests.tabular.cases import HOSTILE, check_page, measured


def waves(n=150, noise=0.1, seed=0):
    """Classes that bend with one column, a column that does not matter, words and gaps."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 2))
    label = np.sin(2.5 * x[:, 0]) + noise * draw.normal(size=n) > 0
    frame = pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "colour": draw.choice(["red", "blue"], n)})
    frame.loc[draw.random(n) < 0.05, "z"] = np.nan
    return frame.assign(kind=np.where(label, "up", "down"))


@pytest.fixture(scope="module")
def found():
    return diagnose(waves(), "kind", source="waves.csv")


def test_columns_are_centred_signs_or_standardised_numbers():
    two = centre_columns(torch.tensor([0, 1, 1, 1]))
    torch.testing.assert_close(two, torch.tensor([[-1.5], [0.5], [0.5], [0.5]]).double())
    three = centre_columns(torch.tensor([0, 1, 2]))
    assert three.shape == (3, 3) and three.sum(0).abs().max() < 1e-12
    numbers = centre_columns(torch.tensor([1.0, 2.0, 6.0]))
    assert abs(float(numbers.mean())) < 1e-12 and float(numbers.square().mean()) == pytest.approx(1)


def test_numbers_are_those_of_analyze(found):
    """One line of the table against spectral.analyze on a kernel made from the line's own call."""
    frame = waves()
    frame = frame.iloc[order_by_content(frame)]
    reading = next(r for r in found.readings if r.name == "Gaussian mid")
    gamma = float(re.search(r"gamma=([\d.e-]+)", reading.call)[1])
    stack = TabularModel().fit(frame, "kind").learner.machine
    gram = RBF(gamma)(stack.looks[0].view(stack.rows_))
    y = torch.from_numpy((frame["kind"] == "up").to_numpy().astype(np.int64))
    columns = centre_columns(y)
    h = gram + NOISE * torch.eye(len(gram), dtype=torch.float64)
    spectrum = analyze(h, torch.arange(len(h)), columns)
    exact = float((columns * torch.linalg.solve(h, columns)).sum())
    assert reading.complexity == pytest.approx(exact, rel=1e-3)
    assert reading.bracket[0] <= 1.001 * exact and exact <= 1.001 * reading.bracket[1] < np.inf
    assert reading.alignment == pytest.approx(spectrum.alignment, rel=1e-3)
    assert reading.effective_dimension == pytest.approx(spectrum.effective_dimension, rel=1e-3)
    curve = spectrum.convergence(0.5 * spectrum.largest_stable_lr, 100)
    assert reading.curve[:101] == pytest.approx((curve / curve[0]).square().tolist(), rel=1e-2)
    assert reading.steps == next((i for i, loss in enumerate(reading.curve) if loss <= 0.5), None)
    assert reading.ratio == pytest.approx(reading.complexity / reading.shuffled)


def test_the_bracket_is_finite_and_holds_the_value_even_where_equal_rows_differ():
    gram = torch.ones(6, 6, dtype=torch.float64)  # all rows alike
    columns = centre_columns(torch.tensor([0, 1, 0, 1, 1, 1]))
    spectrum = analyze_gram(gram, columns)
    exact = float(columns.square().sum()) / NOISE
    assert spectrum.complexity == pytest.approx(exact)
    low, high = spectrum.bracket
    assert low <= exact * (1 + 1e-9) and exact <= high * (1 + 1e-9) and np.isfinite(high)


@pytest.mark.parametrize("noise", [0.0, 9.0])
def test_folds_are_predicted_by_kernel_ridge_on_the_others(noise):
    """Where the labels are clear the strong penalty is spared, the orders' as well."""
    x = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    columns = centre_columns(x[:, 0] + noise * torch.randn(40, generator=torch.Generator().manual_seed(2)))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    kernel, part = RBF(0.1), torch.arange(0, 40, 2)
    penalties = [0.01, 1.0] if noise else [0.01]
    other = 0.5 * x
    candidate = Candidate(Description("", "", "", ""), kernel, x, 0.01, honest=((part, other),))
    fold = torch.arange(40) % 5
    held = leave_folds_out(candidate, columns, fold, [order])

    def errors(y):
        found = []
        for penalty in penalties:
            predicted, others = (folds_left_out(kernel, rows, y, penalty, fold) for rows in (x, other))
            predicted[part] = others[part]
            found.append((float((y - predicted).square().mean()), predicted))
        return min(found, key=lambda pair: pair[0])

    least, predicted = errors(columns)
    torch.testing.assert_close(held.predicted, predicted, rtol=1e-7, atol=1e-9)
    assert held.explained == pytest.approx(1 - least)
    assert held.controls.tolist() == pytest.approx([1 - errors(columns[order])[0]])


def folds_left_out(kernel, x, y, penalty, fold):
    """Each fold by a dense fit to the other rows."""
    out = torch.empty_like(y)
    for number in fold.unique():
        own, rest = fold == number, fold != number
        system = kernel(x[rest]) + penalty * torch.eye(int(rest.sum()), dtype=y.dtype)
        out[own] = kernel(x[own], x[rest]) @ torch.linalg.solve(system, y[rest])
    return out


def test_it_ranks_the_machines_of_fit_with_the_numbers_of_fit(found):
    """Same rows, same seed: the score is that of fit, and the machines that stay are in the table with their shares."""
    model = TabularModel().fit(waves(), "kind")
    assert found.fit_score == model.scores["accuracy"] and f"{100 * found.fit_score:.1f}%" in found.verdict.headline
    stack = model.learner.machine
    assert sorted(r.share for r in found.readings if r.share) == sorted(stack.shares_.tolist())
    assert len(found.readings) == len(stack.trials)
    trial = next(t for t in stack.trials if isinstance(t.kernel, Laplacian))
    reading = next(r for r in found.readings if r.name == "Laplacian near")
    assert reading.call == f"Laplacian(gamma={trial.kernel.gamma.number:.4g})"


def test_the_table_is_ranked_and_the_first_is_tied_with_itself(found):
    explained = [reading.explained for reading in found.readings]
    assert explained == sorted(explained, reverse=True) and found.readings[0].tied
    assert found.table().index.tolist() == [reading.name for reading in found.readings]
    assert len({reading.name for reading in found.readings}) == len(found.readings)


def test_labels_with_structure_are_called_learnable(found):
    assert found.verdict.learnable in ("well", "very well") and found.p_value == 1 / (1 + SHUFFLES)
    assert "kind can be learned" in found.verdict.headline
    assert found.verdict.commands[0] == "mercer fit waves.csv --target kind -o model"
    best = found.readings[0]
    assert best.ratio < 0.7 and best.accuracy > 0.85 and best.control < 0.1


def test_shuffled_labels_are_not():
    frame = waves()
    draw = np.random.default_rng(3)
    found = diagnose(frame.assign(kind=draw.permutation(frame["kind"].to_numpy())), "kind")
    assert found.verdict.learnable == "not shown" and found.p_value > 0.05
    assert found.verdict.headline == "No sign that kind can be learned from this table."


def test_regression_is_standardised_and_scored_by_variance():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(80, 2))
    found = diagnose(pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 1e4 + 300 * x[:, 0]}), "y")
    assert found.task == "regression" and found.classes == [] and found.readings[0].accuracy is None
    assert found.readings[0].explained > 0.99 and "of its variation" in found.verdict.headline
    assert any("linear" in reason.lower() for reason in found.verdict.reasons)


def test_embeddings_are_candidates_beside_the_columns():
    frame = waves(120, noise=0.0)
    good = np.stack([np.sin(2.5 * frame["x"]), np.ones(120)], 1)
    bad = np.random.default_rng(1).normal(size=(120, 4))
    found = diagnose(frame[["z", "kind"]], "kind", embeddings={"good": good, "bad": torch.from_numpy(bad)})
    assert found.readings[0].source == "good" and "from good" in found.verdict.headline
    assert {reading.source for reading in found.readings} == {"", "good", "bad"}
    assert found.verdict.commands == ["mercer.layerwise.KernelNetworkClassifier(random_state=0).fit(good, y)"]
    only = diagnose(frame[["kind"]], "kind", embeddings={"good": good})
    assert only.features == 0 and [c.name for c in only.columns] == []


def test_many_embeddings_get_one_kernel_each():
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = x[:, :1]
    many = list_embedding_kernels({f"layer{i}": x for i in range(4)}, y)
    assert [candidate.description.name for candidate in many] == [f"layer{i}: Two-layer ReLU network" for i in range(4)]
    assert len(list_embedding_kernels({"one": x}, y)) == 3


def test_directions_that_the_kernel_does_not_have_are_not_drawn():
    found = diagnose(waves(60), "kind")
    for eigen in found.eigen.values():
        assert len(eigen.values) == len(eigen.shares) and min(eigen.values) > 0 and max(eigen.shares) <= 1 + 1e-9
    linear = Linear()(torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert int((analyze_gram(linear, centre_columns(torch.arange(30) % 2)).eigenvalues - NOISE > 1e-6).sum()) == 2


def test_the_same_seed_gives_the_same_answer_and_the_input_stays():
    frame = waves(60)
    before = frame.copy()
    first, second = (diagnose(frame, "kind", rows=40, jobs=jobs).table() for jobs in (1, 2))
    pd.testing.assert_frame_equal(first, second)
    pd.testing.assert_frame_equal(frame, before)


def test_a_long_table_is_read_in_part_and_that_is_said():
    found = diagnose(waves(200), "kind", rows=50)
    assert found.rows == 50 and "A random 50 of 200 rows were read." in found.notes


def test_rows_without_a_target_and_rare_classes_are_left_out_and_said():
    frame = pd.DataFrame({"x": np.arange(100.0), "y": [f"c{i // 4:02d}" for i in range(100)]})
    frame.loc[:5, "y"] = None
    found = diagnose(frame.assign(x=np.random.default_rng(0).permutation(100) * 1.5), "y")
    assert len(found.classes) == 20
    assert found.notes[0] == "6 rows without a value in y were left out."
    assert "Of 24 classes the 20 with most rows were read." in found.notes


def test_conflicting_rows_are_counted():
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0, 4.5] * 8, "y": (["a", "a", "b", "b", "b"] * 7) + ["b"] * 5})
    found = diagnose(frame, "y")
    assert any(
        reason.startswith("16 rows equal another row in every column but not in y") for reason in found.verdict.reasons
    )
    assert all(np.isfinite(reading.complexity) for reading in found.readings)


@pytest.mark.parametrize(
    ("change", "arguments", "sentence"),
    [
        (lambda f: f, {"target": "kinds"}, r"target: must be one of the columns .*Did you mean 'kind'\?"),
        (lambda f: f.assign(kind="up"), {}, "column 'kind' must hold two classes; got only up"),
        (lambda f: f.assign(kind=None), {}, "column 'kind' must hold classes or numbers; got no value at all"),
        (lambda f: f.iloc[:6], {}, "at least 10 rows must have a value in 'kind'; got 6"),
        (lambda f: f[["kind"]], {}, "some column must be left to learn from"),
        (lambda f: f[["kind"]].assign(one=1, two="x"), {}, "some column must be left to learn from"),
        (lambda f: f[["kind"]].assign(x=np.nan), {}, "some column must be left to learn from"),
        (lambda f: f, {"rows": 3}, "rows must be a whole number of at least 10; got 3"),
        (lambda f: f, {"task": "regression"}, "column 'kind' must hold finite numbers for regression"),
        (lambda f: f, {"embeddings": {"e": np.ones((3, 2))}}, "e must have a row for each of the table's 150; got 3"),
        (lambda f: f, {"embeddings": {"e": np.full((150, 2), np.nan)}}, "e must be finite; got NaN"),
        (lambda f: f, {"random_state": -1}, "random_state must be in 0\\.\\.4294967295; got -1"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(change, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        diagnose(change(waves()), **{"target": "kind", **arguments})


def test_ten_rows_and_a_constant_column_are_enough():
    draw = np.random.default_rng(0)
    found = diagnose(pd.DataFrame({"x": draw.normal(size=10), "c": 1, "y": ["a", "b"] * 5}), "y")
    assert found.rows == 10 and [c.kind for c in found.columns] == ["numeric", "constant"]


def test_the_page_has_verdict_table_and_figures(found, tmp_path):
    path = diagnosis_page(found, tmp_path / "page.html", source="waves.csv")
    reader = check_page(path.read_text(encoding="utf-8"))
    assert found.verdict.headline in reader.text and "How to read the numbers" in reader.text
    for reading in found.readings:
        assert reading.name in reader.text and reading.meaning in reader.text
    drawn = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(drawn) == 6 and all(svg["role"] == "img" and svg["aria-label"] for svg in drawn)  # desk and phone
    assert "could not be drawn" not in reader.text


@pytest.mark.parametrize("width", [390, 1440])
def test_a_browser_shows_the_page_without_an_error_or_a_sideways_scroll(found, tmp_path, width):
    seen = measured(diagnosis_page(found, tmp_path / "page.html"), tmp_path, width)
    assert seen["width"] == width and seen["scroll"] <= width and len(seen["figures"]) == 3
    assert all(0 <= left < right <= width for left, right in seen["figures"])


def test_hostile_names_are_text(tmp_path):
    frame = waves(40).rename(columns={"x": HOSTILE})
    frame["kind"] = frame["kind"].replace({"up": HOSTILE, "down": "]]>$x_{"})
    found = diagnose(
        frame,
        "kind",
        embeddings={HOSTILE: np.random.default_rng(0).normal(size=(40, 2)), "$_$": frame[["z"]].fillna(0)},
    )
    text = diagnosis_page(found, tmp_path / "page.html", source=HOSTILE).read_text(encoding="utf-8")
    check_page(text)
    assert html.escape(HOSTILE, quote=False).split("&gt;")[0] in text and "could not be drawn" not in text


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "waves.csv"
    waves(60).to_csv(path, index=False)
    return path


def test_the_command_prints_a_table_that_fits_and_writes_the_page(csv, tmp_path):
    done = run("diagnose", csv, "--target", "kind", "-o", tmp_path / "p.html")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 or str(tmp_path) in max(lines, key=len)
    assert "of shuffled" in done.stdout and " 1 " in done.stdout and "mercer fit" in done.stdout
    assert "Laplacian near\n" in done.stderr and "Laplacian near\n" not in done.stdout
    assert lines[-1].startswith(f"Page: {tmp_path / 'p.html'}") and (tmp_path / "p.html").exists()


def test_json_is_one_document(csv, tmp_path):
    done = run("diagnose", csv, "--target", "kind", "--json", "-o", tmp_path / "p.html")
    document = json.loads(done.stdout)
    assert document["page"] == str(tmp_path / "p.html") and document["task"] == "classification"
    assert set(document["verdict"]) == {"learnable", "headline", "reasons", "details", "advice", "commands"}
    first = document["readings"][0]
    for name in ("name", "alignment", "complexity", "bracket", "ratio", "steps", "effective_dimension", "explained"):
        assert name in first
    assert first["bracket"][0] <= first["bracket"][1] and "curve" not in first


def test_an_npz_list_embedding_kernels(tmp_path):
    wine = load_wine()
    rows = np.random.default_rng(0).permutation(178)[:60]
    path = tmp_path / "wine.npz"
    np.savez(path, raw=wine.data[rows], scaled=(wine.data / wine.data.std(0))[rows], y=wine.target[rows])
    assert set(sample(path).embeddings) == {"raw", "scaled"} and list(sample(path).frame.columns) == ["y"]
    done = run("diagnose", path, "--target", "y", "-o", tmp_path / "p.html", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["readings"][0]["source"] == "scaled"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--target", "kin"], 1, "Did you mean 'kind'?"),
        ([], 2, "Missing option '--target'"),
        (["--target", "kind", "--rows", "5"], 2, "Invalid value for '--rows'"),
    ],
)
def test_exit_codes(csv, arguments, code, sentence):
    done = run("diagnose", csv, *arguments)
    assert done.exit_code == code and sentence in done.stderr
    assert "Traceback" not in done.output


def test_a_folder_that_cannot_be_written_is_an_error(csv, tmp_path):
    done = run("diagnose", csv, "--target", "kind", "-o", tmp_path / "no" / "such" / "p.html")
    assert done.exit_code == 1 and "the page's folder must be there" in done.stderr


def test_what_it_suggests_runs_on_the_file_itself(csv, tmp_path, monkeypatch):
    """The commands as printed, in the folder of the data: a table, and an npz file of embeddings."""
    monkeypatch.chdir(tmp_path)
    for command in diagnose(pd.read_csv(csv), "kind", source="waves.csv").verdict.commands:
        done = run(*shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
    assert len(pd.read_csv("predictions.csv")) == 60
    wine = load_wine()
    np.savez("wine.npz", scaled=wine.data / wine.data.std(0), kind=wine.target)
    part = sample("wine.npz")
    (command,) = diagnose(part.frame, "kind", embeddings=part.embeddings, source="wine.npz").verdict.commands
    words = shlex.split(command)
    assert words[:2] == ["python", "-c"]
    exec(words[2], {"print": lambda score: None})
