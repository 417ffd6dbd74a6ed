"""The tests' ids are constants: two workers, or two days, collect the same ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
VARYING = re.compile(r"\\x[0-9a-f]{2}|0x[0-9a-f]{5,}|<[a-zA-Z_.]+ object")  # raw bytes, addresses


def test_no_id_holds_bytes_or_addresses(request):
    wrong = [item.nodeid for item in request.session.items if VARYING.search(item.nodeid)]
    assert not wrong, f"give these constant ids: {wrong[:3]}"


def test_no_test_imports_another():
    """What two test files share stands in a ``cases.py`` beside them."""
    wrong = [
        f"{path.relative_to(TESTS)}: {line}"
        for path in TESTS.rglob("*.py")
        for line in re.findall(r"^(?:from|import) .*\btest_\w+.*$", path.read_text(), re.M)
    ]
    assert not wrong


def test_another_process_collects_the_same_tests(request):
    """With another hash seed and at another time, for every test file of this session."""
    here = {item.nodeid for item in request.session.items if TESTS in item.path.parents}
    files = sorted({item.path for item in request.session.items if TESTS in item.path.parents})
    program = f"""
import pytest
class Ids:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("id:" + item.nodeid)
pytest.main(["-n0", "--collect-only", "-qqq", "-p", "no:cacheprovider", *{list(map(str, files))!r}], plugins=[Ids()])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=request.config.rootpath,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTEST_ADDOPTS": "", "PYTEST_XDIST_WORKER": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    there = {line.removeprefix("id:") for line in done.stdout.splitlines() if line.startswith("id:")}
    if len(here) < len(there):  # the session was asked for some tests by name
        there &= here
    assert here == there, f"collected in one process only: {sorted(here ^ there)[:3]}"
