"""The drawing of the house, executable: imports run strictly down, never sideways within a line."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mercer
import mercer_papers

ROOT = Path(mercer.__file__).parent
PAPERS = Path(mercer_papers.__file__).parent
TIERS = [  # from the ground up; names on one line do not know each other
    {"checks", "user_text"},
    {"linalg", "distributed", "storage", "figures", "metrics"},
    {"rows"},
    {"signals"},
    {"modules"},
    {"kernels"},
    {"features"},
    {"machines"},
    {"nn", "optim", "layerwise", "spectral", "bayes"},
    {"tabular"},
    {"cli"},
]
HEIGHT = {name: height for height, names in enumerate(TIERS) for name in names}
FILES = sorted(ROOT.rglob("*.py"))
EVERY_FILE = FILES + sorted(PAPERS.rglob("*.py"))


def unit(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    """Units of Mercer that a file imports, at its head or inside its functions."""
    package = ["mercer", *path.relative_to(ROOT).parts[:-1]]
    units = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        units |= {name.split(".")[1] for name in names if name.startswith("mercer.")}
    return {name for name in units if name in HEIGHT}


def test_every_unit_has_a_place():
    units = {unit(path) for path in FILES} - {"__init__", "__main__"}
    assert units <= set(HEIGHT), f"no place in the drawing for {units - set(HEIGHT)}"


def test_imports_run_strictly_down():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        if (own := unit(path)) in HEIGHT
        for name in imported_units(path)
        if name != own and HEIGHT[name] >= HEIGHT[own]
    ]
    assert wrong == []


def test_the_library_does_not_know_the_papers():
    home = {str(path.relative_to(ROOT)) for path in FILES if "mercer_papers" in path.read_text()}
    assert home == {"optim/__init__.py"}, "only the two lazy aliases of mercer.optim may name mercer_papers"
    code = "import sys; from mercer import *; from mercer.cli import main; print('mercer_papers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_files_are_named_for_an_idea():
    assert {path.stem for path in EVERY_FILE} & {"utils", "util", "common", "helpers", "misc"} == set()


def test_inits_hold_names_and_nothing_else():
    for path in EVERY_FILE:
        if path.name != "__init__.py" or path.parent == ROOT or path.parent == ROOT / "optim":  # these two load lazily
            continue
        tree = ast.parse(path.read_text())
        allowed = (ast.Expr, ast.ImportFrom, ast.Import, ast.Assign)
        assert all(isinstance(node, allowed) for node in tree.body), path
        for node in tree.body:
            if isinstance(node, ast.Assign):
                names = [element.value for element in node.value.elts]
                assert names == sorted(names, key=lambda n: (not n.isupper(), not n[:1].isupper(), n)), path


def test_nothing_unpickles_or_prints():
    for path in EVERY_FILE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not names & {"pickle", "joblib", "dill", "cloudpickle"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print" or {"cli", "studies"} & set(path.parts), path


def test_private_names_of_torch_have_one_home():
    private = re.compile(r"torch\.(ops\.aten\.)?_[a-zA-Z]|forward_ad\._|from torch\S* import .*\b_[a-zA-Z]")
    homes = {str(path.relative_to(ROOT.parent)) for path in EVERY_FILE if private.search(path.read_text())}
    assert homes == {"mercer/linalg/torch_internals.py"}


def test_importing_mercer_imports_neither_torch_nor_matplotlib():
    code = "import sys, mercer; print(sorted({'torch', 'matplotlib', 'sklearn', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_optimizer_costs_no_plots_frames_or_pages():
    heavy = "{'matplotlib', 'pandas', 'rich', 'jinja2', 'sklearn', 'narwhals', 'click'}"
    code = f"import sys, mercer.optim; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_load_on_first_use():
    for name in mercer.__all__:
        module = getattr(mercer, name)
        assert all(hasattr(module, public) for public in getattr(module, "__all__", ()))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = mercer.nonsense
