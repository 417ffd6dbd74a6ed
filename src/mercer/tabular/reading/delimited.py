"""Comma- and tab-separated text, checked line by line on its way to pandas, in bounded memory."""

from __future__ import annotations

import csv
import io
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd
from typing_extensions import override

from ...storage import corrupt, open_decompressed
from .limits import Limits

MISSING_MARKS = ("?", "-", "--", ".", "na", "Na", "N.A.", "n.a.", "NONE", "Null", "missing", "Missing")
"""What counts as missing besides pandas' own list: an empty field, NA, N/A, NaN, null, None."""

_SNIFFED = 2**20  # bytes that decide on the delimiter and on codes
_FEWEST = 3  # lines that are looked at, however long
_DELIMITERS = ",;\t|"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
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
    """Lines of UTF-8 text, a byte-order mark dropped; what is not text is refused by its line."""
    lines = _split(stream, limit)
    number = 0
    while True:
        number += 1
        try:
            line = next(lines, b"")
        except (EOFError, OSError, zlib.error) as error:
            raise corrupt(path, "the compressed stream must be whole", str(error)[:100]) from error
        if not line:
            return
        if number == 1 and line[:2] in _UTF16:
            raise corrupt(path, "the text must be UTF-8", "UTF-16", _SAVE)
        if len(line) > limit:
            raise corrupt(path, f"line {number} must have at most {limit} bytes", "more", "Is it a table?")
        if b"\0" in line:
            raise corrupt(path, "the text must be UTF-8", f"a NUL byte in line {number}", _SAVE)
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise corrupt(path, "the text must be UTF-8", f"another byte in line {number}", _SAVE) from error


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
