"""Every entry of masoomi2020 runs at smoke scale, and its checks hold there."""

import dataclasses

import pytest
import reference_masoomi2020 as literal
import torch

from mercer.layerwise import dependence as dep
from mercer_papers import catalogue
from mercer_papers.cells import Outcome, non_finite
from mercer_papers.masoomi2020 import solved
from mercer_papers.masoomi2020.solved import fold
from mercer_papers.masoomi2020.theory import implicit_penalty
from mercer_papers.results import Result

ENTRIES = [entry for entry in catalogue.entries() if entry.paper == "masoomi2020"]
C = 3
FALSE = {"masoomi2020/claim6": "Eq. 11 is not Eq. 1"}  # claims of the poster that do not hold
COLUMNS = {"L", "train", "test", "time", "H", "MSE", "CE", "C", "T"}


def results(entry):
    module = entry.load()
    for cell in module.cells(entry, "smoke"):
        outcome = module.run(cell)
        assert isinstance(outcome, Outcome) and non_finite(outcome) is None, cell
        values = dataclasses.asdict(outcome)
        yield Result(cell.entry, cell.key(), "done", "smoke", row=cell.row, settings=cell.settings, **values)


def test_all_eight_are_built():
    assert len(ENTRIES) == 8 and all(entry.built for entry in ENTRIES)


SAID = [entry for entry in ENTRIES if entry.kind == "check" or entry.id.endswith("exp4")]


@pytest.mark.parametrize("entry", SAID, ids=lambda entry: entry.id.split("/")[1])
def test_the_checks_and_the_table_say_what_the_poster_says(entry):
    done = list(results(entry))
    if entry.id.endswith("exp4"):
        assert all(set(result.values) >= COLUMNS for result in done)
        deceived = next(result for result in done if result.row == "random, W_s")
        assert deceived.values["train"] == 1.0 and deceived.values["H"] >= 0.99
    if entry.kind == "check":
        assert all(result.passed is (entry.id not in FALSE) for result in done), [result.note for result in done]


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_cells_are_spelled_as_published(scale):
    entry = catalogue.entry("masoomi2020/exp4")
    published = {number.row for number in entry.numbers}
    ours = {cell.row for cell in entry.load().cells(entry, scale)}
    assert {row for row in ours if "leave-one-out" not in row} <= published
    if scale != "smoke":
        assert published <= ours


def test_theorem_1_counts_the_layers_that_do_not_raise_h(monkeypatch):
    """A layer that lowers H stays in the record, so that the check can fail."""
    parts = fold("wine", 0)
    whole = solved.stacked(parts, 4, 0.999, 0)
    assert len(whole) == 5 or whole[-1] >= 0.999
    heights = iter([0.5, *[0.4] * 40])
    record = solved.measure_gram(torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64),
                                 torch.arange(3), 3, 1.0)  # fmt: skip
    monkeypatch.setattr(solved, "measure_gram", lambda *_: dataclasses.replace(record, hsic=next(heights)))
    assert solved.stacked(parts, 2, 0.999, 0) == [0.5, 0.4, 0.4]


def test_claim_6_holds_with_signed_gamma_and_squared_norms(generator):
    x = torch.randn(18, 4, dtype=torch.float64, generator=generator)
    y = torch.tensor([0] * 9 + [1] * 5 + [2] * 4)
    x[:, 0] += 1.5 * y
    w = torch.linalg.qr(torch.randn(4, 2, dtype=torch.float64, generator=generator))[0]
    ours = implicit_penalty(x, w, y, C, 0.9)
    torch.testing.assert_close(ours.penalties, literal.penalties(x, w, y, C, 0.9))
    assert ours.attraction - ours.charge == pytest.approx(ours.objective, rel=1e-10)
    z = x @ w
    Q = literal.q_matrix(literal.gaussian(z, z, 0.9), x, y, C)
    assert float(torch.trace(w.T @ Q @ w)) / 0.9**2 == pytest.approx(ours.objective, rel=1e-10)


def test_claim_6_as_printed_fails_where_between_class_gamma_is_positive(generator):
    y = torch.tensor([0] * 20 + [1] * 2 + [2] * 2)
    x = torch.randn(24, 3, dtype=torch.float64, generator=generator)
    assert float(dep.gamma_table(y, C)[1, 2]) > 0
    w = torch.eye(3, 1, dtype=torch.float64)
    printed = implicit_penalty(x, w, y, C, 1.0, as_printed=True)
    assert abs(printed.attraction - printed.charge - printed.objective) > 1e-3 * abs(printed.objective)
