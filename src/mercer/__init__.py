"""Mercer: kernels in deep networks, in PyTorch.

Public names load on first use, so that ``import mercer`` and ``mercer --help`` stay cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        bayes,
        distributed,
        features,
        kernels,
        layerwise,
        machines,
        metrics,
        modules,
        nn,
        optim,
        rows,
        signals,
        spectral,
        tabular,
    )
    from .checks import NumericalWarning
    from .storage.folder import load, save

__version__ = "0.3.0"

_MODULES = (
    "bayes",
    "distributed",
    "features",
    "kernels",
    "layerwise",
    "machines",
    "metrics",
    "modules",
    "nn",
    "optim",
    "rows",
    "signals",
    "spectral",
    "tabular",
)
_NAMES = {"NumericalWarning": "checks", "load": "storage.folder", "save": "storage.folder"}

__all__ = [
    "NumericalWarning",
    "__version__",
    "bayes",
    "distributed",
    "features",
    "kernels",
    "layerwise",
    "load",
    "machines",
    "metrics",
    "modules",
    "nn",
    "optim",
    "rows",
    "save",
    "signals",
    "spectral",
    "tabular",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _NAMES:
        return getattr(importlib.import_module(f".{_NAMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
