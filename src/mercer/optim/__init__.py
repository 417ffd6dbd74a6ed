"""Optimizers with a kernel's curvature: every one a ``torch.optim.Optimizer``.

``ESGD`` and ``MultiBatchLBFGS``, rivals of a paper, live in ``mercer_papers`` and load on first use.
"""

import importlib
from typing import Any

from .eigenpro import EigenProSGD
from .function_space import FunctionSpaceSGD
from .kernel_sgd import KernelSGD

__all__ = [
    "EigenProSGD",
    "FunctionSpaceSGD",
    "KernelSGD",
]


def __getattr__(name: str) -> Any:
    if name in ("ESGD", "MultiBatchLBFGS"):
        return getattr(importlib.import_module("mercer_papers.rivals"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
