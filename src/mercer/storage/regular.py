"""One policy for every file that is read, written, appended to or locked: a regular file, no link followed.

A link, a device, a pipe or a folder where a file should be is refused before a byte moves: a crafted folder must not
make a command read, append to or replace something outside of it.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from ..checks import sentence

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
        fix = f"Name the file itself: {os.path.realpath(path)}" if stat.S_ISLNK(mode) else ""
        raise ValueError(sentence(where, f"{path} must be a regular file", kind, fix))
