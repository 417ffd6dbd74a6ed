"""Files that survive: atomic writes, bounded reads, one writer for each folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..checks import sentence

__all__ = ["atomic_stream", "atomic_write", "lock", "read_json", "sha256"]

JSON_LIMIT = 64 * 2**20  # bytes; a settings file beyond this is not one of ours
TEMPORARY = ".mercer-*.tmp"  # what a killed writer leaves behind


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
    target = Path(path)
    temporary = target.parent / f".mercer-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise failed("atomic_write", f"{target} must be writable", error, "What was there is intact.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_json(path: str | os.PathLike[str], limit: int = JSON_LIMIT) -> Any:
    """The value in a JSON file of at most ``limit`` bytes.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is longer than ``limit``, or is not JSON; the sentence names it.
    """
    target = Path(path)
    try:
        with target.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise failed("read_json", f"{target} must be readable", error) from error
    if len(data) > limit:
        raise ValueError(
            sentence("read_json", f"{target} must hold at most {limit} bytes", f"{target.stat().st_size} bytes")
        )
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        fix = "The file is damaged or was not written by Mercer."
        raise ValueError(sentence("read_json", f"{target} must be JSON", str(error) or "deep nesting", fix)) from error


def sha256(path: str | os.PathLike[str]) -> str:
    """The file's SHA-256, read in blocks."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def lock(folder: str | os.PathLike[str], name: str = ".mercer.lock") -> Iterator[None]:
    """Hold ``folder`` alone: a second holder, in this or another process, is refused at once.

    The system lets go of the lock when its process dies, so a killed run never blocks the next.

    Raises:
        RuntimeError: Another run holds the folder.
    """
    path = Path(folder) / name
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise failed("lock", f"{folder} must be writable", error) from error
    try:
        if not _take(descriptor) or not _still_named(descriptor, path):
            fix = "Wait for it to end, or choose another folder."
            raise RuntimeError(sentence("lock", f"{folder} must be used by one run at a time", "a second run", fix))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def failed(where: str, need: str, error: OSError, fix: str = "") -> OSError:
    """The system's error, of the same kind and number, in the house's sentence."""
    reason = error.strerror or str(error)
    return OSError(error.errno or 0, sentence(where, need, reason, fix))


def _still_named(descriptor: int, path: Path) -> bool:
    # The holder before us may have unlinked the file between our open and our lock: then another
    # process can lock a new file of that name, and we would both believe we are alone.
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    # The rename itself reaches the disk with its folder; some systems cannot sync a folder.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _take(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
