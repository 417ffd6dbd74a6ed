"""Files of JSON lines that grow while a run is made: whole lines only, whatever kills the writer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..checks import sentence
from .regular import open_to_append, open_to_read, system_error

LINES_LIMIT = 2**30  # bytes of one file of lines


def append_line(path: str | os.PathLike[str], line: bytes) -> None:
    """Add one line with one write and one fsync; a torn last line is cut off first.

    Raises:
        OSError: The disk is full or the file cannot be written; the lines before are intact.
        ValueError: The path is a link, a folder, a pipe or a device.
    """
    descriptor = open_to_append(path, "append")
    try:
        before = _cut_torn_line(descriptor)
        # One write for the whole line, so that a killed writer leaves it torn at worst, never interleaved.
        if os.write(descriptor, line + b"\n") != len(line) + 1:
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    except OSError as error:
        fix = "The lines before are intact: free space, then resume the run."
        raise system_error("append", f"{path} must take one more line", error, fix) from error
    finally:
        os.close(descriptor)


def mend_lines(path: str | os.PathLike[str]) -> None:
    """Cut a torn last line off; nothing where there is no file."""
    if not os.path.lexists(path):
        return
    descriptor = open_to_append(path, "append")
    try:
        _cut_torn_line(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: str | os.PathLike[str]) -> list[bytes]:
    """The lines of a file, without their ends; none where there is no file."""
    if not os.path.lexists(path):
        return []
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LINES_LIMIT:
            raise ValueError(sentence("read", f"{Path(path)} must hold at most {LINES_LIMIT} bytes", size))
        return file.read().splitlines()


def _cut_torn_line(descriptor: int) -> int:
    """Drop what follows the last line break; the size that is left."""
    end = size = os.fstat(descriptor).st_size
    while end > 0:
        # Search backwards, a block at a time: files are long and torn lines short.
        start = max(0, end - 2**16)
        os.lseek(descriptor, start, os.SEEK_SET)
        place = os.read(descriptor, end - start).rfind(b"\n")
        if place >= 0:
            end = start + place + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
    return end
