"""Tables of other libraries as pandas frames."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .. import checks

_FIX = "Pass a pandas or polars DataFrame, or a pyarrow Table; read files with mercer.tabular.read."


def as_pandas(where: str, frame: Any) -> pd.DataFrame:
    """A table as a pandas frame: pandas as it is; polars (lazy too), pyarrow and what else narwhals knows converted.

    Args:
        where: Who asks, for the error sentence.
        frame: The table. It is not changed.

    Raises:
        TypeError: ``frame`` is no table.
        ValueError: A column holds complex numbers, whose imaginary parts would be lost.

    >>> as_pandas("fit", pd.DataFrame({"a": [1]})).columns.tolist()
    ['a']
    """
    if isinstance(frame, pd.DataFrame):
        table = frame
    else:
        import narwhals

        known = narwhals.from_native(frame, pass_through=True)
        if isinstance(known, narwhals.LazyFrame):
            known = known.collect()
        if not isinstance(known, narwhals.DataFrame):
            raise TypeError(checks.sentence(where, "frame must be a table", f"a {type(frame).__name__}", _FIX))
        try:
            table = known.to_pandas()
        except ImportError:  # polars goes through pyarrow, which is optional
            table = pd.DataFrame({column.name: column.to_list() for column in known.iter_columns()})
    for name, column in table.items():
        objects = column.dtype.kind == "O" and pd.api.types.infer_dtype(column, skipna=True) == "complex"
        if objects or column.dtype.kind == "c":
            need, fix = f"column {name!r} must be real", "Give its parts as two columns."
            raise ValueError("Complex data not supported. " + checks.sentence(where, need, "complex numbers", fix))
    return table


def is_table(value: Any) -> bool:
    """Whether :func:`as_pandas` takes it: a frame or table of a library that it knows, and no array."""
    if isinstance(value, pd.DataFrame):
        return True
    import narwhals

    known = narwhals.from_native(value, pass_through=True)
    return isinstance(known, narwhals.DataFrame | narwhals.LazyFrame)
