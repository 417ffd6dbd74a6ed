"""Arrays of an npz file as columns of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...storage.archives import corrupt, read_npz
from .limits import Limits


def npz_frame(path: Path, limits: Limits) -> pd.DataFrame:
    """An array ``(n, d)`` becomes d columns ``name_0``, ``name_1``, ...; an array ``(n,)`` becomes one."""
    columns: dict[str, Any] = {}
    rows: dict[str, int] = {}
    for name, array in read_npz(path).items():
        if array.ndim == 0:
            raise corrupt(path, f"the array {name} must have rows", "a single number", "Leave it out.")
        rows[name] = len(array)
        wide = _plain(path, name, array).reshape(len(array), -1 if array.size else 0)
        if wide.shape[1] > limits.columns:
            raise corrupt(path, f"the array {name} must have at most {limits.columns} columns", wide.shape[1], "")
        names = [name] if array.ndim == 1 and array.size else [f"{name}_{i}" for i in range(wide.shape[1])]
        twice = next((one for one in names if one in columns), None)
        if twice is not None:
            raise corrupt(path, "each column must have a name of its own", f"{twice!r} twice", "Rename an array.")
        columns |= dict(zip(names, wide.T, strict=True))
    if len(set(rows.values())) > 1:
        got = ", ".join(f"{count} in {name}" for name, count in list(rows.items())[:4])
        raise corrupt(path, "all arrays must have as many rows", got, "Save the arrays of one table only.")
    if not columns or not next(iter(rows.values())):
        raise corrupt(path, "the table must have at least one row and one column", "none", "")
    return pd.DataFrame(columns)


def _plain(path: Path, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Text for bytes, this machine's byte order, and no wider floats than pandas and torch have."""
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise corrupt(path, f"the array {name} must hold UTF-8 text", "other bytes", "Write it as text.") from error
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
