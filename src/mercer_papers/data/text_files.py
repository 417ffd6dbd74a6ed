"""Checksums of data files, and columns of tab-separated text, from files that nobody has to trust."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mercer.storage.archives import checked_size, corrupt, decompress
from mercer.storage.files import open_to_read

_verified: set[tuple[str, int, int, str]] = set()


def verify_checksum(path: Path, sha256: str) -> None:
    """Refuse a file whose SHA-256 differs; the verdict is kept for this path, size and time of change."""
    status = path.stat()
    # A file that was neither changed nor touched since its last check is not read again.
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, sha256)
    if key in _verified:
        return
    checked_size(path)
    with open_to_read(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        fix = "Fetch the file again, or pass verify=False to read a file of your own in the same format."
        raise corrupt(path, f"the SHA-256 must start with {sha256[:12]}", digest[:12], fix)
    _verified.add(key)


def text_table(path: Path, columns: Iterable[str], *, header: Iterable[str] | None = None) -> dict[str, list[str]]:
    """The named columns of a tab-separated UTF-8 file without quoting; line 1 names them unless ``header`` does.

    A leading byte-order mark is dropped (the public MRPC files have one). A ragged line is refused by its number.
    """
    content = decompress(path)
    if content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:4096]:
        raise corrupt(path, "the text must be UTF-8", "UTF-16 or binary bytes", "Save it as UTF-8.")
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise corrupt(path, "the text must be UTF-8", f"another byte in line {line}", "Save it as UTF-8.") from error
    if lines[-1] == "":
        lines.pop()

    # The names of the columns, and the number of lines before the rows.
    head, first = [], 1
    if header is not None:
        head, first = list(header), 0
    elif lines:
        head = lines[0].removesuffix("\r").split("\t")
    missing = [name for name in columns if name not in head]
    if missing:
        raise corrupt(path, f"line 1 must name the columns {', '.join(missing)}", ", ".join(head)[:80] or "nothing")

    # Every row must have as many columns.
    rows = [line.removesuffix("\r").split("\t") for line in lines[first:]]
    for number, row in enumerate(rows, start=first + 1):
        if len(row) != len(head):
            raise corrupt(path, f"line {number} must have {len(head)} columns", len(row))
    if not rows:
        raise corrupt(path, "the table must have at least one row", "none")
    return {name: [row[head.index(name)] for row in rows] for name in columns}


def whole_numbers(path: Path, column: str, texts: list[str]) -> npt.NDArray[np.int64]:
    """A text column as int64; the message names the first row that is none."""
    for row, text in enumerate(texts):
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 10:
            raise corrupt(path, f"{column} must be a whole number in row {row}", repr(text[:20]))
    return np.array([int(text) for text in texts], dtype=np.int64)
