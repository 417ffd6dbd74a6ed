"""The command line: what it prints where, its exit codes, signals, and that help does not wait for torch."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pandas as pd
import pytest
from click.testing import CliRunner

import mercer
from mercer.cli import main
from mercer.tabular import TabularModel
from mercer_papers import catalogue
from mercer_papers.bench import Line
from mercer_papers.cli import reproduce as reproduce_command
from mercer_papers.results import read_results, read_run
from tests.cli.cases import bare
from tests.papers import fake_entries


def mercer_command(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "mercer.cli", *args], capture_output=True, text=True, timeout=120, **options
    )


class Held:
    """`mercer reproduce` of the made-up table in a process of its own, that stops in row r1 until it is let go."""

    def __init__(self, folder, *args):
        self.folder = folder
        self.script = fake_entries.write(folder / "fake")
        self.hold = folder / "hold"
        self.hold.touch()
        self.start("fake2000/count", "--scale", "smoke", "-o", "run", *args)

    def start(self, *args):
        (self.folder / "in_r1").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, str(self.script), "reproduce", *args],
            cwd=self.folder,
            env={**os.environ, "FAKE_HOLD": str(self.hold), "MERCER_DATA": ""},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def wait_for(self, row):
        for _ in range(6000):
            if (self.folder / f"in_{row}").exists():
                return
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.01)
        raise AssertionError("the run did not get that far")

    def end(self, number):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=240)
        return self.process.returncode, out, err


# --- help and list


HEAVY = {"torch", "numpy", "matplotlib", "sklearn", "pandas", "rich", "jinja2"}


def imported(args, heavy, **env):
    """Those of the ``heavy`` packages that a command imports."""
    probe = (
        "import sys\n"
        "from mercer.cli import main\n"
        f"main({list(args)!r}, standalone_mode=False)\n"
        f"print('imported:', *sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    *shown, last = done.stdout.splitlines()
    assert shown
    return last.split()[1:]


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["list"]], ids=lambda args: args[0])
def test_help_and_list_do_not_wait_for_torch(args):
    assert imported(args, HEAVY, MERCER_DATA=".") == []


def test_predict_imports_neither_the_compiler_nor_what_only_fitting_or_drawing_needs(tmp_path):
    frame = pd.DataFrame({"x": [0, 1, 2, 3] * 10, "sort": ["low", "low", "high", "high"] * 10})
    mercer.save(TabularModel().fit(frame, "sort"), tmp_path / "model")
    frame.to_csv(tmp_path / "rows.csv")
    heavy = {"torch._dynamo", "sympy", "matplotlib", "jinja2", "sklearn.ensemble", "sklearn.linear_model", "torch"}
    args = ["predict", str(tmp_path / "model"), str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out.csv")]
    assert imported(args, heavy) == ["torch"]


def test_only_commands_that_work_are_there():
    assert {"bench", "list", "report", "reproduce"} <= set(main.list_commands(click.Context(main)))
    assert all(command.help for command in main.commands.values())


def test_list_shows_every_entry_with_its_state():
    done = mercer_command("list", "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == ""
    assert len(rows) == 54
    assert all(set(row) >= {"id", "paper", "what", "data", "scale", "state"} for row in rows)
    assert {row["state"] for row in rows} <= {"ready", "missing", "paper_scale_only", "not_built"}


def test_list_says_the_states_in_words(fake):
    states = {row["id"]: row["state"] for row in json.loads(fake("list", "--json").stdout)}
    assert states == {
        "fake2000/count": "ready",
        "fake2000/diverge-1.2": "ready",
        "fake2000/needs-data": "ready",  # one of its cells needs no data
        "fake2000/thmA": "ready",
        "fake2000/huge": "paper_scale_only",
        "fake2000/later": "not_built",
        "fake2000/crash": "ready",
    }
    text = fake("list").stdout
    assert "fake2000/later          not tested                       not built yet" in text
    assert max(map(len, text.splitlines())) <= 80
    assert fake("list", "fake2000/later", "--json").stdout.count('"id"') == 1
    assert fake("list", "nobody").exit_code == 2
    assert "6 results and 1 checks: 5 ready, 1 paper scale only, 1 not built yet" in text


def test_an_entry_whose_data_is_not_there_is_listed_as_missing(fake):
    path = Path("fake/published/fake2000.toml")
    path.write_text(path.read_text().replace('data = ["mnist"]', 'data = ["mnist"]\nneeds = ["mnist"]'))
    states = {row["id"]: row["state"] for row in json.loads(fake("list", "--json").stdout)}
    assert states["fake2000/needs-data"] == "missing"


# --- reproduce


def test_reproduce_ends_with_the_path_of_the_page(fake):
    done = fake("reproduce", "fake2000/count", "fake2000/thmA", "--scale", "smoke", "-o", "run")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "run/report.html" and Path("run/report.html").stat().st_size > 1000
    assert lines[0].startswith("fake2000/count           done              8 done; ")
    assert lines[1].endswith("the claim does not hold")
    assert "[9/9] fake2000/thmA: done 0.1, does not hold" in done.stderr


def test_reproduce_prints_one_json_document(fake):
    done = fake("reproduce", "fake2000/count", "fake2000/later", "--scale", "smoke", "--seeds", "3", "--json")
    document = json.loads(done.stdout)
    count, later = document["entries"]
    assert (count["status"], count["cells"], later["status"]) == ("done", {"done": 12}, "not_built")
    first = count["numbers"][0]
    assert (first["row"], first["column"], first["published"], first["seeds"]) == ("r0", "a", 0.5, 3)
    assert first["deviation"] > 0
    assert document["report"] == document["run"] + "/report.html"
    assert document["run"].startswith("runs/")


def test_a_paper_s_name_runs_all_of_it_and_a_failed_cell_is_exit_1(fake):
    path = Path("fake/entries/fake2000/crash.py")
    path.unlink()  # it would end this process
    done = fake("reproduce", "fake2000", "--scale", "smoke", "-o", "run")
    assert done.exit_code == 1
    assert "FloatingPointError: loss became NaN at step 12" in done.stderr
    assert "fake2000/diverge-1.2     failed            3 failed, 1 done" in done.stdout
    assert done.stdout.splitlines()[-1] == "run/report.html"  # the run went on to its end
    assert {r.entry for r in read_results(Path("run"))} == {e.id for e in catalogue.entries()}


def test_a_terminal_gets_a_bar_and_the_cells_that_did_not_end_well(fake, monkeypatch):
    monkeypatch.setattr(reproduce_command, "watcher", reproduce_command.Bar)
    done = fake("reproduce", "fake2000/diverge-1.2", "--scale", "smoke")
    assert "fake2000/diverge-1.2, raises: failed, 0.0 s: FloatingPointError: loss became NaN at step 12" in done.stderr
    assert "fine: done" not in done.stderr and "4/4" in done.stderr


def test_nothing_that_could_run_is_exit_1(fake):
    done = fake("reproduce", "fake2000/later", "--scale", "smoke")
    assert done.exit_code == 1
    assert done.stdout.startswith("fake2000/later           not built yet\n")
    assert "Nothing could be run" in done.stderr


def test_bundled_is_kept_for_the_resume(fake):
    done = fake("reproduce", "fake2000/needs-data", "--scale", "smoke", "--bundled", "-o", "run")
    assert done.exit_code == 0
    assert read_run(Path("run"))["asked"]["download"] is False
    assert fake("reproduce", "--resume", "run").exit_code == 0
    assert sorted(r.status for r in read_results(Path("run"))) == ["done", "missing"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["reproduce", "fake2000/cuont"], "got 'fake2000/cuont'. Did you mean fake2000/count"),
        (["reproduce", "--scale", "tiny"], "'tiny' is not one of 'smoke', 'small', 'paper'"),
        (["reproduce", "fake2000/count", "--set", "i"], "--set must be NAME=VALUE; got 'i'"),
        (["reproduce", "fake2000/count", "--set", "rows=5"], "a setting's name must be one of 'i'; got 'rows'"),
        (["reproduce", "--seeds", "0"], "0 is not in the range x>=1"),
        (["reproduce", "--resume", "nowhere"], "Directory 'nowhere' does not exist"),
        (["reproduce", "fake2000", "--resume", "fake"], "the run keeps its own ID and options"),
        (["bench", "nothing"], "AREA must be one of"),
        (["report", "nowhere"], "Directory 'nowhere' does not exist"),
        (["explore"], "No such command 'explore'"),
    ],
)
def test_bad_usage_is_exit_2_with_the_way_out(fake, args, sentence):
    done = fake(*args)
    assert done.exit_code == 2
    assert sentence in done.stderr and done.stdout == ""
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["reproduce", "--resume", "fake"],
            "fake: not a run folder, for it has no run.json; got entries, fake_mercer.py",
        ),
        (["report", "fake"], "fake: not a run folder"),
        (["reproduce", "fake2000", "-o", "fake"], "fake must be new or empty; got files in it. Use --resume fake"),
        (["reproduce", "fake2000", "-o", "fake/fake_mercer.py/run"], "run must be a folder one can write to"),
    ],
)
def test_work_that_fails_is_exit_1_in_one_sentence(fake, args, sentence):
    done = fake(*args)
    assert done.exit_code == 1
    assert sentence in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_stops_the_run_and_keeps_its_lines(fake, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:100] if b'"r1"' in line else line))
    done = fake("reproduce", "fake2000/count", "--scale", "smoke", "-o", "run")
    assert done.exit_code == 1
    assert "run/results.jsonl must take one more line; got No space left on device." in done.stderr
    lines = Path("run/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == ["r0"] * 2


def test_report_builds_the_page_again(fake):
    fake("reproduce", "fake2000/thmA", "--scale", "smoke", "-o", "run")
    Path("run/report.html").unlink()
    done = fake("report", "run")
    assert (done.exit_code, done.stdout) == (0, "run/report.html\n")
    assert Path("run/report.html").exists()


def test_a_dash_puts_the_page_on_standard_output(fake):
    done = fake("reproduce", "fake2000/thmA", "--scale", "smoke", "-o", "-")
    assert done.stdout.startswith("<!doctype html>") and done.stdout.endswith("</html>")
    assert "the claim does not hold" in done.stderr
    assert not Path("-").exists() and not Path("runs").exists()
    fake("reproduce", "fake2000/thmA", "--scale", "smoke", "-o", "run")
    assert fake("report", "run", "-o", "-").stdout == Path("run/report.html").read_text()
    kept = Path("run/run.json").read_bytes()
    refused = fake("report", "run", "-o", "run/run.json")
    assert refused.exit_code == 2 and "-o must not name a file that is read" in refused.stderr
    assert Path("run/run.json").read_bytes() == kept


def test_data_that_is_missing_is_named_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERCER_DATA", raising=False)
    only = ("--only", "exact | MNIST", "--only", "no kernel | digits")
    done = CliRunner().invoke(main, ["reproduce", "spectral2019/table1", "--scale", "smoke", *only, "-o", "run"])
    assert done.stderr.count("Put mnist.npz") == 1
    assert "3 without data or package, 1 done" in done.stdout


# --- signals: the process is a real one


def test_a_run_stopped_in_every_way_is_resumed_to_the_same_results(tmp_path, uninterrupted):
    held = Held(tmp_path / "held")
    run = tmp_path / "held" / "run"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        held.wait_for("r1")
        returned, out, err = held.end(number)
        assert (returned, out) == (code, "")
        assert "finished cells are kept. Resume with: mercer reproduce --resume run" in err
        assert "Traceback" not in err
        assert len(read_results(run)) == 2
        held.start("--resume", "run")
    held.wait_for("r1")
    assert held.end(signal.SIGKILL)[0] == -signal.SIGKILL
    path = run / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # the most a kill can leave behind
    held.hold.unlink()
    held.start("--resume", "run")
    out, err = held.process.communicate(timeout=120)
    assert held.process.returncode == 0, err
    assert "8 cells, 1 done before" in err
    assert out.splitlines()[-1] == "run/report.html"
    assert bare(run) == uninterrupted
    assert len(read_run(run)["sessions"]) == 4


def test_workers_end_with_their_run(tmp_path):
    held = Held(tmp_path, "--jobs", "2")
    held.wait_for("r1")
    returned, _, err = held.end(signal.SIGTERM)  # returns when the last process has let go of the pipes
    assert returned == 143 and "Traceback" not in err
    assert {r.status for r in read_results(tmp_path / "run")} == {"done"}


def test_a_second_run_into_the_same_folder_is_refused(tmp_path):
    held = Held(tmp_path)
    held.wait_for("r1")
    command = [sys.executable, str(held.script), "reproduce", "--resume", "run"]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    held.end(signal.SIGKILL)
    assert second.returncode == 1
    assert "must be used by one run at a time; got a second run." in second.stderr
    assert len(read_results(tmp_path / "run")) == 2


def test_bench_shows_costs_scores_and_goals_within_100_columns(monkeypatch):
    shared = {"area": "maps", "case": "Nystrom", "accuracy_name": "error", "repeats": 5}
    lines = [
        Line(who="mercer", state="measured", cpu=0.5, wall=0.6, memory=12.0, accuracy=0.1, goals={"memory": 10.0},
             met={"memory": False}, **shared),
        Line(who="peer", state="measured", cpu=1.0, wall=1.5, memory=36.0, accuracy=0.2, ratios={"cpu": 2.0},
             goals={"cpu": 1.5, "memory": 4.0}, met={"cpu": True}, **shared),
        Line(who="other", state="absent", why="no module named other, " * 9, **shared),
    ]  # fmt: skip
    monkeypatch.setattr("mercer_papers.bench.run", lambda *_, **__: lines)
    text = CliRunner().invoke(main, ["bench"]).stdout
    assert "peer 1 1.5 2 x 36 0.2 goal:" in " ".join(text.split())
    assert "goal: memory at most 10 MiB; got 12 MiB: not met\n" in text
    assert "goal: cpu ratio at least 1.5 x; got 2 x: met\n" in text
    assert "goal: memory ratio at least 4 x: not measured\n" in text
    assert "other: absent\n" in text
    assert text.endswith("1 of 3 goals met, 1 not met, 1 not measured\n")
    assert max(map(len, text.splitlines())) <= 100
    document = json.loads(CliRunner().invoke(main, ["bench", "--json"]).stdout)
    assert [line["who"] for line in document] == ["mercer", "peer", "other"]
    assert document[1]["ratios"] == {"cpu": 2.0} and document[0]["met"] == {"memory": False}
    dashed = CliRunner().invoke(main, ["bench", "-o", "-"])  # the JSON, and the text on stderr
    assert json.loads(dashed.stdout) == document and "goals met" in dashed.stderr
    both = CliRunner().invoke(main, ["bench", "-o", "-", "--json"])
    assert both.exit_code == 2 and "both write to standard output" in both.stderr


def test_a_device_that_is_not_here_is_refused(fake):
    refused = fake("reproduce", "fake2000/count", "--device", "cuda:99")
    assert refused.exit_code == 2 and "device 'cuda:99' must be usable" in refused.stderr
    assert fake("reproduce", "fake2000/thmA", "--scale", "smoke", "--device", "cpu", "-o", "run").exit_code == 0
    assert json.loads(Path("run/run.json").read_text())["asked"]["device"] == "cpu"
    Path("t.csv").write_text("x,y\n1,a\n2,b\n")
    for command in (("bench", "head"), ("fit", "t.csv", "--target", "y", "-o", "model")):
        refused = CliRunner().invoke(main, [*command, "--device", "cuda:99"])
        assert refused.exit_code == 2 and f"{command[0]}: device 'cuda:99' must be usable" in refused.stderr
    assert not Path("model").exists()


# --- the shell around it


def shell(script, **env):
    command = [sys.executable, "-m", "mercer.cli"]
    text = script.replace("mercer ", shlex.join(command) + " ")
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, env={**os.environ, **env}, check=False)


def test_a_deleted_working_directory_is_a_sentence(tmp_path):
    done = shell(f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; mercer list")
    assert done.returncode == 1 and "the working directory must exist; got one that was deleted" in done.stderr


def test_a_closed_stderr_does_not_stop_the_work():
    assert shell("mercer --help 2>&-").returncode == 0
    code = "from mercer.cli.output import say\nfor _ in range(50000): say('working')\nprint('done')"
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c {shlex.quote(code)} 2> >(head -1 >/dev/null)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n"


def test_no_color_is_kept(monkeypatch):
    runner = CliRunner()
    assert "\x1b[" in runner.invoke(main, ["estimate", "nystrom", "--n", "5"], color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in runner.invoke(main, ["estimate", "nystrom", "--n", "5"], color=True).stdout


@pytest.mark.parametrize(
    ("args", "near"),
    [(["fti"], "fit"), (["bench", "fetures"], "features"), (["estimate", "nystorm", "--n", "5"], "nystrom")],
    ids=["command", "area", "method"],
)
def test_a_mistyped_name_gets_a_suggestion(args, near):
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2 and f"Did you mean '{near}'?" in done.stderr


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_help_has_an_example_and_fits_80_columns(command):
    text = CliRunner().invoke(main, [command, "--help"], terminal_width=80).stdout
    assert f"Examples:\n    mercer {command}" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "Foretell" not in text and "gone on with" not in text
