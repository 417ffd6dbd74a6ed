"""Every entry of masoomi2020 runs at smoke scale, and its checks hold there."""

import dataclasses

import pytest

from mercer.experiments import catalogue
from mercer.experiments.cells import Outcome, non_finite
from mercer.experiments.results import Result

ENTRIES = [entry for entry in catalogue.entries() if entry.paper == "masoomi2020"]
COLUMNS = {"L", "train", "test", "time", "H", "MSE", "CE", "C", "T"}


def results(entry):
    module = entry.load()
    for cell in module.cells(entry, "smoke"):
        outcome = module.run(cell)
        assert isinstance(outcome, Outcome) and non_finite(outcome) is None, cell
        yield Result(
            entry=cell.entry, key=cell.key(), status="done", scale="smoke", row=cell.row, **dataclasses.asdict(outcome)
        )


def test_all_eight_are_built():
    assert len(ENTRIES) == 8 and all(entry.built for entry in ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id.split("/")[1])
def test_entry_runs(entry):
    done = list(results(entry))
    if entry.id.endswith("exp4"):
        assert all(set(result.values) >= COLUMNS for result in done)
        deceived = next(result for result in done if result.row == "random, W_s")
        assert deceived.values["train"] == 1.0 and deceived.values["H"] >= 0.99
    if entry.kind == "check":
        assert all(result.passed for result in done), [result.note for result in done]
    module = entry.load()
    if hasattr(module, "draw"):
        assert module.draw(done).axes


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_cells_are_spelled_as_published(scale):
    entry = catalogue.entry("masoomi2020/exp4")
    published = {number.row for number in entry.numbers}
    ours = {cell.row for cell in entry.load().cells(entry, scale)}
    assert {row for row in ours if "leave-one-out" not in row} <= published
    if scale != "smoke":
        assert published <= ours
