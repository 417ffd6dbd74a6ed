"""Comma- and tab-separated text, checked line by line on its way to pandas, in bounded memory."""

from __future__ import annotations

import codecs
import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pandas as pd
from typing_extensions import override

from ...storage.archives import corrupt, open_decompressed
from .limits import Limits

MISSING_MARKS = ("?", "-", "--", ".", "na", "Na", "N.A.", "n.a.", "NONE", "Null", "missing", "Missing")
"""What counts as missing besides pandas' own list: an empty field, NA, N/A, NaN, null, None."""

_SNIFFED = 2**20  # bytes that decide on the delimiter and on codes
_FEWEST = 3  # lines that are looked at, however long
_DELIMITERS = ",;\t|"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_END = re.compile(r"\r+(\n|\Z)")
_SAVE = "Save it as UTF-8 text."


class DelimitedFile:
    """A csv or tsv file, plain or compressed as ``.gz`` or ``.bz2``: its delimiter, its header, its rows.

    Args:
        path: The file; ``.tsv`` has tabs, anything else what its first lines agree on.
        limits: What it may ask for.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        with self._lines() as lines:
            head: list[str] = []
            size = 0
            for line in lines:
                head.append(line)
                size += len(line)
                if size > _SNIFFED and len(head) > _FEWEST:  # a header may be longer than that alone
                    break
        self.delimiter = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes] else _delimiter(head)
        with self._well_formed():
            rows = [row for row in csv.reader(iter(head), delimiter=self.delimiter) if row]
        self.header = self._checked_header(rows)
        self.codes = _codes(self.header, rows[1:])

    def frame(self, rows: int | None, text: list[str]) -> pd.DataFrame:
        """The first ``rows`` rows, or all; ``text`` columns as they are written."""
        with self._checked_stream(limit=self.limits.in_memory) as stream:
            return self._named(pd.read_csv(stream, nrows=rows, **self._options(text)))

    def chunks(self, rows: int, text: list[str]) -> Iterator[pd.DataFrame]:
        """All rows, ``rows`` at a time."""
        with (
            self._checked_stream(limit=None) as stream,
            pd.read_csv(stream, chunksize=rows, **self._options(text)) as chunks,
        ):
            for chunk in chunks:
                yield self._named(chunk)

    def _named(self, frame: pd.DataFrame) -> pd.DataFrame:
        frame.columns = pd.Index(self.header)
        return frame

    def _options(self, text: list[str]) -> dict[str, Any]:
        written = {*text, *self.codes}
        return {
            "sep": self.delimiter,
            "engine": "c",
            "header": None,
            "names": range(len(self.header)),
            "na_values": list(MISSING_MARKS),
            "skipinitialspace": True,
            "low_memory": False,  # one type for a column, decided on all of its rows
            "dtype": {i: str for i, name in enumerate(self.header) if name in written},
        }

    def _checked_header(self, rows: list[list[str]]) -> list[str]:
        if not rows:
            raise corrupt(self.path, "the table must have a header and at least one row", "an empty file", "")
        header = [name.strip() or f"column {i + 1}" for i, name in enumerate(rows[0])]
        if all(map(_is_number, rows[0])):
            got = ", ".join(rows[0][:3]) + ", ..."
            raise corrupt(self.path, "line 1 must name the columns", got, "Add a header line.")
        twice = [name for name, count in Counter(header).items() if count > 1]
        if twice:
            raise corrupt(self.path, "line 1 must name each column once", f"{twice[0]!r} twice", "Rename one of them.")
        if len(rows) == 1:
            raise corrupt(self.path, "the table must have at least one row", "a header only", "")
        return header

    @contextmanager
    def _checked_stream(self, limit: int | None) -> Iterator[_Records]:
        with self._well_formed(), self._lines() as lines:
            yield _Records(self.path, lines, self.delimiter, len(self.header), limit)

    @contextmanager
    def _well_formed(self) -> Iterator[None]:
        try:
            yield
        except (pd.errors.ParserError, csv.Error, UnicodeError) as error:
            raise corrupt(self.path, "the table must be well formed", str(error).strip(), "") from error

    @contextmanager
    def _lines(self) -> Iterator[Iterator[str]]:
        with open_decompressed(self.path) as stream:
            yield _decoded(self.path, stream, self.limits.line)


class _Records(io.TextIOBase):
    """Text for pandas' parser that has passed a check of its shape; the header line is left out."""

    def __init__(self, path: Path, lines: Iterator[str], delimiter: str, columns: int, limit: int | None) -> None:
        self._path, self._columns, self._limit = path, columns, limit
        self._pending: list[str] = []
        self._rows = csv.reader(self._noted(lines), delimiter=delimiter)
        self._left, self._size = "", 0
        while not next(self._rows):  # blank lines, then the header
            pass
        self._pending.clear()

    def _noted(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self._pending.append(line)
            yield line

    @override
    def read(self, size: int | None = -1, /) -> str:
        wanted = -1 if size is None else size
        parts, there = [self._left], len(self._left)
        while wanted < 0 or there < wanted:
            row = next(self._rows, None)
            if row is None:
                break
            if row and len(row) != self._columns:
                need = f"line {self._rows.line_num} must have {self._columns} fields, as the header has"
                raise corrupt(self._path, need, len(row), "Quote fields that hold the delimiter.")
            text = "".join(self._pending)
            self._pending.clear()
            parts.append(text)
            there += len(text)
            self._count(len(text))
        whole = "".join(parts)
        cut = len(whole) if wanted < 0 else wanted
        self._left = whole[cut:]
        return whole[:cut]

    def _count(self, characters: int) -> None:
        self._size += characters
        if self._limit is not None and self._size > self._limit:
            fix = "Use mercer fit or tabular.read_chunks, which stream; or pass rows."
            raise corrupt(self._path, f"at most {self._limit} characters are read at once", "more", fix)


def _decoded(path: Path, stream: IO[bytes], limit: int) -> Iterator[str]:
    """Lines of text, a byte-order mark dropped; what is not text is refused by its line.

    The text is UTF-8, or as Excel saves it: UTF-16 with its mark, or Windows-1252 where the first line beyond ASCII is
    no UTF-8. A file that has lines of both is refused. A lone CR within a line is read as a space.
    """
    start = stream.read(2)
    stream = cast(IO[bytes], io.BufferedReader(_Joined(start, stream)))
    if start in _UTF16:
        stream = cast(IO[bytes], io.BufferedReader(_Recoded(stream)))
    lines = _split(stream, limit)
    number = 0
    encoding = ""  # until a line beyond ASCII decides
    while True:
        number += 1
        try:
            line = next(lines, b"")
        except (EOFError, OSError, zlib.error) as error:
            raise corrupt(path, "the compressed stream must be whole", str(error)[:100]) from error
        if not line:
            return
        if len(line) > limit:
            raise corrupt(path, f"line {number} must have at most {limit} bytes", "more", "Is it a table?")
        if b"\0" in line:
            raise corrupt(path, "the text must be UTF-8", f"a NUL byte in line {number}", _SAVE)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.isascii():
            reads_as = "utf-8" if _is_utf8(line) else "cp1252"
            encoding = encoding or reads_as
            if encoding != reads_as:
                raise corrupt(path, "the text must be UTF-8", f"another byte in line {number}", _SAVE)
        try:
            text = line.decode(encoding or "ascii")
        except UnicodeDecodeError as error:  # five bytes mean nothing in Windows-1252
            raise corrupt(path, "the text must be UTF-8", f"another byte in line {number}", _SAVE) from error
        # lines end with LF here, so a CR elsewhere is part of a field, which the parser would take for a line's end
        yield _END.sub("\n", text).replace("\r", " ")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class _Joined(io.RawIOBase):
    """A stream with the bytes that were already read from it put back."""

    def __init__(self, start: bytes, stream: IO[bytes]) -> None:
        self._start, self._stream = start, stream

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any, /) -> int:
        data = self._start[: len(buffer)] or self._stream.read(len(buffer))
        self._start = self._start[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Recoded(io.RawIOBase):
    """UTF-16 as UTF-8; what is no UTF-16 becomes a NUL byte, which is refused by its line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._pending = stream, b""
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any, /) -> int:
        while not self._pending:
            data = self._stream.read(2**16)
            text = self._decoder.decode(data, final=not data)
            self._pending = text.replace("\ufffd", "\0").encode()
            if not data and not self._pending:
                return 0
        size = min(len(buffer), len(self._pending))
        buffer[:size], self._pending = self._pending[:size], self._pending[size:]
        return size


def _split(stream: IO[bytes], limit: int) -> Iterator[bytes]:
    """Lines with their ends, at most ``limit + 1`` bytes each; a file whose only line ends are CR has them as LF."""
    first = stream.readline(limit + 1)
    if b"\r" not in first or b"\n" in first:
        while first:
            yield first
            first = stream.readline(limit + 1)
        return
    rest = first  # what readline took for one line, or as much of it as it may take
    while rest:
        *lines, rest = rest.split(b"\r")
        yield from (line + b"\n" for line in lines)
        more = stream.read(2**16) if len(rest) <= limit else b""
        if not more and rest:
            yield rest
            return
        rest += more


def _delimiter(head: list[str]) -> str:
    """The delimiter that cuts the first lines into the most fields, as many in each; a comma where none does."""

    def fields(delimiter: str) -> int:
        try:
            counts = {len(row) for row in csv.reader(iter(head[:50]), delimiter=delimiter) if row}
        except csv.Error:  # such as a field of more than 131,072 letters: a line that another delimiter cuts
            return 0
        return counts.pop() if len(counts) == 1 else 0

    best = max(_DELIMITERS, key=fields)
    if fields(best) > 1 or not head:
        return best if head else ","
    return max(_DELIMITERS, key=lambda delimiter: head[0].count(delimiter))  # ragged: by the header


def _codes(header: list[str], rows: list[list[str]]) -> list[str]:
    """Columns such as postcodes, whose leading zeros a number would lose."""
    codes = set()
    for row in rows:
        codes |= {i for i, text in enumerate(row) if len(text) > 1 and text[0] == "0" and text.isdigit()}
    return [name for i, name in enumerate(header) if i in codes]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
