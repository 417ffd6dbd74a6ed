"""One contender in a process of its own: its peak memory, and for works of a single round its time and score.

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
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mercer.cli.process import threads_set

from ..data import MissingData
from .timing import Case

_CHILD = "from mercer_papers.bench.memory import main; main()"


@dataclass(frozen=True)
class Run:
    """What a child found.

    Args:
        peak: MiB that the work added; None where it failed.
        cpu: CPU seconds of the work.
        wall: seconds by the clock.
        score: of the answer, where the case has one.
        why: the reason where the work failed.
        missing: the reason where the data is not there.
    """

    peak: float | None = None
    cpu: float = 0.0
    wall: float = 0.0
    score: float | None = None
    why: str = ""
    missing: str = ""


def run_alone(module: str, case: str, contender: str, *, threads: int, timeout: float = 3600.0) -> Run:
    """One run of ``contender`` in ``case`` of ``module.CASES``, in a child."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    environment = os.environ | pools | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", _CHILD, module, case, contender, str(threads)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=True)
        return Run(**json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        return Run(why=f"{type(error).__name__}: {error}")


def peak_mib(module: str, case: str, contender: str, *, threads: int, timeout: float = 3600.0) -> float | None:
    """MiB that ``contender`` adds at its peak in ``case`` of ``module.CASES``; None if the child failed."""
    return run_alone(module, case, contender, threads=threads, timeout=timeout).peak


def main() -> None:
    """The child: ``module case contender threads`` on the command line, one JSON line on stdout."""
    module, case, name, threads = sys.argv[1:]
    cases: list[Case] = importlib.import_module(module).CASES
    chosen = next(entry for entry in cases if entry.name == case)
    with threads_set(int(threads)):
        found = _run(chosen, name)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


def _run(case: Case, name: str) -> Run:
    contender = next(entry for entry in case.contenders() if entry.name == name)
    contender.absence()  # imports what it needs
    try:
        data = case.setup()
    except MissingData as reason:
        return Run(missing=str(reason))
    try:
        with peak_watched() as mark:
            cpu, wall = time.process_time(), time.perf_counter()
            answer: Any = contender.peer.work(data)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    except Exception as error:  # a peer's failure is a result
        return Run(why=f"{type(error).__name__}: {error}")
    score = None if case.accuracy is None else float(case.accuracy(data, answer))
    return Run(mark.mib, cpu, wall, score)


@dataclass
class Mark:
    """MiB added at the peak; filled in when the watched block ends."""

    mib: float = 0.0


@contextlib.contextmanager
def peak_watched() -> Iterator[Mark]:
    """Watch a block: what it adds to this process's resident memory at its peak."""
    # return what the set-up freed to the system, else the work would reuse it unseen
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    mark = Mark()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    except OSError:
        before = _maximum()
        yield mark
        mark.mib = max(0, _maximum() - before) / 2**20
        return
    before = _status("VmRSS:")
    yield mark
    mark.mib = max(0, _status("VmHWM:") - before) / 2**20


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _maximum() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
