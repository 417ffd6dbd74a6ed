"""A user's file in, a typed table out: csv, tsv, parquet, npz; every refusal is a sentence with the file's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import checks
from ..data.files import corrupt, read_npz
from .delimited import DelimitedFile

__all__ = ["read", "read_chunks"]

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
_OTHERS = {".txt": ".csv", ".tab": ".tsv", ".pq": ".parquet"}
_PYARROW = 'Install it: pip install "mercer[data]".'


def read(path: str | Path, *, rows: int | None = None, text: Sequence[str] = ()) -> pd.DataFrame:
    """The table in a file, with one type for each column.

    Csv and tsv may be compressed (``.gz``, ``.bz2``); their delimiter is found. An array ``(n, d)`` of an npz file
    becomes d columns ``name_0``, ``name_1``, ...; an array ``(n,)`` becomes one.

    Args:
        path: A csv, tsv, parquet or npz file.
        rows: Only the first so many.
        text: Columns of a csv or tsv to be left as they are written.

    Raises:
        CorruptData: The file is no such table; the sentence says where.
    """
    path, kind = _checked(path)
    if rows is not None:
        checks.integer("read", "rows", rows, 1)
    if kind == ".npz":
        return _npz(path).iloc[:rows]
    if kind == ".parquet":
        return _parquet(path, rows)
    return DelimitedFile(path).frame(rows, list(text))


def read_chunks(path: str | Path, *, rows: int = 50_000, text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """The table in parts of at most ``rows`` rows, numbered on; no more than one part of a csv, tsv or parquet is held.

    A column's type may differ between parts, as its values do: :class:`~mercer.tabular.Preparation` takes either.

    Args:
        path: A csv, tsv, parquet or npz file.
        rows: Rows of a part.
        text: Columns of a csv or tsv to be left as they are written.
    """
    path, kind = _checked(path)
    checks.integer("read_chunks", "rows", rows, 1)
    if kind == ".npz":
        frame = _npz(path)
        return (frame.iloc[start : start + rows] for start in range(0, len(frame), rows))
    if kind == ".parquet":
        return _parquet_chunks(path, rows)
    return DelimitedFile(path).chunks(rows, list(text))


def _checked(path: str | Path) -> tuple[Path, str]:
    path = Path(path)
    plain = path.with_suffix("") if path.suffix in (".gz", ".bz2") else path
    kind = _OTHERS.get(plain.suffix.lower(), plain.suffix.lower())
    if not path.exists():
        raise FileNotFoundError(checks.sentence("read", f"{path} must be a file", "nothing there"))
    if kind not in SUFFIXES or not path.is_file():
        got = f"{path.name!r}" if path.is_file() else f"the folder {path.name!r}"
        raise ValueError(checks.sentence("read", f"a table must be a file ending in {', '.join(SUFFIXES)}", got))
    return path, kind


def _npz(path: Path) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    rows: dict[str, int] = {}
    for name, array in read_npz(path).items():
        if array.ndim == 0:
            raise corrupt(path, f"the array {name} must have rows", "a single number", "Leave it out.")
        rows[name] = len(array)
        array = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
        wide = array.reshape(len(array), -1) if len(array) else array.reshape(0, 1)
        names = [name] if array.ndim == 1 else [f"{name}_{i}" for i in range(wide.shape[1])]
        columns |= dict(zip(names, wide.T, strict=True))
    if len(set(rows.values())) > 1:
        got = ", ".join(f"{count} in {name}" for name, count in list(rows.items())[:4])
        raise corrupt(path, "all arrays must have as many rows", got, "Save the arrays of one table only.")
    if not columns or not next(iter(rows.values())):
        raise corrupt(path, "the table must have at least one row", "none", "")
    return pd.DataFrame(columns)


def _parquet(path: Path, rows: int | None) -> pd.DataFrame:
    file = _opened_parquet(path)
    if rows is None:
        needed = 10 * file.metadata.num_rows * file.metadata.num_columns
        checks.memory("read", path.name, needed, "Use mercer fit or tabular.read_chunks, which stream; or pass rows.")
    parts, there = [], 0
    for part in _parquet_chunks(path, 50_000 if rows is None else min(rows, 50_000)):
        parts.append(part)
        there += len(part)
        if rows is not None and there >= rows:
            break
    return pd.concat(parts).iloc[:rows]


def _parquet_chunks(path: Path, rows: int) -> Iterator[pd.DataFrame]:
    file, start = _opened_parquet(path), 0
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=rows):
            part = batch.to_pandas().reset_index(drop=True)
            part.index = pd.RangeIndex(start, start + len(part))
            start += len(part)
            yield part
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise corrupt(path, "the parquet file must be whole", _brief(error)) from error


def _opened_parquet(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(checks.sentence("read", f"{path.name} needs pyarrow", "none", _PYARROW)) from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise corrupt(path, "the parquet file must be whole", _brief(error)) from error
    twice = [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]
    if twice:
        raise corrupt(path, "each column must have a name of its own", f"{twice[0]!r} twice", "Rename one of them.")
    if not file.metadata.num_rows:
        raise corrupt(path, "the table must have at least one row", "none", "")
    return file


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__
