"""Files that survive and that nobody has to trust: atomic writes, bounded reads, whole lines, one writer a folder.

One policy for every file that is read, written, appended to or locked: a regular file, no link followed. A link, a
device, a pipe or a folder where a file should be is refused before a byte moves: a crafted folder must not make a
command read, append to or replace something outside of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from ..checks import sentence

JSON_LIMIT = 64 * 2**20  # bytes; a settings file beyond this is not one of ours
LINES_LIMIT = 2**30  # bytes of one file of lines
TEMPORARY = ".mercer-*.tmp"  # what a killed writer leaves behind
TEMPORARY_NAME = re.compile(r"\.mercer-\d+-[0-9a-f]{8}\.tmp")
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer must not stall the open


# --- regular files only -----------------------------------------------------------------------------------------------


def open_to_read(path: str | os.PathLike[str], where: str = "read") -> io.BufferedReader:
    """The regular file at ``path``, to read bytes from.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is a link, a folder, a pipe or a device.
    """
    return os.fdopen(_open_descriptor(Path(path), os.O_RDONLY, where, "readable"), "rb")


def open_to_append(path: str | os.PathLike[str], where: str = "append") -> int:
    """Descriptor of the regular file at ``path``, made if need be, to append to and to read.

    Raises:
        OSError: It cannot be written.
        ValueError: It is a link, a folder, a pipe or a device.
    """
    return _open_descriptor(Path(path), os.O_RDWR | os.O_APPEND | os.O_CREAT, where, "writable")


def check_replaceable(path: str | os.PathLike[str], where: str = "write") -> Path:
    """The path, if nothing is there or a regular file that a new one may take the place of.

    Raises:
        ValueError: It is a link, a folder, a pipe or a device.
    """
    target = Path(path)
    try:
        mode = target.lstat().st_mode
    except OSError:  # nothing there; what else is wrong, the write will say
        return target
    _check_regular(target, mode, where)
    return target


def system_error(where: str, need: str, error: OSError, fix: str = "") -> OSError:
    """The system's error, of the same kind and number, in the house's sentence."""
    reason = error.strerror or str(error)
    return OSError(error.errno or 0, sentence(where, need, reason, fix))


def _open_descriptor(path: Path, flags: int, where: str, need: str) -> int:
    check_replaceable(path, where)
    try:
        descriptor = os.open(path, flags | _NO_FOLLOW | _NO_WAIT | getattr(os, "O_BINARY", 0), 0o644)
    except OSError as error:
        raise system_error(where, f"{path} must be {need}", error) from error
    try:
        # Look again at what was opened: it may have been swapped since the first look.
        _check_regular(path, os.fstat(descriptor).st_mode, where)
    except ValueError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(path: Path, mode: int, where: str) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        fix = ""
        if stat.S_ISLNK(mode):
            fix = f"Name the file itself: {os.path.realpath(path)}"
        raise ValueError(sentence(where, f"{path} must be a regular file", kind, fix))


# --- whole files ------------------------------------------------------------------------------------------------------


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Put ``data`` at ``path`` whole or not at all: temporary sibling, fsync, rename.

    Args:
        path: The file. Its folder must exist; an old file stays as it was until the rename.
        data: Everything the file will hold.

    Raises:
        OSError: The disk is full or the folder cannot be written; the sentence names ``path``.
    """
    with atomic_stream(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_stream(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write into that takes the place of ``path`` when the block ends well, and is gone when it does not."""
    target = check_replaceable(path, "atomic_write")
    # A sibling, because a rename is atomic only within one file system.
    temporary = target.parent / f".mercer-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        # The rename itself reaches the disk with its folder; some systems cannot sync a folder.
        with contextlib.suppress(OSError):
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise system_error("atomic_write", f"{target} must be writable", error, "What was there is intact.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_json(path: str | os.PathLike[str], limit: int = JSON_LIMIT) -> Any:
    """The value in a JSON file of at most ``limit`` bytes.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is longer than ``limit``, or is not JSON; the sentence names it.
    """

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    target = Path(path)
    with open_to_read(target, "read_json") as file:
        data, size = file.read(limit + 1), os.fstat(file.fileno()).st_size
    if len(data) > limit:
        raise ValueError(sentence("read_json", f"{target} must hold at most {limit} bytes", f"{size} bytes"))
    try:
        return json.loads(data.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        fix = "The file is damaged or was not written by Mercer."
        raise ValueError(sentence("read_json", f"{target} must be JSON", str(error) or "deep nesting", fix)) from error


def sha256(path: str | os.PathLike[str]) -> str:
    """The file's SHA-256, read in blocks."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- files of JSON lines that grow while a run is made: whole lines only, whatever kills the writer -------------------


def append_line(path: str | os.PathLike[str], line: bytes) -> None:
    """Add one line with one write and one fsync; a torn last line is cut off first.

    Raises:
        OSError: The disk is full or the file cannot be written; the lines before are intact.
        ValueError: The path is a link, a folder, a pipe or a device.
    """
    descriptor = open_to_append(path, "append")
    try:
        size = _cut_torn_line(descriptor)
        # One write for the whole line, so that a killed writer leaves it torn at worst, never interleaved.
        if os.write(descriptor, line + b"\n") != len(line) + 1:
            os.ftruncate(descriptor, size)
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


# --- one writer for each folder ---------------------------------------------------------------------------------------


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
