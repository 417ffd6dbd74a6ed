"""Two ranks equal one process on the joined rows, for every method: 1e-6 in float64, uneven rows, a rank with none."""

import fcntl
import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mercer import bayes, features, layerwise, nn, optim, spectral
from tests.ranks.cases import SHARDS, SPLITS, TABLES, UNDER_DDP, N

RANKS = 2
RUNS = [(name, split) for split in SPLITS for name in SHARDS] + [(name, "even") for name in UNDER_DDP | TABLES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks gave: all cases in one pair of processes, and one pair for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_TESTRUNUID" in os.environ else base
    given = root / "ranks"
    with (root / "ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not given.exists():
            given.mkdir()
            (given / "said").write_text(run_ranks(given))
    return given


def run_ranks(folder: Path) -> str:
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks.cases", str(folder), str(rank), str(RANKS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(RANKS)
    ]
    return "\n".join(process.communicate(timeout=280)[0][-3000:] for process in started)


@functools.cache
def alone(name: str) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {key: value.detach() for key, value in (SHARDS | UNDER_DDP | TABLES)[name](slice(0, N)).items()}


@pytest.mark.parametrize(("name", "split"), RUNS, ids=lambda part: part)
def test_two_ranks_equal_one_process(folder, name, split):
    for rank in range(RANKS):
        path = folder / f"{name}.{split}.{rank}.safetensors"
        assert path.exists(), (folder / "said").read_text()
        found = load_file(path)
        assert set(found) == set(alone(name))
        for key, value in alone(name).items():
            torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")


WITHOUT_ROWS = {  # public names that learn nothing from rows, or not over ranks; why
    "Familiarity": "gathers the rows, each rank the same",
    "Posterior": "the base class",
    "Snapshots": "copies of a network",
    "L2BatchNorm": "batch statistics are a rank's own, as in nn.BatchNorm",
    "distillation_loss": "a function of two batches of logits",
    "sampled_cross_entropy": "a loss of one batch",
    "FeatureMap": "the base class",
    "Spectrum": "what analyze gives",
}


def test_no_public_method_escapes_the_ranks():
    tests = Path(__file__).parents[1]
    source = (tests / "ranks" / "cases.py").read_text()
    source += (tests / "features" / "cases.py").read_text()
    source += (tests / "optim" / "cases.py").read_text()
    public = {name for package in (bayes, features, layerwise, nn, optim, spectral) for name in package.__all__}
    untried = {name for name in public - set(WITHOUT_ROWS) if f"{name}(" not in source}
    assert untried <= {"CosineClassifier", "SecondOrderPooling"} and "with_head(CosineClassifier)" in source
    assert set(WITHOUT_ROWS) <= public
