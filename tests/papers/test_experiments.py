"""The catalogue of published results, and the runner: one cell, one line, through every fault."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import mercer_papers
from mercer.storage.files import lock, mend_lines
from mercer_papers import catalogue, execution, recorded_runs, runner
from mercer_papers.cells import SCALES, Cell, Outcome, non_finite
from mercer_papers.cli.reproduce import parse_settings, reproduce
from mercer_papers.recorded_runs import find_recorded
from mercer_papers.results import Result, append, read_results, read_run, summarise
from tests.papers import fake_entries

IDS = {
    "jayasumana2021": [*(f"table{i}" for i in range(1, 13)), "fig1", "fig2", "sec7.4", "sec5.2", "thmE.1"],
    "chen2022": [*(f"table{i}" for i in range(1, 5)), *(f"fig{i}" for i in range(1, 6)), "thm3.1", "prop3.2"],
    "deng2022": ["classic", "mlp-gp", "cnn-gp", "ntk", "lla", "fig6", "cost", "thm1"],
    "masoomi2020": ["exp1", "exp2", "exp4", "thm1", "thm2", "cor2", "claims4-5", "claim6"],
    "spectral2019": ["table1", "fig1a", "fig1b", "fig1c", "fig2a", "fig2b", "fig2c", "fig3a", "fig3b", "fig3c"],
}
CHECKS = {
    *(
        "jayasumana2021/sec5.2",
        "jayasumana2021/thmE.1",
        "chen2022/thm3.1",
        "chen2022/prop3.2",
        "deng2022/cost",
        "deng2022/thm1",
    ),
    *(f"masoomi2020/{name}" for name in ("thm1", "thm2", "cor2", "claims4-5", "claim6")),
}


class Silent:
    def __init__(self):
        self.kept, self.begun, self.results = None, [], []

    def report_plan(self, total, kept):
        self.kept = kept

    def report_start(self, cell):
        self.begun.append(cell)

    def report_end(self, result):
        self.results.append(result)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake_entries.write(tmp_path / "fake")
    monkeypatch.setattr(catalogue, "PUBLISHED", tmp_path / "fake" / "published")
    monkeypatch.setattr(mercer_papers, "__path__", [*mercer_papers.__path__, str(tmp_path / "fake" / "entries")])
    monkeypatch.delenv("MERCER_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    catalogue.entries.cache_clear()
    yield tmp_path
    catalogue.entries.cache_clear()
    for name in [name for name in sys.modules if name.startswith("mercer_papers.fake2000")]:
        del sys.modules[name]


def started(*ids, scale="smoke", **asked):
    return runner.create(runner.Request(ids, scale, **asked))


def bare(results):
    """What must not depend on when and how fast a cell ran."""
    return {r.key: replace(r, seconds=0, cpu_seconds=0, started="") for r in results}


# --- what was published


def test_every_entry_is_listed_as_the_project_names_them():
    found = catalogue.entries()
    assert {e.id for e in found} == {f"{paper}/{name}" for paper, names in IDS.items() for name in names}
    assert {e.id for e in found if e.kind == "check"} == CHECKS
    assert Counter(e.kind for e in found) == {"result": 43, "check": 11}
    assert all(e.built for e in found)


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda e: e.id)
def test_an_entry_says_what_where_and_either_numbers_or_a_claim(entry):
    assert entry.title and entry.source and (entry.numbers or entry.claim)
    assert entry.better in ("", "higher", "lower") and entry.scale in ("smoke", "paper")
    assert len({(n.row, n.column) for n in entry.numbers}) == len(entry.numbers)


def test_published_numbers_are_those_of_the_papers():
    numbers = {(e.id, n.row, n.column): (n.value, n.deviation) for e in catalogue.entries() for n in e.numbers}
    assert numbers["spectral2019/table1", "gamma 1, exact", "CIFAR-10"] == (16680, None)
    assert numbers["chen2022/table3", "usps, R-L-BFGS", "time"] == (14, 1)
    assert ("chen2022/table3", "imdb, L-BFGS", "time") not in numbers  # printed as "underfit"
    assert numbers["jayasumana2021/table4", "QQP F1, SOP", "BERT-Small"] == (85.99, None)
    assert numbers["masoomi2020/exp4", "face, MSE", "CE"] == (3.50, 0.28)
    assert ("masoomi2020/exp4", "face, MSE", "sigma") not in numbers


def test_an_entry_names_the_module_that_runs_it_and_takes_what_entries_share():
    table1, table3 = catalogue.entry("chen2022/table1"), catalogue.entry("chen2022/table3")
    assert table1.module == table3.module == "mercer_papers.chen2022.comparison"
    assert table1.settings == table3.settings and set(table1.doubts) & set(table3.doubts)


def test_select_takes_entries_and_papers_once_in_order():
    chosen = catalogue.select(["spectral2019/fig1a", "spectral2019", "chen2022/fig1"])
    assert [e.id for e in chosen] == ["chen2022/fig1", *(f"spectral2019/{name}" for name in IDS["spectral2019"])]
    assert len(catalogue.select([])) == 54


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("spectral2019/tabel1", "Did you mean spectral2019/table1"),
        ("sec7.4", "Did you mean jayasumana2021/sec7.4?"),
        ("zzz", "`mercer list` shows them all."),
    ],
)
def test_an_unknown_id_is_refused_with_close_ones(name, fix):
    with pytest.raises(ValueError, match=re.escape(f"ID must be an entry or a paper; got {name!r}. {fix}")):
        catalogue.select([name])


def test_built_entries_give_cells_of_their_own_at_every_scale():
    for entry in (e for e in catalogue.entries() if e.built):
        for scale in SCALES if entry.scale != "paper" else ("paper",):
            runner.check_cells(entry, entry.load().cells(entry, scale))


# --- cells and lines


def test_a_key_is_of_all_that_the_result_depends_on():
    cell = Cell("a/b", "row", "column", {"x": 1, "y": 2})
    assert cell.key() == Cell("a/b", "row", "column", {"y": 2, "x": 1}, seeds=5).key()
    others = [replace(cell, seed=1), replace(cell, settings={"x": 2, "y": 2}), replace(cell, data=["mnist"])]
    assert len({cell.key(), *(other.key() for other in others)}) == 4


def test_seeds_are_counted_by_the_entry_unless_asked_otherwise():
    assert [c.seed for c in Cell("a/b", seeds=3).over_seeds()] == [0, 1, 2]
    assert [c.seed for c in Cell("a/b", seeds=3).over_seeds(2)] == [0, 1]
    assert [c.seed for c in Cell("a/b").over_seeds(5)] == [0]  # nothing is random there


@pytest.mark.parametrize(
    ("outcome", "where"),
    [
        (Outcome(float("nan")), "value is nan"),
        (Outcome(1.0, {"loss": float("inf")}), "values['loss'] is inf"),
        (Outcome(curves={"c": {"x": [0.0], "y": [float("nan")]}}), "curves['c'] holds nan"),
        (Outcome(arrays={"map": [[0.0, 1.0], [float("-inf"), 0.0]]}), "arrays['map'] holds -inf"),
        (Outcome(1.0, {"a": 2.0}, {"c": {"x": [0], "y": [1]}}, {"m": [[1]]}), None),
    ],
)
def test_a_non_finite_number_is_found_wherever_it_hides(outcome, where):
    assert non_finite(outcome) == where


def test_a_torn_last_line_is_passed_over_then_cut(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, Result("a/b", "k1", "done", "smoke", value=1.0))
    whole = path.read_bytes()
    append(path, Result("a/b", "k2", "done", "smoke", value=2.0))
    path.write_bytes(path.read_bytes()[:-7])
    assert [r.key for r in read_results(tmp_path)] == ["k1"]
    mend_lines(path)
    assert path.read_bytes() == whole
    append(path, Result("a/b", "k2", "done", "smoke", value=2.0))
    assert [r.value for r in read_results(tmp_path)] == [1.0, 2.0]


def test_the_later_of_two_lines_holds_and_cells_speak_for_their_entry(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, Result("a/b", "a/b", "not_built", "smoke"))
    append(path, Result("a/c", "a/c", "not_built", "smoke"))
    append(path, Result("a/b", "k1", "failed", "smoke", error="ValueError: no"))
    append(path, Result("a/b", "k1", "done", "smoke", value=3.0))
    assert [(r.key, r.status) for r in read_results(tmp_path)] == [("a/c", "not_built"), ("k1", "done")]


@pytest.mark.parametrize(
    ("change", "need"),
    [
        ({"value": "1"}, "a finite number or null at value; got '1'"),
        ({"value": 1e999}, "a finite number or null at value; got inf"),
        ({"seed": 0.5}, "a whole number at seed"),
        ({"values": [1.0]}, "an object at values"),
        ({"curves": {"c": {"x": ["a"]}}}, "a finite number at curves.c.x[0]"),
        ({"status": "perfect"}, "one of done, failed"),
        ({"data": "mnist"}, "a list at data"),
    ],
)
def test_a_line_that_was_edited_is_refused_by_its_number(tmp_path, change, need):
    path = tmp_path / "results.jsonl"
    append(path, Result("a/b", "k1", "done", "smoke"))
    edited = {"entry": "a/b", "key": "k2", "status": "done", "scale": "smoke", **change}
    path.write_text(path.read_text() + json.dumps(edited) + "\n")
    with pytest.raises(ValueError, match=re.escape(need)) as refused:
        read_results(tmp_path)
    assert "results.jsonl line 2" in str(refused.value)


@pytest.mark.parametrize(
    "document", [[], {"sessions": {}}, {"asked": {"ids": "all"}}, {"planned": {"a/b": 1.5}}, {"schema": "1"}]
)
def test_a_run_json_that_was_edited_is_refused(tmp_path, document):
    (tmp_path / "run.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"run\.json must hold"):
        read_run(tmp_path)


def test_a_line_is_strict_json():
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        Result("a/b", "k", "done", "smoke", value=float("nan")).line()


def test_a_full_disk_is_named_and_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    append(path, Result("a/b", "k1", "done", "smoke"))
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[: len(line) // 2]))
    with pytest.raises(OSError, match=r"results.jsonl must take one more line; got .*lines before are intact"):
        append(path, Result("a/b", "k2", "done", "smoke"))
    assert path.read_bytes() == before


def test_seeds_are_put_together_by_row_and_column():
    def line(seed, value, column="a", **more):
        return Result("p/e", f"{seed}{column}", "done", "smoke", "r", column, seed, value, seconds=1.0, **more)

    row = replace(line(0, None, ""), values={"b": 5.0, "c": 6.0})
    failed = replace(line(2, 100.0), status="failed")
    found = {s.column: s for s in summarise([line(0, 1.0, values={"detail": 9.0}), line(1, 4.0), failed, row])}
    assert set(found) == {"a", "b", "c"}
    assert (found["a"].mean, found["a"].seeds, found["a"].seconds) == (2.5, 2, 2.0)
    assert found["a"].deviation == pytest.approx(2.1213203435596424)  # sample deviation of 1 and 4
    assert found["b"].deviation is None


# --- the runner


def test_every_fate_of_an_entry_is_a_line(fake):
    watcher = Silent()
    results = runner.run(
        started(*(f"fake2000/{n}" for n in ("diverge-1.2", "needs-data", "thmA", "huge", "later"))), watcher
    )
    fates = {(r.entry.split("/")[1], r.row): (r.status, r.error or r.note) for r in results}
    assert fates["diverge-1.2", "raises"] == ("failed", "FloatingPointError: loss became NaN at step 12")
    assert fates["diverge-1.2", "returns"][1].endswith("every number of an outcome must be finite; value is nan.")
    assert fates["diverge-1.2", "curve"][1].endswith("curves['loss'] holds inf.")
    assert fates["diverge-1.2", "fine"] == ("done", "")
    assert fates["needs-data", "with"][0] == "missing" and "MERCER_DATA" in fates["needs-data", "with"][1]
    assert fates["needs-data", "without"][0] == "done"
    assert fates["thmA", ""] == ("done", "counter-example found")
    assert fates["huge", ""] == ("paper_scale_only", "Runs at --scale paper only.")
    assert fates["later", ""] == ("not_built", "Not built yet.")
    assert next(r for r in results if r.entry == "fake2000/thmA").passed is False
    assert len(watcher.results) == len(watcher.begun) == 7


def test_a_cell_is_repeatable_and_leaves_the_global_generator_alone(fake):
    import torch

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = runner.run(started("fake2000/count"), Silent())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = runner.run(started("fake2000/count"), Silent())
    assert bare(first) == bare(second)
    assert len({r.value for r in first}) == len(first) == 8  # 2 rows, 2 columns, 2 seeds
    assert first[0].curves == {"loss": {"x": [0, 1], "y": [1.0, 0.5]}}


def test_a_process_that_starts_reads_its_share_of_threads_and_the_caller_keeps_their_own(monkeypatch):
    """The pools of numpy's and scipy's BLAS, not only torch's: they read these names as they load."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    read = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])"
    with execution._pools_of(1):
        assert subprocess.run([sys.executable, "-c", read], capture_output=True, text=True).stdout == "1 1\n"
    assert os.environ["OMP_NUM_THREADS"] == "7" and "OPENBLAS_NUM_THREADS" not in os.environ


def test_two_processes_give_what_one_gives(fake):
    script = fake / "fake" / "fake_mercer.py"
    one = runner.run(started("fake2000/count"), Silent())
    command = [sys.executable, str(script), "reproduce", "fake2000/count", "fake2000/crash"]
    done = subprocess.run([*command, "--scale", "smoke", "--jobs", "2", "-o", "two"], capture_output=True, text=True)
    two = read_results(Path("two"))
    assert {r.status for r in one} == {"done"}
    assert bare(one) == bare(r for r in two if r.entry == "fake2000/count")
    crashed = {r.row: (r.status, r.error) for r in two if r.entry == "fake2000/crash"}
    assert crashed["dies"] == ("failed", "RuntimeError: the worker process died by signal 9; was it out of memory?")
    assert crashed["lives"] == ("done", "")
    assert done.returncode == 1, done.stderr


def test_a_setting_of_the_request_takes_the_place_of_the_cells_own(fake):
    folder = started("fake2000/count", settings={"i": 10})
    results = runner.run(folder, Silent())
    assert {r.settings["i"] for r in results} == {10} and all(r.value >= 10 for r in results)
    assert runner.read_request(folder).settings == {"i": 10}
    assert [r.seed for r in results] == [0] * 4 + [1] * 4  # a run cut short has every row once


def test_a_setting_that_no_cell_has_is_refused(fake):
    with pytest.raises(ValueError, match="a setting's name must be one of 'i'; got 'rows'"):
        runner.Request(("fake2000/count",), "smoke", settings={"rows": 5})


def test_only_some_cells_of_an_entry_may_run(fake):
    folder = started("fake2000/count", only=("r1",))
    assert {r.row for r in runner.run(folder, Silent())} == {"r1"} and runner.read_request(folder).only == ("r1",)
    one = runner.run(started("fake2000/count", only=("r1 | a",)), Silent())
    assert {(r.row, r.column) for r in one} == {("r1", "a")}
    with pytest.raises(ValueError, match=r"only must be a part of a cell's `row \| column`; got 'r9'"):
        runner.Request(("fake2000/count",), "smoke", only=("r9",))


def test_no_download_leaves_out_what_needs_data_and_says_so(fake):
    results = runner.run(started("fake2000/needs-data", download=False), Silent())
    assert {r.row: r.status for r in results} == {"with": "missing", "without": "done"}
    assert next(r for r in results if r.row == "with").note == "Left out by --bundled: needs mnist."


def test_resuming_keeps_what_is_done_and_tries_the_rest_again(fake):
    folder = started("fake2000/diverge-1.2")
    runner.run(folder, Silent())
    again = Silent()
    runner.run(folder, again)
    assert again.kept == 1 and sorted(cell.row for cell in again.begun) == ["curve", "raises", "returns"]
    assert len(read_results(folder)) == 4
    assert len(read_run(folder)["sessions"]) == 2


def test_a_broken_entry_fails_alone(fake):
    module = fake / "fake" / "entries" / "fake2000" / "thma.py"
    module.write_text("import nothing_of_this_name\n")
    results = runner.run(started("fake2000/thmA", "fake2000/needs-data"), Silent())
    broken = next(r for r in results if r.entry == "fake2000/thmA")
    assert (broken.status, broken.error) == ("failed", "ModuleNotFoundError: No module named 'nothing_of_this_name'")
    assert sum(r.status == "done" for r in results) == 1


def test_a_run_says_with_what_and_where_it_was_made_but_not_on_whose_machine(fake):
    folder = started("fake2000/thmA")
    runner.run(folder, Silent())
    document = read_run(folder)
    session = document["sessions"][0]
    asked = {"ids": ["fake2000/thmA"], "scale": "smoke", "seeds": None, "download": True, "settings": {}, "only": []}
    asked["device"] = "cpu"
    assert document["asked"] == asked
    assert session["versions"].keys() >= {"python", "mercer", "torch", "numpy"}
    assert session["machine"]["cores"] >= 1 and session["machine"]["cpu"]
    assert os.uname().nodename not in json.dumps(document)


def test_two_runs_into_one_folder_do_not_mix(fake):
    folder = started("fake2000/thmA")
    with (
        lock(folder),
        pytest.raises(RuntimeError, match="must be used by one run at a time"),
    ):
        runner.run(folder, Silent())
    with pytest.raises(FileExistsError, match=f"must be new or empty; got files in it. Use --resume {folder}"):
        runner.create(runner.Request(("fake2000",)), folder)
    assert started("fake2000/thmA") != folder


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "must be JSON"),
        ("[]", "must hold an object; got []"),
        ('{"schema": 2}', "must be in 1..1; got 2"),
        ('{"schema": 1, "asked": {"ids": [], "scale": "tiny"}}', "scale must be one of 'smoke', 'small', 'paper'"),
        ('{"schema": 1, "asked": {"no": 1}}', "must say what was asked"),
    ],
)
def test_a_damaged_run_file_is_refused(fake, text, sentence):
    Path("run").mkdir()
    Path("run/run.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        runner.run(Path("run"), Silent())


def test_a_folder_that_is_no_run_is_refused(fake):
    with pytest.raises(FileNotFoundError, match="no folder of that name"):
        runner.run(Path("nowhere"), Silent())
    with pytest.raises(FileNotFoundError, match=r"not a run folder, for it has no run.json; got .*fake"):
        runner.run(fake, Silent())


def test_a_folder_that_cannot_be_made_is_named(fake):
    Path("file").write_text("")
    with pytest.raises(OSError, match="file/run must be a folder one can write to"):
        runner.create(runner.Request(("fake2000",)), Path("file/run"))


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ([], "cells(scale) must give at least one cell; got none."),
        ([Cell("fake2000/count")], "a cell must name its own entry; got 'fake2000/count'."),
        ([Cell("fake2000/thmA"), Cell("fake2000/thmA")], "cells must differ from each other; got two alike."),
    ],
)
def test_what_an_entry_offers_is_checked(fake, cells, sentence):
    with pytest.raises(ValueError, match=re.escape(f"fake2000/thmA: {sentence}")):
        runner.check_cells(catalogue.entry("fake2000/thmA"), cells)


# --- longer runs, kept with the package


def test_a_kept_run_is_found_by_its_entry_with_its_command(fake, monkeypatch, tmp_path):
    folder = started("fake2000/count", settings={"i": 3}, only=("r1",), seeds=1)
    results = runner.run(folder, Silent())
    kept = tmp_path / "kept" / "longer"
    kept.mkdir(parents=True)
    for name in ("run.json", "results.jsonl"):
        (kept / name).write_bytes((folder / name).read_bytes())
    monkeypatch.setattr(recorded_runs, "RECORDED", tmp_path / "kept")
    (found,) = find_recorded("fake2000/count")
    assert list(found.results) == results and found.machine["cores"] >= 1
    assert found.command == "mercer reproduce fake2000/count --scale smoke --set i=3 --only r1 --seeds 1"
    assert find_recorded("fake2000/thmA") == []


def test_the_command_of_a_kept_run_says_all_rows_as_the_command_line_reads_it():
    done = Result("fake2000/count", "k", "done", "small", settings={"rows": None, "set": "usps"})
    asked = {"scale": "small", "settings": {"rows": None, "set": "usps"}}
    command = recorded_runs.Recorded(asked, {}, 1, (done,)).command
    assert command == "mercer reproduce fake2000/count --scale small --set rows=null --set set=usps"


def test_kept_runs_are_of_entries_that_exist():
    known = {e.id for e in catalogue.entries()}
    for run in recorded_runs.RECORDED.glob("*"):
        results = read_results(run)
        assert results == recorded_runs.read_recorded(run)[1]  # which takes each line as it is
        assert results and {r.entry for r in results} <= known and read_run(run)["sessions"]


def test_every_kept_run_says_how_far_it_repeats():
    for run in recorded_runs.RECORDED.glob("*"):
        repeat = recorded_runs.find_repeat(run.name)
        kept = [line for line in read_results(run) if line.status == "done"]
        # the outcome that the pages print follows from the numbers of the repeated cells
        assert recorded_runs.compare_repeat(kept, repeat["lines"]).items() <= repeat.items(), run.name


def test_a_repeated_cell_is_equal_within_the_seeds_or_apart():
    kept = [Result("fake2000/count", f"k{seed}", "done", "small", seed=seed, value=1.0 + seed) for seed in range(3)]
    words = {1.0: ("equal", "within"), 4.0: ("within", "equal"), 400.0: ("cells", "equal")}
    for again, (word, other) in words.items():
        line = {"key": "k0", "status": "done", "settings": [], "again": {"": again}}
        outcome = recorded_runs.compare_repeat(kept, [line])
        assert outcome[word] == 1 and outcome[other] == 0
        assert len(outcome["apart"]) == (again == 400.0)
    failed = {"key": "k0", "status": "failed", "settings": [], "again": {}}
    assert recorded_runs.compare_repeat(kept, [failed])["apart"] == ["fake2000/count:  | "]


def test_a_setting_that_came_later_with_the_old_meaning_is_no_change():
    kept = Result("chen2022/table1", "0" * 16, "done", "small", "SST-2 accuracy, LIN", settings={"rows": 10})
    cell = Cell("chen2022/table1", kept.row, settings={"rows": 10, "rates": [], "schedules": ["cosine"]})
    assert recorded_runs.find_changes(kept, cell) == []
    named = {"rows": 10, "task": "SST-2", "score": "accuracy", "head": "LIN"}
    assert recorded_runs.find_changes(kept, replace(cell, settings=named)) == []
    other = {"rows": 20, "rates": [0.1], "schedules": ["cosine", "steps"], "head": "Softmax", "order": 3}
    assert recorded_runs.find_changes(kept, replace(cell, settings=other, data=["mnist"])) == [
        "data", "head", "order", "rates", "rows", "schedules",
    ]  # fmt: skip
    shown = replace(kept, settings={"shows": ["time"]})
    assert recorded_runs.find_changes(shown, replace(cell, settings={"shows": ["time", "gap"]})) == []
    assert recorded_runs.find_changes(shown, replace(cell, settings={"shows": ["gap"]})) == ["shows"]


def test_every_kept_run_has_a_cell_of_today_with_its_settings():
    for folder in sorted(recorded_runs.RECORDED.glob("*")):
        for entry in dict.fromkeys(line.entry for line in read_results(folder)):
            (run,) = (run for run in recorded_runs.find_recorded(entry) if run.folder == folder.name)
            asked = reproduce.make_context("reproduce", shlex.split(run.command)[2:]).params
            settings = parse_settings(asked["changes"])
            cells = runner.plan(runner.Request((entry,), asked["scale"], 1, settings=settings, only=asked["only"]))[1]
            for line in run.results:
                alike = [cell for cell in cells if (cell.row, cell.column) == (line.row, line.column)]
                assert [] in [recorded_runs.find_changes(line, cell) for cell in alike], (folder.name, line.row)
