"""Bytes from files nobody has to trust: sizes are checked before reading, checksums once, and nothing is unpickled."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from .. import checks
from .files import check_replaceable, open_to_read

FILE_LIMIT = 2**29  # bytes on disk
DECODED_LIMIT = 2**30  # bytes after decompression, all arrays of a file together
MEMBER_LIMIT = 1000  # arrays in one npz
HEADER_LIMIT = 10_000  # bytes of an array's header

_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, struct.error, OverflowError)
_verified: set[tuple[str, int, int, str]] = set()

Array = npt.NDArray[Any]


class CorruptData(ValueError):  # noqa: N818 - it names the state of the data
    """A data file is not what its name promises: damaged, too large, ragged, or of another content."""


def corrupt(path: Path, need: str, got: object, fix: str = "Fetch the file again.") -> CorruptData:
    """The house's error sentence about a file, named without its folder."""
    return CorruptData(checks.sentence(path.name, need, got, fix))


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


def checked_size(path: Path, limit: int = FILE_LIMIT) -> Path:
    """Refuse a file of more than ``limit`` bytes before a byte of it is read."""
    size = check_replaceable(path, "read").stat().st_size
    if size > limit:
        raise corrupt(path, f"the file must have at most {limit} bytes", size, "Is it another file of that name?")
    return path


def decompress(path: Path, *, limit: int = DECODED_LIMIT) -> bytes:
    """The content of a plain, ``.gz`` or ``.bz2`` file, of which at most ``limit`` bytes are ever decoded."""
    checked_size(path)
    try:
        with open_decompressed(path) as stream:
            # One byte more than is allowed shows that there is more.
            content = stream.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise corrupt(path, "the compressed stream must be whole", _brief(error)) from error
    if len(content) > limit:
        raise corrupt(path, f"the content must have at most {limit} bytes", "more", "Is it a decompression bomb?")
    return content


def read_npz(path: Path, names: Iterable[str] | None = None, *, limit: int = DECODED_LIMIT) -> dict[str, Array]:
    """The named arrays of an npz file (all where None): never an object array, never more than ``limit`` bytes."""
    checked_size(path)
    try:
        with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = list(members) if names is None else list(names)
            missing = [name for name in wanted if name not in members]
            if missing:
                raise corrupt(path, f"the arrays {', '.join(missing)} must be there", f"{len(members)} others")
            # The archive states the sizes after decompression: refuse before a byte is decoded.
            total = sum(members[name].file_size for name in wanted)
            if total > limit or len(wanted) > MEMBER_LIMIT:
                need = f"at most {MEMBER_LIMIT} arrays of {limit} bytes in all are read"
                raise corrupt(path, need, f"{len(wanted)} of {total} bytes", "Is it a decompression bomb?")
            return {name: _read_member(path, archive, members[name]) for name in wanted}
    except CorruptData:
        raise
    except _DAMAGE as error:
        raise corrupt(path, "the archive must be whole", _brief(error)) from error


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


@contextlib.contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a plain, ``.gz`` or ``.bz2`` file, as a stream."""
    with open_to_read(path) as file, contextlib.ExitStack() as stack:
        match path.suffix.lower():
            case ".gz":
                yield cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file)))
            case ".bz2":
                yield cast(IO[bytes], stack.enter_context(bz2.BZ2File(file)))
            case _:
                yield file


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """One array, after its header agreed with the bytes that are there: a header alone must not make us allocate."""
    with archive.open(info) as stream:
        try:
            version = npy.read_magic(stream)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read_header(stream, max_header_size=HEADER_LIMIT)
        except ValueError as error:
            raise corrupt(path, f"{info.filename} must start like an npy array", _brief(error)) from error
        if dtype.kind not in "biufUSM":
            got = "pickled objects, which are never read" if dtype.hasobject else str(dtype)[:60]
            raise corrupt(path, f"{info.filename} must be a plain array of numbers or text", got)
        size, present = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
        if size != present:
            raise corrupt(path, f"{info.filename} must hold the {size} bytes its header states", present)
        flat = np.frombuffer(stream.read(), dtype=dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__
