"""``mercer fit`` and ``mercer predict`` as a user meets them: what they print, write, and how they end."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import mercer
from mercer.cli import main
from mercer.cli.fit import _list_others
from mercer.cli.process import stoppable
from mercer.kernels import RBF
from mercer.storage.files import lock
from mercer_papers import data


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def tables():
    path = Path(__file__).parents[2] / "examples" / "tables.py"
    spec = importlib.util.spec_from_file_location("tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def home(tables, tmp_path_factory):
    """A folder with a short messy table, rows of it that are new, and a model."""
    folder = tmp_path_factory.mktemp("home")
    frame = tables.messy(360)
    frame[:300].to_csv(folder / "old.csv", index=False)
    frame[300:].to_csv(folder / "new.csv", index=False)
    done = run("fit", folder / "old.csv", "--target", "churned", "-o", folder / "model")
    assert done.exit_code == 0, done.output
    (folder / "fit.txt").write_text(done.stdout)
    return folder


def test_fit_says_what_was_done_and_how_good_it_is(home):
    text = (home / "fit.txt").read_text()
    for part in (
        "old.csv: 300 rows, 9 columns beside churned",
        "classification: churned holds 2 different words.",
        "country     constant     dropped: every value is 'CH'",
        "joined      date         a date as days, year, season, weekday",
        "complained  boolean      1 for yes, 0 for no",
        "remark      text         dropped: free text that says nothing about the",
        "On held-out rows (5 folds over 300 rows)",
        "true class down, predicted across",
        f"Next:  mercer predict {home / 'model'}",
    ):
        assert part in text, part
    model = mercer.load(home / "model")
    assert f"{model.scores['accuracy']:.4g}" in text and "cross-validation" not in text


def test_fit_draws_the_page_and_survives_without_it(home, tmp_path, monkeypatch):
    assert "<svg" in (home / "model" / "explain.html").read_text()
    monkeypatch.setattr("mercer.tabular.pages.model_page", lambda *args, **options: 1 / 0)
    done = run("fit", home / "new.csv", "--target", "churned", "-o", tmp_path / "m", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["page"] is None
    assert "the page could not be drawn; the model is kept: ZeroDivisionError" in done.stderr
    assert mercer.load(tmp_path / "m").rows == 60


def test_predict_writes_the_columns_of_the_contract(home, tmp_path):
    done = run("predict", home / "model", home / "new.csv", "-o", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    out = pd.read_csv(tmp_path / "out.csv")
    assert out.columns.tolist() == ["prediction", "p_left", "p_stayed", "unfamiliar", "customer"]
    assert len(out) == 60 and out["unfamiliar"].between(0, 1).all()
    new = pd.read_csv(home / "new.csv")
    assert out["customer"].equals(new["customer"]), "the column that names the row is kept"
    accuracy = (out["prediction"] == new["churned"]).mean()
    assert f"accuracy on the 60 rows whose churned is in the file: {accuracy:.4g}" in done.stdout
    assert accuracy > 0.6 and list(tmp_path.iterdir()) == [tmp_path / "out.csv"]


def test_json_is_one_document_on_stdout(home, tmp_path):
    done = run("fit", home / "old.csv", "--target", "calls", "--task", "regression", "-o", tmp_path / "m", "--json")
    found = json.loads(done.stdout)
    assert (found["task"], found["why"], found["rows"]) == (
        "regression",
        "regression, as asked",
        found["scores"]["rows"],
    )
    assert {"r2", "rmse", "mae", "pairs"} <= found["scores"].keys() and "learning from" in done.stderr
    done = run("predict", tmp_path / "m", home / "new.csv", "-o", tmp_path / "o.csv", "--json")
    found = json.loads(done.stdout)
    assert found["rows"] == 60 and found["r2"] is not None
    assert found["warnings"] == {"city: categories that no training row had": 1}


def test_another_process_predicts_the_same_bits(home, tmp_path):
    command = [sys.executable, "-m", "mercer.cli", "predict", str(home / "model"), str(home / "new.csv")]
    subprocess.run([*command, "-o", str(tmp_path / "there.csv")], check=True, capture_output=True, env=_alone())
    run("predict", home / "model", home / "new.csv", "-o", tmp_path / "here.csv")
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


def _alone():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", ["wine", "breast_cancer", "car"])
def test_the_tables_of_the_examples(tables, tmp_path, name):
    if not data.available(name):
        pytest.skip(data.how_to_get(name))
    files = {path.stem: path for path in tables.write(tmp_path)}
    frame = pd.read_csv(files[name]).groupby(tables.TARGETS[name], group_keys=False).sample(frac=0.5, random_state=0)
    frame.to_csv(files[name], index=False)
    done = run("fit", files[name], "--target", tables.TARGETS[name], "-o", tmp_path / "m", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scores"]["accuracy"] > 0.93


def test_surprises_are_warned_of(home, tmp_path):
    strange = pd.read_csv(home / "new.csv", dtype=str)
    strange["plan"] = "platinum"
    strange.loc[0, "calls"] = "many"
    strange["extra"] = 1
    strange.drop(columns=["country", "churned"]).to_csv(tmp_path / "s.csv", index=False)
    done = run("predict", home / "model", tmp_path / "s.csv", "-o", tmp_path / "o.csv")
    assert done.exit_code == 0, done.output
    assert "Warning: plan: categories that no training row had (60 rows)." in done.stderr
    assert "Warning: calls: values that are no numbers count as missing, first " in done.stderr
    assert "Warning: extra: a column that the model does not know is ignored (60 rows)." in done.stderr
    assert (pd.read_csv(tmp_path / "o.csv")["unfamiliar"] >= 0.5).all() and "accuracy" not in done.stdout


def test_bad_data_is_exit_1_with_a_sentence(home, tmp_path):
    missing = pd.read_csv(home / "new.csv").rename(columns={"calls": "call"})
    missing.to_csv(tmp_path / "missing.csv", index=False)
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    mercer.save(RBF(1.0), tmp_path / "kernel")
    model, out = home / "model", tmp_path / "o.csv"
    for args, sentence in [
        (("fit", home / "old.csv", "--target", "churn", "-o", tmp_path / "m"), "Did you mean 'churned'?"),
        (("predict", model, home / "new.csv", "-o", out, "--keep", "plann"), "keep: must be one of the columns"),
        (
            ("fit", tmp_path / "ragged.csv", "--target", "a", "-o", tmp_path / "m"),
            "ragged.csv: line 3 must have 2",
        ),
        (("fit", home / "old.csv", "--target", "country", "-o", tmp_path / "m"), "must hold two classes; got only CH"),
        (("fit", home / "old.csv", "--target", "joined", "-o", tmp_path / "m"), "classes or numbers; got dates"),
        (("predict", model, tmp_path / "missing.csv", "-o", out), "but lacks 'calls'; got customer"),
        (("predict", model, tmp_path / "missing.csv", "-o", out), "Is it 'call'?"),
        (("predict", tmp_path / "kernel", home / "new.csv", "-o", out), "must hold a model of `mercer fit`; got a RBF"),
        (("predict", tmp_path, home / "new.csv", "-o", out), "must hold mercer.json"),
    ]:
        done = run(*args)
        assert done.exit_code == 1 and sentence in done.stderr and done.stdout == "", done.output
        assert "Traceback" not in done.output and not out.exists() and not (tmp_path / "m").exists()


def test_warnings_are_one_line_without_a_path():
    with warnings.catch_warnings(), stoppable():
        warnings.simplefilter("default")
        runner = CliRunner()
        command = click.command()(lambda: warnings.warn("a ridge was added", mercer.NumericalWarning, stacklevel=1))
        assert runner.invoke(command).stderr == "Warning: a ridge was added\n"


def test_bad_usage_is_exit_2(home, tmp_path):
    for args, sentence in (
        (("fit", home / "old.csv", "-o", tmp_path / "m"), "Missing option '--target'. For example: mercer fit "),
        (("fit", home / "odl.csv", "--target", "a", "-o", tmp_path / "m"), "does not exist. Did you mean 'old.csv'?"),
        (("fit", home / "old.csv", "--target", "a", "--task", "rank", "-o", tmp_path / "m"), "'rank' is not one of"),
        (("predict", home / "modle", home / "old.csv", "-o", tmp_path / "o.csv"), "Did you mean 'model'?"),
        (("explain", home / "old.csv"), "is a file; give the folder that `mercer fit` wrote."),
        (("predict", home / "model", home / "old.csv"), "Missing option '-o'"),
    ):
        done = run(*args)
        assert done.exit_code == 2 and sentence in done.stderr, done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_predicting_leaves_what_was_there(home, tmp_path, number, code):
    big = pd.concat([pd.read_csv(home / "new.csv")] * 2000)
    big.to_csv(tmp_path / "big.csv", index=False)
    out = tmp_path / "out.csv"
    out.write_text("old")
    command = [sys.executable, "-m", "mercer.cli", "predict", str(home / "model"), str(tmp_path / "big.csv"), "-o"]
    process = subprocess.Popen([*command, str(out)], env=_alone(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(6000):
        if list(tmp_path.glob(".mercer-*.tmp")):
            break
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, out.read_text()) == (code, "old"), err
    assert not list(tmp_path.glob(".mercer-*.tmp")) and b"Interrupted" in err


def test_help_of_the_new_commands_does_not_wait_for_torch():
    code = "import sys; from mercer.cli import main\ntry: main(['fit', '--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'pandas'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "--target COLUMN" in done.stdout, done.stderr


def test_numbers_in_the_messy_table_are_told_apart(tables):
    frame = tables.messy(200)
    assert frame.equals(tables.messy(200)) and not frame.equals(tables.messy(200, seed=1))
    assert np.isin(["?", ""], frame["calls"].unique().tolist() + frame["spent"].unique().tolist()).all()


def test_predict_keeps_the_columns_asked_for(home, tmp_path):
    out = tmp_path / "out.csv"
    done = run("predict", home / "model", home / "new.csv", "-o", out, "--keep", "joined", "--keep", "calls")
    assert done.exit_code == 0 and "kept columns: joined, calls" in done.stdout
    found, new = pd.read_csv(out, dtype=str), pd.read_csv(home / "new.csv", dtype=str)
    assert found.columns.tolist()[-2:] == ["joined", "calls"]
    assert found["joined"].tolist() == new["joined"].tolist(), "as it is written"
    done = run("predict", home / "model", home / "new.csv", "-o", out, "--keep", "jioned")
    assert done.exit_code == 1 and "Did you mean 'joined'?" in done.stderr


def test_predict_says_when_the_rows_are_training_rows(home, tmp_path):
    old = run("predict", home / "model", home / "old.csv", "-o", tmp_path / "o.csv")
    new = run("predict", home / "model", home / "new.csv", "-o", tmp_path / "o.csv")
    assert "Note: these are the rows that the model was fitted on" in old.stdout and "fitted on" not in new.stdout


def test_58_predictions_for_a_spreadsheet(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"=x": rng.normal(size=60), "who": [f"@{i}" for i in range(60)]})
    frame["y"] = np.where(frame["=x"] > 0, "=HYPERLINK()", "-no")
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert run("fit", tmp_path / "t.csv", "--target", "y", "-o", tmp_path / "m").exit_code == 0
    for option, expected in (((), {"=HYPERLINK()", "-no"}), (("--spreadsheet",), {"'=HYPERLINK()", "'-no"})):
        done = run("predict", tmp_path / "m", tmp_path / "t.csv", "-o", tmp_path / "o.csv", *option)
        found = pd.read_csv(tmp_path / "o.csv")
        assert done.exit_code == 0 and set(found["prediction"]) == expected
        assert found["who"].str.startswith("'").all() == bool(option)


def test_a_model_of_another_target_is_not_replaced(home, tmp_path):
    """Issue 14, item 17."""
    folder = tmp_path / "m"
    shutil.copytree(home / "model", folder)
    before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    done = run("fit", home / "old.csv", "--target", "calls", "-o", folder)
    assert done.exit_code == 1 and "must hold a model of 'calls'; got one of 'churned'. Pass --force" in done.stderr
    mercer.save(RBF(1.0), tmp_path / "kernel")
    done = run("fit", home / "old.csv", "--target", "calls", "-o", tmp_path / "kernel")
    assert done.exit_code == 1 and "got mercer.kernels.RBF. Pass --force" in done.stderr
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "explain.html").write_text("mine")
    done = run("fit", home / "old.csv", "--target", "calls", "-o", tmp_path / "pages")
    assert done.exit_code == 1 and "holds explain.html but no model" in done.stderr
    assert before == sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    assert run("fit", home / "new.csv", "--target", "calls", "-o", folder, "--force").exit_code == 0
    assert mercer.load(folder).target.name == "calls" and mercer.load(folder, previous=True).target.name == "churned"


def test_46_a_folder_is_held_from_start_to_page(home, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    with lock(make(folder)):
        done = run("fit", home / "new.csv", "--target", "churned", "-o", folder)
    assert done.exit_code == 1 and "must be used by one run at a time" in done.stderr
    seen = []

    def page(model, path, **options):
        with pytest.raises(RuntimeError, match="one run at a time"), lock(folder):
            pass
        seen.append(path)

    monkeypatch.setattr("mercer.tabular.pages.model_page", page)
    assert run("fit", home / "new.csv", "--target", "churned", "-o", folder).exit_code == 0 and seen


def test_54_any_failure_is_one_sentence(home, tmp_path, monkeypatch):
    def broken(*args, **options):
        raise AttributeError("'NoneType' object has no attribute 'columns'\x1b[2J")

    monkeypatch.setattr("mercer.tabular.TabularModel.predict_with_surprises", broken)
    done = run("predict", home / "model", home / "new.csv", "-o", tmp_path / "o.csv")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert "Error: AttributeError: 'NoneType' object has no attribute 'columns'\\x1b[2J. This is a bug" in done.stderr


def test_53_outputs_are_not_written_through_links(home, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (tmp_path / "o.csv").symlink_to(outside)
    done = run("predict", home / "model", home / "new.csv", "-o", tmp_path / "o.csv")
    assert done.exit_code == 1 and "must be a regular file; got a symbolic link" in done.stderr
    assert outside.read_text() == "theirs" and (tmp_path / "o.csv").is_symlink()
    done = run("predict", home / "model", home / "new.csv", "-o", "/dev/null")
    assert done.exit_code == 1 and "got a device" in done.stderr


def test_69_an_output_never_replaces_what_is_read(home, tmp_path):
    """The table, another name of it, and every file of the model; nothing is written."""
    model, rows = tmp_path / "m", tmp_path / "rows.csv"
    shutil.copytree(home / "model", model)
    shutil.copy(home / "new.csv", rows)
    os.link(rows, tmp_path / "linked.csv")
    os.link(model / "mercer.json", tmp_path / "linked.json")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outputs = [rows, tmp_path / "m" / ".." / "rows.csv", tmp_path / "linked.csv", tmp_path / "linked.json"]
    outputs += [model / "mercer.json", model / "new.csv"]
    commands = [("predict", model, rows), ("explain", model, rows), ("explain", model, "--data", rows)]
    for command in commands:
        for output in outputs:
            done = run(*command, "-o", output)
            assert done.exit_code == 2 and "-o must" in done.stderr, (command, output, done.output)
    assert run("predict", model, rows, "-o", model / "explain.html").exit_code == 2
    assert run("diagnose", rows, "--target", "churned", "-o", rows).exit_code == 2
    for output in (rows, tmp_path):
        assert run("fit", rows, "--target", "churned", "-o", output).exit_code == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_dash_is_standard_input_and_output(home, tmp_path, monkeypatch):
    text = (home / "new.csv").read_text()
    expected = tmp_path / "expected.csv"
    assert run("predict", home / "model", home / "new.csv", "-o", expected).exit_code == 0
    arguments = ["predict", str(home / "model"), "-", "-o", "-"]
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    done = CliRunner().invoke(main, arguments, input=text)
    assert done.exit_code == 0, done.output
    assert done.stdout == expected.read_text() and "rows predicted" in done.stderr
    both = CliRunner().invoke(main, [*arguments, "--json"], input=text)
    assert both.exit_code == 2 and "both write to standard output" in both.stderr
    page = CliRunner().invoke(main, ["explain", str(home / "model"), "-", "-o", "-"], input=text)
    assert page.stdout.startswith("<!doctype html>") and "row 0: " in page.stderr
    folder = CliRunner().invoke(main, ["fit", "-", "--target", "churned", "-o", "-"], input=text)
    assert folder.exit_code == 2 and "MODEL must be a folder" in folder.stderr
    fitted = CliRunner().invoke(main, ["fit", "-", "--target", "churned", "-o", "m"], input=text)
    assert fitted.exit_code == 0 and "mercer predict m DATA.csv" in fitted.stdout, fitted.output
    assert sorted(os.listdir()) == ["m"]
    nothing = CliRunner().invoke(main, arguments, input="")
    assert nothing.exit_code == 1 and "an empty file" in nothing.stderr


def test_fit_with_weights(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.uniform(0, 6, 120), "w": 1 + 8 * (np.arange(120) % 2)})
    frame["y"] = np.sin(frame["x"]) + (np.arange(120) % 2)
    frame.to_csv(tmp_path / "t.csv", index=False)
    done = run("fit", tmp_path / "t.csv", "--target", "y", "--weight", "w", "-o", tmp_path / "m")
    assert done.exit_code == 0 and "Rows are weighted by w." in done.stdout, done.output
    model = mercer.load(tmp_path / "m")
    assert [column.name for column in model.preparation.columns] == ["x"]
    assert np.abs(model.predict(frame)["prediction"] - np.sin(frame["x"]) - 0.9).mean() < 0.15
    frame.assign(w=np.where(frame.index == 3, np.nan, 1.0)).to_csv(tmp_path / "hole.csv", index=False)
    for name, column in (("t", "y"), ("t", "weight"), ("hole", "w")):
        done = run("fit", tmp_path / f"{name}.csv", "--target", "y", "--weight", column, "-o", tmp_path / "n")
        assert done.exit_code == 1 and "weight" in done.stderr, done.output


def test_58_names_cannot_steer_the_terminal(tmp_path):
    rng = np.random.default_rng(0)
    names = ["\x1b[31mred", "n" * 100_000, "価格", "#4269d0"]
    frame = pd.DataFrame(rng.normal(size=(60, 4)), columns=names)
    frame["\x1b]0;y\x07"] = np.where(frame["価格"] > 0, "\x1b[2Jyes", "no")
    frame.to_parquet(tmp_path / "t.parquet")
    model, data = tmp_path / "a b", tmp_path / "t.parquet"
    done = run("fit", data, "--target", "\x1b]0;y\x07", "-o", model)
    assert done.exit_code == 0 and "Warning" not in done.stderr, done.stderr
    more = [run("predict", model, data, "-o", tmp_path / "o.csv"), run("explain", model, "-o", tmp_path / "p.html")]
    more.append(run("diagnose", data, "--target", "nothing", "-o", tmp_path / "d.html"))
    assert [one.exit_code for one in more] == [0, 0, 1]
    for one in (done, *more):
        assert "\x1b" not in one.output and "\x07" not in one.output
        lines = [line for line in one.output.splitlines() if str(tmp_path) not in line and not line.startswith("Error")]
        assert max(map(len, lines), default=0) <= 80 and max(map(len, one.output.splitlines())) < 2100
    assert f"mercer predict '{model}'" in done.stdout, "quoted for the shell"
    assert "#4269d0" in (model / "explain.html").read_text(), "a name that looks like a colour stays a name"


def test_seeds_are_as_large_as_scikit_learn_takes_them(home, tmp_path):
    for command in (("fit", home / "new.csv", "-o", tmp_path / "m"), ("diagnose", home / "new.csv")):
        done = run(*command, "--target", "churned", "--seed", 2**32)
        assert done.exit_code == 2 and "4294967296 is not in the range 0<=x<=4294967295" in done.stderr
    assert run("fit", home / "new.csv", "--target", "churned", "-o", tmp_path / "m", "--seed", 2**32 - 1).exit_code == 0


def test_fit_shows_others_on_the_same_folds(home):
    text = (home / "fit.txt").read_text()
    assert "Beside others, on the same folds" in text
    scores = mercer.load(home / "model").scores
    for name, found in {**scores["beside"], "this model": scores}.items():
        row = next(line.split() for line in text.splitlines() if line.startswith(f"  {name} "))
        measures = ("accuracy", "balanced_accuracy", "log_loss", "auroc", "average_precision")
        assert row[-5:] == [f"{found[measure]:.3g}" for measure in measures]
    assert max(len(line) for line in text.splitlines() if str(home) not in line) < 80


def test_fit_says_when_boosting_is_better():
    scores = {"accuracy": 0.8, "log_loss": 0.5, "always_most_frequent": 0.6}
    worse = {"linear": {"accuracy": 0.7, "log_loss": 0.6}, "HistGradientBoosting": {"accuracy": 0.9, "log_loss": 0.3}}
    assert any("Boosted trees are better on this table" in line for line in _list_others({**scores, "beside": worse}))
    alike = {"HistGradientBoosting": {"accuracy": 0.8, "log_loss": 0.5}}
    assert not any("Boosted" in line for line in _list_others({**scores, "beside": alike}))


def test_predict_passes_the_level_on(home, tmp_path):
    assert (
        run("fit", home / "new.csv", "--target", "calls", "--task", "regression", "-o", tmp_path / "m").exit_code == 0
    )
    widths = []
    for level in (0.5, 0.9):
        out = tmp_path / f"{level}.csv"
        assert run("predict", tmp_path / "m", home / "new.csv", "-o", out, "--level", level).exit_code == 0
        found = pd.read_csv(out)
        assert found.columns.tolist()[:4] == ["prediction", "low", "high", "unfamiliar"]
        widths.append((found["high"] - found["low"]).mean())
    assert 0 < widths[0] < widths[1]


def make(folder):
    folder.mkdir()
    return folder
