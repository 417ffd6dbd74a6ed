"""Parquet files, part by part, with a bound on what a small file may decode to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from ... import checks
from ...storage.archives import corrupt
from ...storage.files import open_to_read
from .delimited import Limits

_ROWS = 50_000  # decoded at a time
_PYARROW = 'Install it: pip install "mercer[data]".'


def parquet_frame(path: Path, rows: int | None, limits: Limits) -> pd.DataFrame:
    """The first ``rows`` rows, or all."""
    if rows is None:
        with _open(path) as (file, _):
            needed = 10 * file.metadata.num_rows * file.metadata.num_columns
        checks.memory("read", path.name, needed, "Use mercer fit or tabular.read_chunks, which stream; or pass rows.")
    size = _ROWS
    if rows is not None:
        size = min(rows, _ROWS)
    parts, count = [], 0
    for part in parquet_chunks(path, size, limits):
        parts.append(part)
        count += len(part)
        if rows is not None and count >= rows:
            break
    return pd.concat(parts).iloc[:rows]


def parquet_chunks(path: Path, rows: int, limits: Limits) -> Iterator[pd.DataFrame]:
    """All rows, ``rows`` at a time, numbered on."""
    start = 0
    with _open(path) as (file, texts), _name_faults(path):
        for batch in file.iter_batches(batch_size=rows):
            _check_text(path, batch, limits.text)
            part = batch.to_pandas().reset_index(drop=True)
            for name in texts:  # values that occur often are one object each
                part[name] = _decode(path, name, part[name].astype(object))
            part.index = pd.RangeIndex(start, start + len(part))
            start += len(part)
            yield part


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, list[str]]]:
    """The file, and its columns of text or bytes, as a dictionary: a long value that repeats is held once."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(checks.sentence("read", f"{path.name} needs pyarrow", "none", _PYARROW)) from error
    with open_to_read(path) as stream:
        with _name_faults(path):
            schema = parquet.ParquetFile(stream).schema_arrow
            texts = [field.name for field in schema if _is_text(field.type)]
            stream.seek(0)
            file = parquet.ParquetFile(stream, read_dictionary=texts)
        twice = [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]
        if twice:
            raise corrupt(path, "each column must have a name of its own", f"{twice[0]!r} twice", "Rename one of them.")
        if not file.metadata.num_rows:
            raise corrupt(path, "the table must have at least one row", "none", "")
        yield file, texts


@contextmanager
def _name_faults(path: Path) -> Iterator[None]:
    """What pyarrow says of a damaged file, in our sentence."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        text = " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__
        if isinstance(error, UnicodeError) or "Wrapping" in text:  # how pyarrow says that a text cannot be decoded
            raise corrupt(path, "text must be UTF-8", "other bytes", "Write it as UTF-8 text.") from error
        raise corrupt(path, "the parquet file must be whole", text) from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _check_text(path: Path, batch: Any, limit: int) -> None:
    """Count what the texts come to before they are there."""
    from pyarrow import compute, types

    size = 0
    for column in batch.columns:
        if types.is_dictionary(column.type) and _is_text(column.type.value_type):
            lengths = compute.binary_length(column.dictionary).to_numpy(zero_copy_only=False)
            places = column.indices.drop_null().to_numpy(zero_copy_only=False)
            if len(lengths):
                size += int(lengths[places].sum())
    if size > limit:
        need = f"{batch.num_rows} rows must hold at most {limit / 2**30:.3g} GiB of text"
        raise corrupt(path, need, f"{size / 2**30:.3g} GiB", "Is it a decompression bomb? Else shorten the texts.")


def _decode(path: Path, name: str, values: pd.Series[Any]) -> pd.Series[Any]:
    """Bytes as text, for a column that was written without a type."""
    if not isinstance(next((value for value in values if value is not None), None), bytes):
        return values
    try:
        return values.map(lambda value: value.decode() if isinstance(value, bytes) else value)
    except UnicodeDecodeError as error:
        raise corrupt(path, f"column {name!r} must hold UTF-8 text", "other bytes", "Write it as text.") from error
