"""One writer for each folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ..checks import sentence
from .regular import check_replaceable, system_error


@contextlib.contextmanager
def lock(folder: str | os.PathLike[str], name: str = ".mercer.lock") -> Iterator[None]:
    """Hold ``folder`` alone: a second holder, in this or another process, is refused at once.

    The system lets go of the lock when its process dies, so a killed run never blocks the next.

    Raises:
        RuntimeError: Another run holds the folder.
        ValueError: ``name`` is a link, a folder, a pipe or a device there.
    """
    path = check_replaceable(Path(folder) / name, "lock")
    file_lock = FileLock(path, timeout=0, thread_local=False)
    try:
        file_lock.acquire()
    except Timeout:
        fix = "Wait for it to end, or choose another folder."
        raise RuntimeError(
            sentence("lock", f"{folder} must be used by one run at a time", "a second run", fix)
        ) from None
    except OSError as error:
        raise system_error("lock", f"{folder} must be writable", error) from error
    try:
        yield
    finally:
        # Delete the lock file before releasing it: a process that opened it in the meantime sees that it has no name
        # and retries.
        path.unlink(missing_ok=True)
        file_lock.release()
