"""The process that runs the work: its signals, its threads, its machine. All commands share it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mercer import __version__
from mercer.cli.output import SMALL, say

_LIBRARIES = ("torch", "numpy", "scikit-learn", "safetensors")


class Interrupted(BaseException):
    """The run was asked to stop; not an ``Exception``, so that no cell can take it for its own failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As the shell has it: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


class Interruption:
    """While entered, SIGINT and SIGTERM raise `Interrupted`; inside ``held()`` they wait for its end."""

    def __init__(self) -> None:
        self._holding = False
        self._pending: int | None = None

    def __enter__(self) -> Interruption:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            numbers = (signal.SIGINT, signal.SIGTERM)
            self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no signal in until the block is done."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending is not None:
            raise Interrupted(self._pending)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._pending = number
        else:
            raise Interrupted(number)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Exit 130 or 143 where the block is stopped, after half-written files are deleted; print warnings in one line."""
    try:
        with Interruption(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: say(f"Warning: {message}")
            yield
    except Interrupted as interrupted:
        click.echo("Interrupted: nothing was written.", err=True)
        raise click.exceptions.Exit(interrupted.exit_code) from None


@contextlib.contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Torch and every BLAS and OpenMP pool at ``threads``; the caller's number comes back afterwards."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    with threadpool_limits(threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def threads_for(data: Path) -> AbstractContextManager[None]:
    """One thread for a small table, whose matrices are too small to share; else as many as there were."""
    if data.stat().st_size < SMALL:
        return threads_set(1)
    return contextlib.nullcontext()


def versions() -> dict[str, str]:
    """Python's version and those of the libraries whose numbers could differ."""
    version = {"python": platform.python_version(), "mercer": __version__}
    for name in _LIBRARIES:
        try:
            version[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version[name] = "not installed"
    return version


def machine() -> dict[str, Any]:
    """System, processor, cores this process may use, memory in GiB, and the accelerator if there is one."""
    import torch

    # What a system does not say stays as it is here.
    processor, memory = platform.processor() or platform.machine(), None
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        named = next(line for line in lines if line.startswith(("model name", "Model")))
        processor = named.split(":", 1)[1].strip()
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):  # a container or taskset may leave fewer
        cores = len(os.sched_getaffinity(0))
    gpu = ""
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": processor,
        "cores": cores,
        "memory_gib": memory,
        "gpu": gpu,
    }
