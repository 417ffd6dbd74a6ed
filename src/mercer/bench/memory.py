"""Peak memory of one contender, in a process of its own.

``tracemalloc`` does not see torch's or BLAS's buffers, and the peak of a shared process belongs to
whoever was biggest. So a child builds the case's data, notes its resident size, resets the kernel's
high-water mark, does the work once and reads the mark: the peak is what the work added. Where the mark
cannot be reset (not Linux) it is ``ru_maxrss`` after less before, which is too low when the set-up
itself peaked higher.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from .timing import Case, threads_set

__all__ = ["main", "peak_mib"]

_CHILD = "from mercer.bench.memory import main; main()"


def peak_mib(module: str, case: str, contender: str, *, threads: int, timeout: float = 3600.0) -> float | None:
    """MiB that ``contender`` adds at its peak in ``case`` of ``module.CASES``; None if the child failed."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    environment = os.environ | pools | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", _CHILD, module, case, contender, str(threads)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=True)
        return float(json.loads(done.stdout.splitlines()[-1])["peak_mib"])
    except (subprocess.SubprocessError, ValueError, LookupError):
        return None


def main() -> None:
    """The child: ``module case contender threads`` on the command line, one JSON line on stdout."""
    module, case, name, threads = sys.argv[1:]
    cases: list[Case] = importlib.import_module(module).CASES
    chosen = next(entry for entry in cases if entry.name == case)
    contender = next(entry for entry in chosen.contenders() if entry.name == name)
    contender.absence()  # imports what it needs
    with threads_set(int(threads)):
        data = chosen.setup()
        _give_back_free_memory()
        reset = _reset_mark()
        before = _resident() if reset else _maximum()
        answer = contender.peer.work(data)
        peak = (_marked() if reset else _maximum()) - before
    del answer
    line = {"peak_mib": max(0, peak) / 2**20, "way": "high-water mark" if reset else "ru_maxrss"}
    sys.stdout.write(json.dumps(line) + "\n")


def _give_back_free_memory() -> None:
    """Return what the set-up freed to the system, else the work would reuse it unseen."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _reset_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident() -> int:
    return _status("VmRSS:")


def _marked() -> int:
    return _status("VmHWM:")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _maximum() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
