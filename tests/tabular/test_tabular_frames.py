"""Frames of other libraries."""

import sys

import numpy as np
import pandas as pd
import pytest

from mercer.tabular import diagnose
from mercer.tabular.frames import as_pandas

polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")

COLUMNS = {"a": [1.5, None, 3.0], "b": ["x", "y", None], "c": [1, 2, 3], "d": [True, False, True]}
MAKERS = {
    "pandas": pd.DataFrame,
    "polars": polars.DataFrame,
    "lazy": lambda columns: polars.DataFrame(columns).lazy(),
    "arrow": pyarrow.table,
}


@pytest.mark.parametrize("library", MAKERS)
def test_every_library_gives_the_same_table(library):
    found = as_pandas("fit", MAKERS[library](COLUMNS))
    pd.testing.assert_frame_equal(found, pd.DataFrame(COLUMNS), check_dtype=False)


def test_polars_dates_and_categories_keep_their_kind():
    frame = polars.DataFrame({"d": ["2020-01-05", "2020-02-01"], "c": ["u", "v"]}).with_columns(
        polars.col("d").str.to_date(), polars.col("c").cast(polars.Categorical)
    )
    found = as_pandas("fit", frame)
    assert found["d"].dtype.kind == "M" and isinstance(found["c"].dtype, pd.CategoricalDtype)


def test_polars_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = as_pandas("fit", polars.DataFrame(COLUMNS))
    pd.testing.assert_frame_equal(found, pd.DataFrame(COLUMNS), check_dtype=False)


@pytest.mark.parametrize("frame", [[1, 2], {"a": [1]}, None, "t.csv", np.zeros((2, 2))], ids=lambda x: type(x).__name__)
def test_what_is_no_table_is_refused(frame):
    with pytest.raises(TypeError, match=r"fit: frame must be a table; got a .*Pass a pandas or polars DataFrame"):
        as_pandas("fit", frame)


def test_diagnose_takes_polars():
    rng = np.random.default_rng(0)
    frame = polars.DataFrame({"x": rng.normal(size=40), "y": ["a", "b"] * 20})
    found = diagnose(frame, "y", rows=40)
    assert found.rows == 40 and [column.name for column in found.columns] == ["x"]
    with pytest.raises(ValueError, match=r"must be one of the columns x, y; got 'z'"):
        diagnose(frame, "z")
