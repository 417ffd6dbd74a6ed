"""The wheel holds all that the command line needs: it runs outside the repository, with its own data and templates."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's files, in a folder of their own."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling, which builds the wheel, cannot be installed here (offline)")
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("mercer-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_reproduces_an_entry_outside_the_repository(unpacked, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "MERCER_DATA": ""}
    python = [sys.executable, "-c", "import mercer; print(mercer.__file__)"]
    where = subprocess.run(python, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(where.stdout.strip()).is_relative_to(unpacked)
    command = [sys.executable, "-m", "mercer.cli", "reproduce", "spectral2019/table1", "--scale", "smoke", "-o", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "run/report.html"
    assert "spectral2019/table1" in (tmp_path / "run" / "report.html").read_text()


def test_the_wheel_holds_the_two_packages_and_nothing_else(unpacked):
    tops = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"mercer", "mercer_papers"}
    for name in tops:
        package, source = unpacked / name, ROOT / "src" / name
        files = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
        packed = {str(p.relative_to(package)) for p in package.rglob("*") if p.is_file()}
        assert {name for name in packed if "__pycache__" not in name} == files


def test_every_dependency_has_a_lower_bound_and_the_oldest_set_names_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = dict(
        line.split("==") for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if "==" in line
    )
    needs = [*project["dependencies"], *project["optional-dependencies"]["data"]]
    for name, bound in (need.split(">=") for need in needs):  # a need without a bound fails here
        if name != "torch":  # older CPU builds are not to be had by name alone
            release = tested[name]
            assert release == bound or release.removeprefix(bound).strip(".0") == "", (name, bound, release)
