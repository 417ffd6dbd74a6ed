"""Comma- and tab-separated text, checked line by line on its way to pandas, in bounded memory.

pandas parses; what stands before it finds the delimiter, the encoding and codes with leading zeros, and names the line
that is wrong. Of ten files as people have them pandas alone reads or refuses two rightly and pyarrow three
(bench results, ``encoders.jsonl``); the check costs 2 microseconds a line.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pandas as pd
from typing_extensions import override

from ...storage.archives import corrupt, open_decompressed

MISSING_MARKS = ("?", "-", "--", ".", "na", "Na", "N.A.", "n.a.", "NONE", "Null", "missing", "Missing")
"""What counts as missing besides pandas' own list: an empty field, NA, N/A, NaN, null, None."""

_SNIFFED = 2**20  # bytes that decide on the delimiter and on codes
_FEWEST = 3  # lines that are looked at, however long
_DELIMITERS = ",;\t|"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_END = re.compile(r"\r+(\n|\Z)")
_SAVE = "Save it as UTF-8 text."


@dataclass(frozen=True)
class Limits:
    """Bounds that a file must keep, so that a small one cannot fill the memory.

    Attributes:
        line: Bytes of one line of text: what is read ahead of a line break stays bounded.
        in_memory: Characters that are read at once; beyond, part by part.
        text: Bytes of text in one part of a parquet file, each value counted as often as it occurs.
        columns: Columns of one array.
    """

    line: int = 2**24
    in_memory: int = 2**31
    text: int = 2**29
    columns: int = 2**20


class DelimitedFile:
    """A csv or tsv file, plain or compressed as ``.gz`` or ``.bz2``: its delimiter, its header, its rows.

    Args:
        path: The file; ``.tsv`` has tabs, anything else what its first lines agree on.
        limits: What it may ask for.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        # The first lines decide on the delimiter and on codes.
        with self._open_lines() as lines:
            head: list[str] = []
            size = 0
            for line in lines:
                head.append(line)
                size += len(line)
                if size > _SNIFFED and len(head) > _FEWEST:  # a header may be longer than that alone
                    break
        self.delimiter = "\t"
        if ".tsv" not in [suffix.lower() for suffix in path.suffixes]:
            self.delimiter = _find_delimiter(head)
        with self._name_faults():
            rows = [row for row in csv.reader(iter(head), delimiter=self.delimiter) if row]

        # The header names each column once.
        if not rows:
            raise corrupt(path, "the table must have a header and at least one row", "an empty file", "")
        self.header = [name.strip() or f"column {i + 1}" for i, name in enumerate(rows[0])]
        if all(map(_is_number, rows[0])):
            got = ", ".join(rows[0][:3]) + ", ..."
            raise corrupt(path, "line 1 must name the columns", got, "Add a header line.")
        twice = [name for name, count in Counter(self.header).items() if count > 1]
        if twice:
            raise corrupt(path, "line 1 must name each column once", f"{twice[0]!r} twice", "Rename one of them.")
        if len(rows) == 1:
            raise corrupt(path, "the table must have at least one row", "a header only", "")

        # Columns such as postcodes stay text: a number would lose their leading zeros.
        places: set[int] = set()
        for row in rows[1:]:
            places |= {i for i, text in enumerate(row) if len(text) > 1 and text[0] == "0" and text.isdigit()}
        self.codes = [name for i, name in enumerate(self.header) if i in places]

    def frame(self, rows: int | None, text: list[str]) -> pd.DataFrame:
        """The first ``rows`` rows, or all; ``text`` columns as they are written."""
        with self._open_records(limit=self.limits.in_memory) as stream:
            frame: pd.DataFrame = pd.read_csv(stream, nrows=rows, **self._options(text))
        return frame.set_axis(self.header, axis=1)

    def chunks(self, rows: int, text: list[str]) -> Iterator[pd.DataFrame]:
        """All rows, ``rows`` at a time."""
        with (
            self._open_records(limit=None) as stream,
            pd.read_csv(stream, chunksize=rows, **self._options(text)) as chunks,
        ):
            for chunk in chunks:
                yield chunk.set_axis(self.header, axis=1)

    def _options(self, text: list[str]) -> dict[str, Any]:
        """What pandas is told of the file."""
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

    @contextlib.contextmanager
    def _open_records(self, limit: int | None) -> Iterator[_Records]:
        """The rows as checked text, of at most so many characters."""
        with self._name_faults(), self._open_lines() as lines:
            yield _Records(self.path, lines, self.delimiter, len(self.header), limit)

    @contextlib.contextmanager
    def _name_faults(self) -> Iterator[None]:
        """The parsers' errors, in our sentence."""
        try:
            yield
        except (pd.errors.ParserError, csv.Error, UnicodeError) as error:
            raise corrupt(self.path, "the table must be well formed", str(error).strip(), "") from error

    @contextlib.contextmanager
    def _open_lines(self) -> Iterator[Iterator[str]]:
        with open_decompressed(self.path) as stream:
            yield _decode(self.path, stream, self.limits.line)


class _Records(io.TextIOBase):
    """Text for pandas' parser that has passed a check of its shape; the header line is left out."""

    def __init__(self, path: Path, lines: Iterator[str], delimiter: str, columns: int, limit: int | None) -> None:
        self._path, self._columns, self._limit = path, columns, limit
        self._pending: list[str] = []
        self._rows = csv.reader(self._note_lines(lines), delimiter=delimiter)
        self._surplus, self._size = "", 0  # text that was not asked for yet; characters that were read
        while not next(self._rows):  # blank lines, then the header
            pass
        self._pending.clear()

    def _note_lines(self, lines: Iterator[str]) -> Iterator[str]:
        """The lines, each kept until its row has been counted."""
        for line in lines:
            self._pending.append(line)
            yield line

    @override
    def read(self, size: int | None = -1, /) -> str:
        # Whole rows, until there are enough characters; all rows for a size of None or below 0.
        if size is None:
            size = -1
        parts, length = [self._surplus], len(self._surplus)
        while size < 0 or length < size:
            row = next(self._rows, None)
            if row is None:
                break
            if row and len(row) != self._columns:
                need = f"line {self._rows.line_num} must have {self._columns} fields, as the header has"
                raise corrupt(self._path, need, len(row), "Quote fields that hold the delimiter.")
            text = "".join(self._pending)
            self._pending.clear()
            parts.append(text)
            length += len(text)
            self._size += len(text)
            if self._limit is not None and self._size > self._limit:
                fix = "Use mercer fit or tabular.read_chunks, which stream; or pass rows."
                raise corrupt(self._path, f"at most {self._limit} characters are read at once", "more", fix)
        # What is too much waits for the next call.
        text = "".join(parts)
        if size < 0:
            size = len(text)
        self._surplus = text[size:]
        return text[:size]


def _decode(path: Path, stream: IO[bytes], limit: int) -> Iterator[str]:
    """Lines of text, a byte-order mark dropped; what is not text is refused by its line.

    The text is UTF-8, or as Excel saves it: UTF-16 with its mark, or Windows-1252 where the first line beyond ASCII is
    no UTF-8. A file that has lines of both is refused. A lone CR within a line is read as a space.
    """
    if cast(io.BufferedReader, stream).peek(2)[:2] in _UTF16:
        stream = cast(IO[bytes], io.BufferedReader(_Recoded(stream)))
    lines = _split_lines(stream, limit)
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
        # The first line beyond ASCII decides; a later line of the other kind is refused.
        text = None
        for reads_as in ("utf-8", "cp1252"):
            with contextlib.suppress(UnicodeDecodeError):  # five bytes mean nothing in Windows-1252
                text = line.decode(reads_as)
                break
        if not line.isascii():
            encoding = encoding or reads_as
        if text is None or (not line.isascii() and encoding != reads_as):
            raise corrupt(path, "the text must be UTF-8", f"another byte in line {number}", _SAVE)
        # Lines end with LF here: a CR elsewhere is part of a field, which the parser would take for a line's end.
        yield _END.sub("\n", text).replace("\r", " ")


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


def _split_lines(stream: IO[bytes], limit: int) -> Iterator[bytes]:
    """Lines with their ends, at most ``limit + 1`` bytes each; a file whose only line ends are CR has them as LF."""
    first = stream.readline(limit + 1)
    if b"\r" not in first or b"\n" in first:
        while first:
            yield first
            first = stream.readline(limit + 1)
        return
    # Only CR: cut what readline took for one line, or as much of it as it may take, and read on.
    text = first
    while text:
        *lines, text = text.split(b"\r")
        yield from (line + b"\n" for line in lines)
        block = b""
        if len(text) <= limit:
            block = stream.read(2**16)
        if not block and text:
            yield text
            return
        text += block


def _find_delimiter(head: list[str]) -> str:
    """The delimiter that cuts the first lines into the most fields, as many in each; a comma where none does."""

    def fields(delimiter: str) -> int:
        try:
            counts = {len(row) for row in csv.reader(iter(head[:50]), delimiter=delimiter) if row}
        except csv.Error:  # such as a field of more than 131,072 letters: a line that another delimiter cuts
            return 0
        if len(counts) != 1:
            return 0
        return counts.pop()

    if not head:
        return ","
    best = max(_DELIMITERS, key=fields)
    if fields(best) > 1:
        return best
    return max(_DELIMITERS, key=lambda delimiter: head[0].count(delimiter))  # ragged: by the header


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
