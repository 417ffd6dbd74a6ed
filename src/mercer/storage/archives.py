"""Bytes from files nobody has to trust: sizes are checked before reading, and nothing is unpickled."""

from __future__ import annotations

import bz2
import contextlib
import gzip
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

Array = npt.NDArray[Any]


class CorruptData(ValueError):  # noqa: N818 - it names the state of the data
    """A data file is not what its name promises: damaged, too large, ragged, or of another content."""


def corrupt(path: Path, need: str, got: object, fix: str = "Fetch the file again.") -> CorruptData:
    """The house's error sentence about a file, named without its folder."""
    return CorruptData(checks.sentence(path.name, need, got, fix))


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
            if names is None:
                names = members
            names = list(names)
            missing = [name for name in names if name not in members]
            if missing:
                raise corrupt(path, f"the arrays {', '.join(missing)} must be there", f"{len(members)} others")
            # The archive states the sizes after decompression: refuse before a byte is decoded.
            total = sum(members[name].file_size for name in names)
            if total > limit or len(names) > MEMBER_LIMIT:
                need = f"at most {MEMBER_LIMIT} arrays of {limit} bytes in all are read"
                raise corrupt(path, need, f"{len(names)} of {total} bytes", "Is it a decompression bomb?")
            return {name: _read_member(path, archive, members[name]) for name in names}
    except CorruptData:
        raise
    except _DAMAGE as error:
        raise corrupt(path, "the archive must be whole", _brief(error)) from error


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
            if npy.read_magic(stream) == (1, 0):
                shape, fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=HEADER_LIMIT)
            else:
                shape, fortran, dtype = npy.read_array_header_2_0(stream, max_header_size=HEADER_LIMIT)
        except ValueError as error:
            raise corrupt(path, f"{info.filename} must start like an npy array", _brief(error)) from error
        if dtype.kind not in "biufUSM":
            got = str(dtype)[:60]
            if dtype.hasobject:
                got = "pickled objects, which are never read"
            raise corrupt(path, f"{info.filename} must be a plain array of numbers or text", got)
        size, present = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
        if size != present:
            raise corrupt(path, f"{info.filename} must hold the {size} bytes its header states", present)
        flat = np.frombuffer(stream.read(), dtype=dtype)
    if fortran:
        return flat.reshape(shape, order="F")
    return flat.reshape(shape)


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__
