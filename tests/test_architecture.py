"""The drawing of the house, executable: imports run strictly down, never sideways within a line."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mercer

ROOT = Path(mercer.__file__).parent
TIERS = [  # from the ground up; names on one line do not know each other
    {"checks"},
    {"linalg", "distributed", "storage", "figures", "metrics", "process", "user_text", "data_files"},
    {"modules"},
    {"kernels"},
    {"features"},
    {"machines"},
    {"nn", "optim", "layerwise", "spectral", "bayes", "data"},
    {"experiments", "bench", "tabular"},
    {"report"},
    {"cli"},
]
HEIGHT = {name: height for height, names in enumerate(TIERS) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


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


def deep_imports(path: Path) -> list[str]:
    """Modules of another unit that a file imports past that unit's ``__init__``; a module in ``__all__`` is public."""
    package = ["mercer", *path.relative_to(ROOT).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            modules = [[*base, *(node.module.split(".") if node.module else [])]]
        elif isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for names in modules:
            past = names[0] == "mercer" and len(names) > 2 and names[1] != unit(path)
            if past and names[2] not in importlib.import_module(f"mercer.{names[1]}").__all__:
                found.append(".".join(names))
    return found


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


def test_a_package_is_entered_by_its_front_door():
    deep = {str(path.relative_to(ROOT)): found for path in FILES if (found := deep_imports(path))}
    assert deep == {}, "export the name from the package's __init__"


def test_files_are_named_for_an_idea():
    assert {path.stem for path in FILES} & {"utils", "util", "common", "helpers", "misc"} == set()


def test_inits_hold_names_and_nothing_else():
    for path in FILES:
        if path.name != "__init__.py" or path.parent == ROOT:
            continue
        tree = ast.parse(path.read_text())
        allowed = (ast.Expr, ast.ImportFrom, ast.Import, ast.Assign)
        assert all(isinstance(node, allowed) for node in tree.body), path
        for node in tree.body:
            if isinstance(node, ast.Assign):
                names = [element.value for element in node.value.elts]
                assert names == sorted(names, key=lambda n: (not n.isupper(), not n[:1].isupper(), n)), path


def test_nothing_unpickles_or_prints():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not names & {"pickle", "joblib", "dill", "cloudpickle"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print" or unit(path) == "cli", path


def test_private_names_of_torch_have_one_home():
    private = re.compile(r"torch\.(ops\.aten\.)?_[a-zA-Z]|forward_ad\._|from torch\S* import .*\b_[a-zA-Z]")
    homes = {str(path.relative_to(ROOT)) for path in FILES if private.search(path.read_text())}
    assert homes == {"linalg/torch_internals.py"}


def test_importing_mercer_imports_neither_torch_nor_matplotlib():
    code = "import sys, mercer; print(sorted({'torch', 'matplotlib', 'sklearn', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_load_on_first_use():
    for name in mercer.__all__:
        module = getattr(mercer, name)
        assert all(hasattr(module, public) for public in getattr(module, "__all__", ()))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = mercer.nonsense
