"""One cell, run: the entry's function, timed, its outcome or its failure as a `Result`; and many in processes."""

from __future__ import annotations

import contextlib
import datetime
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from mercer import distributed
from mercer_papers.catalogue import entry
from mercer_papers.cells import Cell, MissingPackage, Outcome, non_finite
from mercer_papers.results import Result

_log = logging.getLogger("mercer")


def execute(cell: Cell, scale: str) -> Result:
    """Run one cell. An error of the entry makes it *failed*, data or a package that is not there *missing*."""
    from mercer_papers import data

    blank = blank_result(cell, scale)
    # data that is not there
    absent = missing(cell.data)
    if absent:
        sentences = []
        for name in absent:
            if _is_known(name):
                sentences.append(data.how_to_get(name))
            else:
                sentences.append(f"{name}: Mercer has no loader for this set.")
        return replace(blank, status="missing", note=" ".join(sentences))
    # the entry's function, seeded by the cell
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with distributed.alone(), torch.random.fork_rng():  # ranks share cells, not a cell's rows
            torch.manual_seed(int(cell.key(), 16) % 2**63)
            outcome = entry(cell.entry).load().run(cell)
        # what came out must be an outcome of finite numbers
        if not isinstance(outcome, Outcome):
            raise TypeError(f"{cell.entry}: run must return an Outcome; got {type(outcome).__name__}.")
        outcome = outcome.plain()
        bad = non_finite(outcome)
        if bad is not None:
            raise FloatingPointError(f"{cell.entry}: every number of an outcome must be finite; {bad}.")
    except (data.MissingData, MissingPackage) as error:
        result = replace(blank, status="missing", note=str(error))
    except Exception as error:
        _log.info("%s %s %s failed", cell.entry, cell.row, cell.column, exc_info=error)
        result = replace(blank, status="failed", error=f"{type(error).__name__}: {error}")
    else:
        curves = {name: {axis: list(part) for axis, part in curve.items()} for name, curve in outcome.curves.items()}
        result = replace(
            blank, status="done", value=outcome.value, values=outcome.values, curves=curves, passed=outcome.passed,
            arrays={name: list(numbers) for name, numbers in outcome.arrays.items()}, note=outcome.note,
        )  # fmt: skip
    return replace(result, seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu)


def blank_result(cell: Cell, scale: str) -> Result:
    """The result of a cell before it is run: what it is, and when."""
    return Result(
        entry=cell.entry, key=cell.key(), status="failed", scale=scale, row=cell.row, column=cell.column,
        seed=cell.seed, settings=dict(cell.settings), data=tuple(cell.data),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def missing(names: Iterable[str]) -> list[str]:
    """The names of the data sets that are not found."""
    from mercer_papers import data

    return [name for name in names if not _is_known(name) or not data.available(name)]


def _is_known(name: str) -> bool:
    from mercer_papers import data

    try:
        data.available(name)
    except (ValueError, KeyError):
        return False
    return True


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None


def execute_all(
    cells: Sequence[Cell], scale: str, jobs: int, threads: int, report_start: Callable[[Cell], None]
) -> Generator[Result, None, None]:
    """The results of the cells as they come, from ``jobs`` processes with ``threads`` threads each.

    A worker that dies (out of memory, a crash in native code) fails its cell, and another takes its place. Closing the
    iterator ends the workers.
    """
    context = multiprocessing.get_context("spawn")  # a fork after torch was used can deadlock
    waiting = list(reversed(cells))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in workers):
            # as many workers as may be, each with a cell
            while waiting and len(workers) < jobs:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
                with _pools_of(threads):
                    process.start()
                theirs.close()
                workers.append(_Worker(process, ours))
            for worker in workers:
                if worker.cell is None and waiting:
                    worker.cell = waiting.pop()
                    report_start(worker.cell)
                    worker.pipe.send((worker.cell, scale))
            # the results that are there; a pipe that was closed is a worker that died
            busy = {worker.pipe: worker for worker in workers if worker.cell}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                cell, worker.cell = worker.cell, None
                assert cell is not None
                try:
                    result: Result = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    code = worker.process.exitcode or 0
                    reason = f"signal {-code}" if code < 0 else f"exit code {code}"
                    error = f"RuntimeError: the worker process died by {reason}; was it out of memory?"
                    result = replace(blank_result(cell, scale), error=error)
                yield result
                if not worker.process.is_alive():
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


@contextlib.contextmanager
def _pools_of(threads: int) -> Generator[None, None, None]:
    """So many threads for every BLAS and OpenMP pool of a process that starts meanwhile: they read it as they load.

    Two processes with two threads each on two cores spent up to seven times the CPU on a cell of small matrices.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Connection, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone, killed perhaps: so go too
        while True:
            cell, scale = pipe.recv()
            pipe.send(execute(cell, scale))
