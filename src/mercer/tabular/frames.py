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

    >>> as_pandas("fit", pd.DataFrame({"a": [1]})).columns.tolist()
    ['a']
    """
    if isinstance(frame, pd.DataFrame):
        return frame
    import narwhals

    found = narwhals.from_native(frame, pass_through=True)
    if isinstance(found, narwhals.LazyFrame):
        found = found.collect()
    if not isinstance(found, narwhals.DataFrame):
        raise TypeError(checks.sentence(where, "frame must be a table", f"a {type(frame).__name__}", _FIX))
    try:
        return found.to_pandas()
    except ImportError:  # polars goes through pyarrow, which is optional
        return pd.DataFrame({column.name: column.to_list() for column in found.iter_columns()})
