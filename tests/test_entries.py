"""Every entry that is built runs at smoke scale, meets the published numbers by name and can be drawn."""

import pytest

from mercer.experiments import SCALES, entries
from mercer.experiments.execution import execute, missing

BUILT = [entry for entry in entries() if entry.built and entry.scale != "paper"]


@pytest.mark.skipif(not BUILT, reason="no entry is built yet")
@pytest.mark.parametrize("entry", BUILT, ids=lambda entry: entry.id)
def test_an_entry_runs_at_smoke_scale(entry):
    cells = entry.load().cells(entry, "smoke")
    runnable = [cell for cell in cells if not missing(cell.data)]
    if not runnable:
        pytest.skip(f"MERCER_DATA lacks {', '.join(sorted({name for cell in cells for name in cell.data}))}")
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
    assert picture is None or type(picture).__name__ == "Figure"


def test_what_an_entry_needs_is_what_its_cells_ask_for():
    for entry in BUILT:
        asked = {tuple(cell.data) for cell in entry.load().cells(entry, "small")}
        needs = () if () in asked else tuple(sorted(name for (name,) in asked))
        assert entry.needs == needs, entry.id


@pytest.mark.skipif(not BUILT, reason="no entry is built yet")
@pytest.mark.parametrize("entry", BUILT, ids=lambda entry: entry.id)
def test_a_cell_depends_on_nothing_but_itself(entry):
    runnable = [cell for cell in entry.load().cells(entry, "smoke") if not missing(cell.data)]
    if not runnable:
        pytest.skip("MERCER_DATA lacks this entry's data")
    first, again = execute(runnable[0], "smoke"), execute(runnable[0], "smoke")
    assert (first.value, first.curves, first.passed) == (again.value, again.curves, again.passed)
