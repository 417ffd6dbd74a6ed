"""Files that survive: atomic writes, bounded reads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..checks import sentence
from .regular import check_replaceable, open_to_read, system_error

JSON_LIMIT = 64 * 2**20  # bytes; a settings file beyond this is not one of ours
TEMPORARY = ".mercer-*.tmp"  # what a killed writer leaves behind
TEMPORARY_NAME = re.compile(r"\.mercer-\d+-[0-9a-f]{8}\.tmp")


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
        _sync_folder(target.parent)
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
    target = Path(path)
    with open_to_read(target, "read_json") as file:
        data, size = file.read(limit + 1), os.fstat(file.fileno()).st_size
    if len(data) > limit:
        raise ValueError(sentence("read_json", f"{target} must hold at most {limit} bytes", f"{size} bytes"))
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        fix = "The file is damaged or was not written by Mercer."
        raise ValueError(sentence("read_json", f"{target} must be JSON", str(error) or "deep nesting", fix)) from error


def sha256(path: str | os.PathLike[str]) -> str:
    """The file's SHA-256, read in blocks."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
