"""Rows of the fault table that no one file owns, and a guard that docs/faults.md tells the truth."""

import re
from pathlib import Path

import pytest
import torch

from mercer import checks
from mercer.features import Nystrom, RandomFourier
from mercer.kernels import RBF, ReLUGram
from mercer.spectral import analyze, compare

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "faults.md"
MAPS = {
    "fourier": lambda: RandomFourier(RBF(0.2), 8, generator=torch.Generator().manual_seed(0)),
    "nystrom": lambda: Nystrom(RBF(0.2), 8, generator=torch.Generator().manual_seed(0)),
    "kmeans": lambda: Nystrom(RBF(0.2), 8, selection="kmeans", generator=torch.Generator().manual_seed(0)),
    "leverage": lambda: Nystrom(RBF(0.2), 8, selection="leverage", generator=torch.Generator().manual_seed(0)),
}


@pytest.fixture
def rows(generator):
    return torch.randn(60, 6, generator=generator, dtype=torch.float64)


def test_the_table_has_every_row_and_names_tests_that_exist():
    lines = [line.split("|") for line in TABLE.read_text().splitlines() if re.match(r"\| *\d+ ", line)]
    assert [int(cells[1]) for cells in lines] == list(range(1, 75))
    texts = {path.stem: path.read_text() for path in TESTS.rglob("test_*.py")}
    for file, name in re.findall(r"`(test_\w+)::(test_\w+)`", TABLE.read_text()):
        assert f"def {name}(" in texts.get(file, ""), f"{file}::{name}"
    untested = [cells[1].strip() for cells in lines if "`test_" not in cells[4] and not cells[4].strip()]
    assert not untested, "rows with neither a test nor a reason"


@pytest.mark.parametrize("name", MAPS)
def test_a_constant_feature_changes_nothing(name, rows):
    """Row 8: nothing is divided by its deviation of 0."""
    wide = torch.cat((rows, torch.full((60, 1), 7.0, dtype=torch.float64)), 1)
    f = MAPS[name]().fit(wide)
    assert torch.isfinite(f(wide)).all()
    target = rows[:, 0].sign()
    assert analyze(RBF(0.2), wide, target).complexity == pytest.approx(analyze(RBF(0.2), rows, target).complexity)


@pytest.mark.parametrize("name", MAPS)
def test_one_and_two_threads_agree(name, rows):
    """Row 48, within 1e-8 of the largest value: threads change the last bits of decompositions."""
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            table = compare({"relu": ReLUGram()}, rows, rows[:, 0].sign())
            found.append((MAPS[name]().fit(rows).kernel(rows), table["complexity"].item()))
    finally:
        torch.set_num_threads(threads)
    (one, first), (two, second) = found
    torch.testing.assert_close(one, two, rtol=0, atol=1e-8)
    assert first == pytest.approx(second, rel=1e-8)


@pytest.mark.parametrize("name", MAPS)
def test_rows_that_ask_for_gradients_are_detached_in_fit(name, rows):
    """Row 30: what is fitted carries no graph; what is computed afterwards does."""
    x = rows.clone().requires_grad_()
    f = MAPS[name]().fit(x)
    assert not any(tensor.requires_grad for tensor in f.state_dict().values())
    (slope,) = torch.autograd.grad(f(x).sum(), x)
    assert torch.isfinite(slope).all() and slope.abs().max() > 0


def test_37_a_containers_limit_counts(tmp_path, monkeypatch):
    """A fit that outgrew its container once died without a message, on a machine with memory to spare."""
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("1000000\n"), used.write_text("400000\n")
    monkeypatch.setattr(checks, "_CGROUPS", ((str(limit), str(used)), (str(tmp_path / "none"), str(used))))
    assert checks.available_memory() == 600000
    with pytest.raises(MemoryError, match=r"the Gram matrix needs 1\.0 GiB; got 0\.0 GiB free"):
        checks.memory("KernelRidge", "the Gram matrix", 2**30, "Use landmarks.")
    limit.write_text("max\n")
    assert checks.available_memory() > 600000
