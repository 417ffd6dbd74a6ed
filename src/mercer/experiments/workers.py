"""Cells in several processes: each worker runs one at a time, the parent alone writes the lines."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from mercer.experiments.cells import Cell
from mercer.experiments.execution import blank_result, execute
from mercer.experiments.results import Result


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None


def execute_all(
    cells: Sequence[Cell], scale: str, jobs: int, threads: int, began: Callable[[Cell], None]
) -> Generator[Result, None, None]:
    """The results of the cells as they come, from ``jobs`` processes with ``threads`` torch threads each.

    A worker that dies (out of memory, a crash in native code) fails its cell, and another takes its place. Closing the
    iterator ends the workers.
    """
    waiting = list(reversed(cells))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in workers):
            while waiting and len(workers) < jobs:
                workers.append(_start(threads))
            for worker in workers:
                if worker.cell is None and waiting:
                    worker.cell = waiting.pop()
                    began(worker.cell)
                    worker.pipe.send((worker.cell, scale))
            busy = {worker.pipe: worker for worker in workers if worker.cell}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                yield _collect(worker, scale)
                if not worker.process.is_alive():
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


def _start(threads: int) -> _Worker:
    context = multiprocessing.get_context("spawn")  # a fork after torch was used can deadlock
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _collect(worker: _Worker, scale: str) -> Result:
    cell = worker.cell
    assert cell is not None
    worker.cell = None
    try:
        result: Result = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode or 0
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        error = f"RuntimeError: the worker process died by {reason}; was it out of memory?"
        return replace(blank_result(cell, scale), error=error)
    return result


def _serve(pipe: Connection, threads: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone, killed perhaps: so go too
        while True:
            cell, scale = pipe.recv()
            pipe.send(execute(cell, scale))
