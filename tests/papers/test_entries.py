"""Every entry that is built runs at smoke scale, meets the published numbers by name and can be drawn."""

from dataclasses import replace

import pytest
import torch

from mercer_papers.catalogue import entries
from mercer_papers.cells import SCALES
from mercer_papers.execution import execute, missing

BUILT = [entry for entry in entries() if entry.built and entry.scale != "paper"]
ONE_A_MODULE = list({entry.module: entry for entry in BUILT}.values())


def _quick(entry):
    """The cells of smoke scale that need no data; where every cell does, those whose data is here."""
    cells = entry.load().cells(entry, "smoke")
    return [cell for cell in cells if not cell.data] or [cell for cell in cells if not missing(cell.data)]


@pytest.mark.parametrize("entry", BUILT, ids=lambda entry: entry.id)
def test_an_entry_runs_at_smoke_scale(entry):
    runnable = _quick(entry)
    if not runnable:
        pytest.skip(f"MERCER_DATA lacks {', '.join(entry.needs)}")
    results = [execute(cell, "smoke") for cell in runnable]
    absent = [result for result in results if result.status == "missing"]  # of an optional package: said, not failed
    assert all("pip install mercer[" in result.note for result in absent)
    results = [result for result in results if result not in absent]
    assert {result.status: result.error for result in results} == {"done": ""}
    if entry.kind == "check":
        assert all(result.passed is not None for result in results)
    theirs = {(number.row, column) for number in entry.numbers for column in (number.column, "")}  # "": many columns
    everywhere = [cell for scale in SCALES for cell in entry.load().cells(entry, scale)]
    ours = {(cell.row, cell.column) for cell in everywhere}
    assert not theirs or ours & theirs, f"no row and column is spelled as published: {sorted(ours)[:5]}"
    draw = getattr(entry.load(), "draw", None)
    picture = draw(results) if draw is not None else None
    assert picture is None or picture.axes


def test_what_an_entry_needs_is_what_its_cells_ask_for():
    for entry in BUILT:
        asked = {tuple(cell.data) for cell in entry.load().cells(entry, "small")}
        needs = () if () in asked else tuple(sorted(name for (name,) in asked))
        assert entry.needs == needs, entry.id


@pytest.mark.parametrize("entry", ONE_A_MODULE, ids=lambda entry: entry.id)
def test_a_cell_depends_on_nothing_but_itself(entry):
    runnable = _quick(entry)
    if not runnable:
        pytest.skip("MERCER_DATA lacks this entry's data")
    first, again = execute(runnable[0], "smoke"), execute(runnable[0], "smoke")
    assert (first.value, first.curves, first.passed) == (again.value, again.curves, again.passed)


# Two steps of a few rows: the networks and kernels are the paper's own.
TINY = {
    "rows": 24, "test_rows": 16, "epochs": 1, "batch": 12, "steps": 2, "tries": 1, "samples": 16, "units": 20, "top": 5,
    "width": 50, "network steps": 2, "kept": 2, "bayes_samples": 100, "words": 50, "length": 20, "m": 50, "restarts": 1,
    "directions": 4, "function steps": 2, "rates": [], "most_epochs": 0, "starts": 1, "nystrom_rows": 12,
}  # fmt: skip
PAPER = [
    "chen2022/table1", "chen2022/table3", "chen2022/table4", "chen2022/fig1", "chen2022/fig2", "chen2022/fig3",
    "chen2022/fig4", "chen2022/fig5", "deng2022/classic", "deng2022/mlp-gp", "deng2022/ntk", "deng2022/lla",
    "deng2022/cost", "deng2022/thm1", "jayasumana2021/table1", "jayasumana2021/table3",
    "jayasumana2021/table6", "jayasumana2021/table7", "jayasumana2021/table8", "jayasumana2021/table10",
    "jayasumana2021/table11", "jayasumana2021/table12", "jayasumana2021/fig1", "jayasumana2021/fig2",
    "jayasumana2021/sec7.4", "masoomi2020/exp1", "masoomi2020/exp4", "spectral2019/table1", "spectral2019/fig1a",
]  # fmt: skip


def _tiny(cell):
    """The cell at a size that runs at once; pictures are made up."""
    settings = {name: TINY.get(name, value) for name, value in cell.settings.items()}
    made_up = {"set": "synthetic", "classes": 10} if "head" in settings and "classes" in settings else {}
    return replace(cell, settings={**settings, **made_up}, data=() if made_up else cell.data)


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_scale_starts(name):
    entry = next(entry for entry in BUILT if entry.id == name)
    cells = [_tiny(cell) for cell in entry.load().cells(entry, "paper")]
    result = execute(next(cell for cell in cells if not cell.data), "paper")
    assert (result.status, result.error) == ("done", "")


TRAINS = ["chen2022/table4", "chen2022/fig1", "deng2022/classic", "deng2022/mlp-gp", "deng2022/ntk", "deng2022/lla",
          "deng2022/cost", "jayasumana2021/table1", "jayasumana2021/table2", "jayasumana2021/table3",
          "jayasumana2021/table4", "jayasumana2021/table5", "jayasumana2021/table9", "masoomi2020/exp4",
          "spectral2019/fig1a"]  # fmt: skip


@pytest.mark.parametrize("name", TRAINS)
def test_what_trains_takes_its_rows_to_the_device(name, monkeypatch):
    """No second device is at hand: what is looked for is that rows are sent to the one that was named."""
    asked = []
    own = torch.Tensor.to

    def seen(tensor, *args, **options):
        asked.extend([*args, *options.values()])
        return own(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", seen)
    entry = next(entry for entry in BUILT if entry.id == name)
    cells = _quick(entry)
    results = [execute(replace(cell, device="cpu:0"), "smoke") for cell in (cells[0], cells[-1])]  # some rows train
    assert {result.status for result in results} == {"done"} and "cpu:0" in [str(each) for each in asked]
