"""Which reader a file needs, by the end of its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ... import checks
from ...storage.archives import corrupt, read_npz
from ...storage.files import check_replaceable
from .delimited import MISSING_MARKS, DelimitedFile, Limits
from .parquet import parquet_chunks, parquet_frame

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz", ".xlsx")
_LIMITS = Limits()
_OTHERS = {".txt": ".csv", ".tab": ".tsv", ".pq": ".parquet"}


def read(
    path: str | Path, *, rows: int | None = None, text: Sequence[str] = (), limits: Limits = _LIMITS
) -> pd.DataFrame:
    """The table in a file, with one type for each column.

    Csv and tsv may be compressed (``.gz``, ``.bz2``); their delimiter is found. An array ``(n, d)`` of an npz file
    becomes d columns ``name_0``, ``name_1``, ...; an array ``(n,)`` becomes one.

    Args:
        path: A csv, tsv, parquet, npz or (where openpyxl is installed) xlsx file; of the last, the first sheet.
        rows: Read only the first ``rows`` rows.
        text: Columns of a csv or tsv that stay text.
        limits: Largest sizes that the file may have.

    Raises:
        CorruptData: The file is not such a table; the message says where.
    """
    path, kind = _find_kind(path)
    if rows is not None:
        checks.integer("read", "rows", rows, 1)
    if kind == ".npz":
        return _read_arrays(path, limits).iloc[:rows]
    if kind == ".xlsx":
        return _read_sheet(path, limits).iloc[:rows]
    if kind == ".parquet":
        return parquet_frame(path, rows, limits)
    return DelimitedFile(path, limits).frame(rows, list(text))


def read_chunks(
    path: str | Path, *, rows: int = 50_000, text: Sequence[str] = (), limits: Limits = _LIMITS
) -> Iterator[pd.DataFrame]:
    """The table in parts of at most ``rows`` rows, with running row numbers; memory holds one part at a time.

    A column's type may differ between parts, as its values do: :class:`~mercer.tabular.Preparation` takes either.

    Args:
        path: A csv, tsv, parquet or npz file.
        rows: Rows of a part.
        text: Columns of a csv or tsv that stay text.
        limits: Largest sizes that the file may have.
    """
    path, kind = _find_kind(path)
    checks.integer("read_chunks", "rows", rows, 1)
    if kind in (".npz", ".xlsx"):
        if kind == ".npz":
            frame = _read_arrays(path, limits)
        else:
            frame = _read_sheet(path, limits)
        return (frame.iloc[start : start + rows] for start in range(0, len(frame), rows))
    if kind == ".parquet":
        return parquet_chunks(path, rows, limits)
    return DelimitedFile(path, limits).chunks(rows, list(text))


def _read_arrays(path: Path, limits: Limits) -> pd.DataFrame:
    """An array ``(n, d)`` becomes d columns ``name_0``, ``name_1``, ...; an array ``(n,)`` becomes one."""
    columns: dict[str, Any] = {}
    rows: dict[str, int] = {}
    for name, array in read_npz(path).items():
        if array.ndim == 0:
            raise corrupt(path, f"the array {name} must have rows", "a single number", "Leave it out.")
        rows[name] = len(array)
        # Text for bytes, this machine's byte order, and no wider floats than pandas and torch have.
        if array.dtype.kind == "S":
            try:
                array = np.char.decode(array, "utf-8")
            except UnicodeDecodeError as error:
                need = f"the array {name} must hold UTF-8 text"
                raise corrupt(path, need, "other bytes", "Write it as text.") from error
        elif array.dtype.kind == "f" and array.dtype.itemsize > 8:
            array = array.astype(np.float64)
        elif not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        # As columns, one for an array (n,).
        width = 0
        if array.size:
            width = array.size // len(array)
        wide = array.reshape(len(array), width)
        if wide.shape[1] > limits.columns:
            raise corrupt(path, f"the array {name} must have at most {limits.columns} columns", wide.shape[1], "")
        names = [f"{name}_{i}" for i in range(width)]
        if array.ndim == 1 and array.size:
            names = [name]
        twice = next((column for column in names if column in columns), None)
        if twice is not None:
            raise corrupt(path, "each column must have a name of its own", f"{twice!r} twice", "Rename an array.")
        columns |= dict(zip(names, wide.T, strict=True))
    if len(set(rows.values())) > 1:
        got = ", ".join(f"{count} in {name}" for name, count in list(rows.items())[:4])
        raise corrupt(path, "all arrays must have as many rows", got, "Save the arrays of one table only.")
    if not columns or not next(iter(rows.values())):
        raise corrupt(path, "the table must have at least one row and one column", "none", "")
    return pd.DataFrame(columns)


def _read_sheet(path: Path, limits: Limits) -> pd.DataFrame:
    """The first sheet of an Excel file, as pandas and openpyxl read it."""
    if path.stat().st_size > limits.in_memory:
        raise corrupt(path, f"at most {limits.in_memory} bytes are read at once", "more", "Save it as csv.")
    try:
        frame = pd.read_excel(path, engine="openpyxl", na_values=list(MISSING_MARKS))
    except ImportError as error:
        fix = "Install openpyxl (pip install openpyxl), or save the sheet as csv."
        raise ValueError(checks.sentence("read", f"{path.name} needs openpyxl", "none", fix)) from error
    except Exception as error:  # openpyxl raises whatever a broken archive makes it raise
        raise corrupt(path, "the file must be an Excel sheet", f"{type(error).__name__}: {error}"[:100]) from error
    if not len(frame) or not frame.shape[1]:
        raise corrupt(path, "the table must have a header and at least one row", "an empty sheet", "")
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def _find_kind(path: str | Path) -> tuple[Path, str]:
    """The file, where it is one that can be read, and the ending that names its reader."""
    path = Path(path)
    plain = path
    if path.suffix.lower() in (".gz", ".bz2"):
        plain = path.with_suffix("")
    kind = _OTHERS.get(plain.suffix.lower(), plain.suffix.lower())
    if not path.exists():
        raise FileNotFoundError(checks.sentence("read", f"{path} must be a file", "nothing there"))
    if kind not in SUFFIXES or path.is_dir():
        got = repr(path.name)
        if path.is_dir():
            got = f"the folder {got}"
        raise ValueError(checks.sentence("read", f"a table must be a file ending in {', '.join(SUFFIXES)}", got))
    return check_replaceable(path, "read"), kind
