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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mercer.cli.process import threads_set

from ..data import MissingData
from .timing import Case

LIMIT = 3600.0  # seconds for one child
_CHILD = "from mercer_papers.bench.memory import main; main()"


@dataclass(frozen=True)
class Run:
    """The numbers that a child measured.

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


def run_alone(module: str, case: str, contender: str, *, threads: int) -> Run:
    """One run of ``contender`` in ``case`` of ``module.CASES``, in a child."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    environment = os.environ | pools | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", _CHILD, module, case, contender, str(threads)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=True)
        return Run(**json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        return Run(why=f"{type(error).__name__}: {error}")


def main() -> None:
    """The child: ``module case contender threads`` on the command line, one JSON line on stdout."""
    module, case_name, name, threads = sys.argv[1:]
    cases: list[Case] = importlib.import_module(module).CASES
    case = next(entry for entry in cases if entry.name == case_name)
    contender = next(entry for entry in case.contenders() if entry.name == name)
    with threads_set(int(threads)):
        contender.absence()  # imports what it needs
        try:
            # the work, watched; data that is not there and a failure are results
            data = case.setup()
            with watch_peak() as mark:
                cpu, wall = time.process_time(), time.perf_counter()
                answer: Any = contender.peer.work(data)
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        except MissingData as reason:
            run = Run(missing=str(reason))
        except Exception as error:  # a peer's failure is a result
            run = Run(why=f"{type(error).__name__}: {error}")
        else:
            run = Run(mark.mib, cpu, wall)
            if case.accuracy is not None:
                run = replace(run, score=float(case.accuracy(data, answer)))
    sys.stdout.write(json.dumps(asdict(run)) + "\n")


@dataclass
class Mark:
    """MiB added at the peak; filled in when the watched block ends."""

    mib: float = 0.0


@contextlib.contextmanager
def watch_peak() -> Iterator[Mark]:
    """Watch a block: what it adds to this process's resident memory at its peak."""
    # return what the set-up freed to the system, else the work would reuse it unseen
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    mark = Mark()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield mark
        mark.mib = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit / 2**20
        return
    before = _read_status("VmRSS:")
    yield mark
    mark.mib = max(0, _read_status("VmHWM:") - before) / 2**20


def _read_status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")
