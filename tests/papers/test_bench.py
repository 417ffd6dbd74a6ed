"""The bench: contenders in turns, ratios, goals, absent peers, peak memory of torch's own buffers."""

import importlib
import json
import sys
import textwrap
import time
from dataclasses import replace

import pytest
import torch

from mercer.cli.process import threads_set
from mercer_papers import bench
from mercer_papers.bench.compare import compare_scores, run_case
from mercer_papers.bench.memory import run_alone
from mercer_papers.bench.record import draw, speeds
from mercer_papers.bench.timing import Contender, Sample, time_in_turns

SAMPLE = """
    import torch
    from mercer_papers.bench import Case, Peer
    from mercer_papers.data import MissingData

    def numbers():
        return torch.arange(1.0, 1001.0, dtype=torch.float64)

    def large(data):
        return torch.ones(64 * 2**17, dtype=torch.float64).sum() * 0 + data.sum()  # 64 MiB

    def refuses(data):
        raise MemoryError("too large a Gram")

    def nothing():
        raise MissingData("mnist is not there: set MERCER_DATA.")

    CASES = [
        Case(
            "sum of 1000",
            setup=numbers,
            ours=lambda data: data.sum(),
            peers={
                "large": Peer(large, needs=("torch",), goals={"memory": 2.0, "cpu": 1.0}),
                "not installed": Peer(large, needs=("a_module_that_is_not_there",)),
                "refuses": Peer(refuses),
            },
            accuracy=lambda data, answer: abs(float(answer) - 500500.0),
            accuracy_name="error",
            limits={"accuracy": 1e-9, "memory": 1024.0},
        ),
        Case("no data", setup=nothing, ours=lambda data: data, peers={"large": Peer(large)}),
        Case(
            "one round",
            setup=numbers,
            ours=large,
            peers={"refuses": Peer(refuses)},
            accuracy=lambda data, answer: float(answer),
            limits={"memory": 1.0},
            repeats=1,
        ),
        Case("no data, one round", setup=nothing, ours=lambda data: data, repeats=1),
    ]
"""


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    (folder / "bench_sample.py").write_text(textwrap.dedent(SAMPLE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("bench_sample")
    sys.modules.pop("bench_sample", None)


@pytest.fixture(scope="module")
def lines(sample):
    return {line.who: line for line in run_case(sample.CASES[0], "bench_sample", repeats=3, threads=1, memory=False)}


def test_contenders_take_turns_and_each_round_begins_with_another():
    order = []

    def work(name):
        def do(data):
            order.append(name)
            time.sleep(0.06)  # longer than the shortest sample, so that a round is one call

        return do

    contenders = [Contender(name, bench.Peer(work(name))) for name in "abc"]
    time_in_turns(contenders, None, repeats=3, warm=True)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_a_peer_that_is_run_once_is_neither_warmed_up_nor_repeated():
    calls = {"a": 0, "b": 0}

    def work(name):
        def do(data):
            calls[name] += 1
            time.sleep(0.06)

        return do

    slow = Contender("b", bench.Peer(work("b"), once=True))
    samples = time_in_turns([Contender("a", bench.Peer(work("a"))), slow], None, repeats=3, warm=True)
    assert calls == {"a": 4, "b": 1}
    assert samples["b"].ratio(samples["a"], "wall") > 0  # of the one round that both were in


def test_a_short_work_is_repeated_until_the_clock_can_tell():
    calls = []
    samples = time_in_turns([Contender("a", bench.Peer(calls.append))], 0, repeats=1, warm=True)
    assert len(calls) > 100
    assert samples["a"].cpu[0] < 1e-3


def test_a_ratio_is_the_median_over_rounds_of_theirs_over_ours():
    ours = Sample(cpu=[1.0, 2.0, 4.0], wall=[1.0, 1.0, 1.0])
    theirs = Sample(cpu=[3.0, 8.0, 20.0], wall=[2.0, 9.0, 3.0])
    assert theirs.ratio(ours, "cpu") == 4.0
    assert theirs.ratio(ours, "wall") == 3.0


def test_ours_is_scored_against_its_limits(lines):
    ours = lines["mercer"]
    assert ours.state == "measured"
    assert ours.accuracy == 0.0 and ours.met["accuracy"] is True
    assert ours.cpu > 0 and ours.wall > 0 and ours.repeats == 3 and ours.threads == 1
    assert "memory" not in ours.met  # not measured: neither met nor missed


def test_a_peer_has_ratios_goals_and_a_version(lines):
    peer = lines["large"]
    assert peer.ratios["cpu"] > 1 and peer.met["cpu"] is True
    assert peer.version == torch.__version__.split("+")[0] or peer.version == torch.__version__


def test_the_ratio_of_scores_is_turned_so_that_more_is_better_for_us():
    assert compare_scores(0.2, 0.1, "lower") == 2.0
    assert compare_scores(0.5, 1.0, "higher") == 2.0
    assert compare_scores(0.0, 0.0, "lower") is None
    assert compare_scores(None, 0.1, "lower") is None


def test_a_peer_that_is_absent_is_shown_as_absent(lines):
    assert lines["not installed"].state == "absent"
    assert "a_module_that_is_not_there cannot be imported" in lines["not installed"].why


def test_a_peer_that_fails_is_a_result(lines):
    assert lines["refuses"].state == "failed"
    assert lines["refuses"].why == "MemoryError: too large a Gram"
    assert lines["refuses"].cpu is None


def test_an_accuracy_that_is_not_a_number_is_said(sample):
    case = replace(sample.CASES[0], accuracy=lambda data, answer: float("nan"), peers={})
    (line,) = run_case(case, "bench_sample", repeats=1, threads=1, memory=False)
    assert (line.state, line.accuracy, line.why) == ("measured", None, "error is nan")
    assert "accuracy" not in line.met


def test_missing_data_is_said_on_every_line(sample):
    found = run_case(sample.CASES[1], "bench_sample", repeats=1, threads=1, memory=False)
    assert [(line.who, line.state) for line in found] == [("mercer", "missing"), ("large", "missing")]
    assert "set MERCER_DATA" in found[0].why


def test_a_case_of_one_round_takes_time_memory_and_score_in_one_process(sample):
    ours, refuses = run_case(sample.CASES[2], "bench_sample", repeats=5, threads=1, memory=True)
    assert (ours.state, ours.accuracy, ours.repeats) == ("measured", 500500.0, 1)
    assert 60 < ours.memory < 100 and ours.met == {"memory": False} and ours.cpu > 0
    assert (refuses.state, refuses.why) == ("failed", "MemoryError: too large a Gram")
    (missing,) = run_case(sample.CASES[3], "bench_sample", repeats=5, threads=1, memory=True)
    assert missing.state == "missing" and "set MERCER_DATA" in missing.why


def test_a_case_may_have_threads_of_its_own(sample):
    case = replace(sample.CASES[0], ours=lambda data: torch.get_num_threads(), peers={}, threads=2, accuracy=None)
    before = torch.get_num_threads()
    (line,) = run_case(case, "bench_sample", repeats=1, threads=1, memory=False)
    assert line.threads == 2 and torch.get_num_threads() == before


def test_peak_memory_sees_torch_buffers(sample):
    small = run_alone("bench_sample", "sum of 1000", "mercer", threads=1).peak
    large = run_alone("bench_sample", "sum of 1000", "large", threads=1).peak
    assert small < 16
    assert 60 < large < 100


def test_peak_memory_of_a_failing_child_is_none(sample):
    assert run_alone("bench_sample", "sum of 1000", "refuses", threads=1).peak is None


def test_the_steps_of_the_heads_run_on_another_device(sample):
    head = importlib.import_module("mercer_papers.bench.head")
    case = next(case for case in head.CASES if case.move is not None)
    lines = run_case(case, "mercer_papers.bench.head", repeats=1, threads=1, memory=True, device="meta")
    assert {line.state for line in lines} == {"measured"} and {line.device for line in lines} == {"meta"}
    on_cpu = run_case(sample.CASES[0], sample.__name__, repeats=1, threads=1, memory=False, device="meta")
    assert {line.state for line in on_cpu} == {"missing"} and "on the CPU alone, not on meta" in on_cpu[0].why


def test_threads_are_set_and_given_back():
    before = torch.get_num_threads()
    with threads_set(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"areas": ["no_such_area"]}, "bench: area must be one of .*; got 'no_such_area'"),
        ({"repeats": 0}, "bench: repeats must be a whole number of at least 1; got 0"),
        ({"threads": 0}, "bench: threads must be a whole number of at least 1; got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        bench.run(**arguments)


@pytest.mark.parametrize("area", bench.area_names())
def test_every_area_names_its_cases_once(area):
    names = [case.name for case in importlib.import_module(f"mercer_papers.bench.{area}").CASES]
    assert names and len(set(names)) == len(names)


# --- the record of a run

SESSION = {
    "machine": {"cpu": "a processor", "cores": 2, "memory_gib": 8.0, "system": "Linux x86_64", "gpu": ""},
    "versions": {"torch": "2.6", "mercer": "0.1"},
}
OPTIONS = {"repeats": 1, "threads": 1}


def measured(case, state="measured", **more):
    return bench.Line("maps", case, "mercer", state, cpu=1.0, wall=1.0, **more)


@pytest.fixture
def area(monkeypatch, tmp_path):
    """An area of two cases; the second is measured only while the file ``there`` is."""
    calls = []

    def run_one(case, module, **options):
        calls.append(case.name)
        state = "missing" if case.name == "b" and not (tmp_path / "there").exists() else "measured"
        return [measured(case.name, state)]

    module = type(sys)("mercer_papers.bench.maps")
    module.CASES = [bench.Case(name, setup=dict, ours=dict) for name in "ab"]
    monkeypatch.setitem(sys.modules, "mercer_papers.bench.maps", module)
    monkeypatch.setattr("mercer_papers.bench.compare.area_names", lambda: ["maps"])
    monkeypatch.setattr("mercer_papers.bench.compare.run_case", run_one)
    return calls


def test_a_run_goes_on_where_it_stopped_and_tries_missing_data_again(area, tmp_path):
    folder = tmp_path / "run"
    bench.run(record=bench.Record(folder, OPTIONS, SESSION), **OPTIONS)
    assert area == ["a", "b"]
    with (folder / "lines.jsonl").open("ab") as file:
        file.write(b'{"area": "maps", "case": "b", "li')  # a kill in the middle of a row
    (tmp_path / "there").touch()
    lines = bench.run(record=bench.Record(folder, OPTIONS, SESSION), **OPTIONS)
    assert area == ["a", "b", "b"] and [line.state for line in lines] == ["measured", "measured"]
    assert bench.run(record=bench.Record(folder, OPTIONS, SESSION), **OPTIONS) == lines
    assert area == ["a", "b", "b"]


def test_lines_of_other_options_are_not_mixed(area, tmp_path):
    bench.Record(tmp_path, OPTIONS, SESSION)
    with pytest.raises(ValueError, match=r"must hold a run with {'repeats': 3, 'threads': 1}; got {'repeats': 1"):
        bench.Record(tmp_path, {"repeats": 3, "threads": 1}, SESSION)


def test_the_document_says_where_it_was_measured(area, tmp_path):
    record = bench.Record(tmp_path / "run", OPTIONS, SESSION)
    path = record.finish(bench.run(record=record, **OPTIONS))
    document = json.loads(path.read_text())
    assert document["options"] == OPTIONS and document["sessions"] == [SESSION]
    assert [line["case"] for line in document["lines"]] == ["a", "b"]
    picture = (tmp_path / "run" / "bench.svg").read_text()
    assert "a processor, 2 cores, 8.0 GiB, Linux x86_64, torch 2.6" in picture


def test_the_picture_has_every_peer_whose_time_or_memory_is_compared():
    ours = measured("sum", memory=512.0, goals={"memory": 1024.0, "accuracy": 1.0}, met={"memory": True})
    peer = bench.Line(
        "maps", "sum", "other", "measured", ratios={"cpu": 0.5, "memory": 8.0}, goals={"cpu": 2.0}, met={"cpu": False}
    )
    absent = bench.Line("maps", "sum", "gone", "absent", goals={"cpu": 2.0})
    found = speeds([ours, peer, absent])
    assert [(one.label, one.ratio, one.cheaper) for one in found] == [("sum · CPU of other", 0.5, False)]
    text = draw([ours, peer, absent])
    assert "sum · CPU of other" in text and "0.50x" in text and "prefers-color-scheme: dark" in text
    assert draw([absent]).startswith("<svg")
