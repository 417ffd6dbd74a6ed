"""The stored numbers stand. Where one moves on purpose: record it anew, and say why in CHANGELOG."""

import pytest

from .cases import CASES, MOST
from .record import VALUES, moved, stored


@pytest.mark.parametrize("name", CASES)
def test_numbers_stand(name):
    known = stored(name)
    _, lines = moved(known, CASES[name]())
    assert not lines, (
        f"{name} moved (rtol {known['rtol']:g}, atol {known['atol']:g}):\n  "
        + "\n  ".join(lines)
        + f"\nIf that is meant: python -m tests.golden.record {name}, and a line in CHANGELOG."
    )


def test_every_case_is_stored_and_small():
    assert {path.stem for path in VALUES.glob("*.json")} == set(CASES)
    for name in CASES:
        assert all(0 < len(row) <= MOST for row in stored(name)["values"].values()), name
