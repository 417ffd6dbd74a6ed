"""Shared by all tests: one thread each, float64 where a test asks for it, the papers' data where it is."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from click.testing import CliRunner

import mercer_papers
from mercer.cli import main
from mercer_papers import catalogue
from tests.cli.cases import bare
from tests.papers import fake_entries

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def papers_data() -> Path:
    folder = os.environ.get("MERCER_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("MERCER_DATA does not name a folder with the papers' data sets")
    return Path(folder)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """In this process, in a folder of its own: `mercer` with the made-up paper's entries alone."""
    fake_entries.write(tmp_path / "fake")
    entries = str(tmp_path / "fake" / "entries")
    monkeypatch.setattr(catalogue, "PUBLISHED", tmp_path / "fake" / "published")
    monkeypatch.setattr(mercer_papers, "__path__", [*mercer_papers.__path__, entries])
    monkeypatch.delenv("MERCER_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    catalogue.entries.cache_clear()
    yield lambda *args: CliRunner().invoke(main, args)
    catalogue.entries.cache_clear()
    for name in [name for name in sys.modules if name.startswith("mercer_papers.fake2000")]:
        del sys.modules[name]


@pytest.fixture
def uninterrupted(fake):
    assert fake("reproduce", "fake2000/count", "--scale", "smoke", "-o", "whole").exit_code == 0
    return bare(Path("whole"))
