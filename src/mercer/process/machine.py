"""Where and with what a run was made: versions, cores, processor. Never a host or a user name."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from .. import __version__

_LIBRARIES = ("torch", "numpy", "scikit-learn", "safetensors")


def versions() -> dict[str, str]:
    """Python's version and those of the libraries whose numbers could differ."""
    found = {"python": platform.python_version(), "mercer": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """System, processor, cores this process may use, memory in GiB, and the accelerator if there is one."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "cores": cores,
        "memory_gib": _memory(),
        "gpu": gpu,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None
