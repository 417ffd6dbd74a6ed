"""A tiny made-up paper for the runner's tests: its published file, its entries, and a `mercer` that knows only them."""

from pathlib import Path

PUBLISHED = """
[[entry]]
id = "count"
run = { module = "count" }
kind = "result"
title = "Six numbers"
source = "Table 1"
metric = "a number"
[entry.numbers]
columns = ["a", "b"]
[entry.numbers.rows]
r0 = [0.5, [0.25, 0.1]]
r1 = ["", 7]

[[entry]]
id = "diverge-1.2"
run = { module = "diverge_1_2" }
kind = "result"
title = "A loss that turns NaN"
source = "Section 1.2"

[[entry]]
id = "needs-data"
run = { module = "needs_data" }
kind = "result"
title = "One cell needs a set that nobody has, one needs none"
source = "Table 2"
data = ["mnist"]

[[entry]]
id = "thmA"
run = { module = "thma" }
kind = "check"
title = "A claim that does not hold"
source = "Theorem A"

[[entry]]
id = "huge"
run = { module = "huge" }
kind = "result"
title = "For a GPU"
source = "Table 3"
scale = "paper"

[[entry]]
id = "later"
run = { module = "later" }
kind = "result"
title = "No module yet"
source = "Table 4"

[[entry]]
id = "crash"
run = { module = "crash" }
kind = "result"
title = "A worker that dies"
source = "Table 5"
"""

MODULES = {
    "count": """
import os, time
from pathlib import Path
import torch
from mercer_papers.cells import Cell, Outcome

def cells(entry, scale):
    rows = {"smoke": 2, "small": 3, "paper": 4}[scale]
    return [Cell("fake2000/count", f"r{i}", c, {"i": i}, seeds=2) for i in range(rows) for c in "ab"]

def run(cell):
    hold = os.environ.get("FAKE_HOLD")
    while hold and cell.row == "r1" and Path(hold).exists():
        Path(hold).with_name("in_r1").touch()
        time.sleep(0.01)
    g = torch.Generator().manual_seed(cell.seed)
    drawn = torch.rand(1, generator=g).item() + cell.settings["i"] + torch.rand(1).item()
    return Outcome(drawn, {"extra": 1.0}, {"loss": {"x": [0, 1], "y": torch.tensor([1.0, 0.5])}})
""",
    "diverge_1_2": """
from mercer_papers.cells import Cell, Outcome

def cells(entry, scale):
    return [Cell("fake2000/diverge-1.2", row) for row in ("raises", "returns", "curve", "fine")]

def run(cell):
    if cell.row == "raises":
        raise FloatingPointError("loss became NaN at step 12")
    if cell.row == "curve":
        return Outcome(1.0, curves={"loss": {"x": [0, 1], "y": [1.0, float("inf")]}})
    return Outcome(float("nan") if cell.row == "returns" else 1.0)
""",
    "needs_data": """
from mercer_papers.cells import Cell, Outcome

def cells(entry, scale):
    return [Cell("fake2000/needs-data", "with", data=["mnist"]), Cell("fake2000/needs-data", "without")]

def run(cell):
    return Outcome(values={"a": 1.0, "b": 2.0})
""",
    "thma": """
from mercer_papers.cells import Cell, Outcome

def cells(entry, scale):
    return [Cell("fake2000/thmA")]

def run(cell):
    return Outcome(0.1, passed=False, note="counter-example found")
""",
    "huge": """
def cells(entry, scale):
    raise AssertionError("not asked below paper scale")
""",
    "crash": """
import os
from mercer_papers.cells import Cell, Outcome

def cells(entry, scale):
    return [Cell("fake2000/crash", row) for row in ("dies", "lives")]

def run(cell):
    if cell.row == "dies":
        os.kill(os.getpid(), 9)
    return Outcome(1.0)
""",
}

COMMAND = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.papers import fake_entries
fake_entries.install(Path({folder!r}))
if __name__ == "__main__":
    from mercer.cli import main
    main()
"""


def write(folder: Path) -> Path:
    """Put the paper's files in ``folder``; the script returned is a `mercer` that knows this paper alone."""
    (folder / "published").mkdir(parents=True)
    (folder / "published" / "fake2000.toml").write_text(PUBLISHED)
    package = folder / "entries" / "fake2000"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""A made-up paper."""\n')
    for name, text in MODULES.items():
        (package / f"{name}.py").write_text(text)
    script = folder / "fake_mercer.py"
    script.write_text(COMMAND.format(root=str(Path(__file__).parents[2]), folder=str(folder)))
    return script


def install(folder: Path) -> None:
    import mercer_papers
    from mercer_papers import catalogue

    catalogue.PUBLISHED = folder / "published"
    catalogue.entries.cache_clear()
    mercer_papers.__path__.append(str(folder / "entries"))
