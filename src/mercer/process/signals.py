"""SIGINT and SIGTERM as one exception, that never falls between a result and its line."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


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
