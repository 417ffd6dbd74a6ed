"""Shared by all tests: one thread each, float64 where a test asks for it, the papers' data where it is."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

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
