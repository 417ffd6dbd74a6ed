"""Rows that stay in their file: a numpy memmap, a safetensors file, a parquet table, read where they are indexed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checks import floating, integer, sentence, squarable
from ..distributed import gather_json

Read: TypeAlias = Callable[[int, int], Tensor]  # first row, row behind the last -> rows
_KINDS = (".npy", ".safetensors", ".parquet")


class StoredRows:
    """Rows of a file, indexed like a tensor; every read is checked: finite, small enough to be squared.

    Methods that sum over rows take them in place of a tensor and hold one block at a time.

    Args:
        read: Gives rows first..last of the file.
        shape: Shape of the whole array.
        where: The file's name, for messages.
        part: Which of the file's rows; None for all, a rank's own with ``distributed.shard(n)``.
    """

    def __init__(self, read: Read, shape: Sequence[int], where: str, part: slice | None = None) -> None:
        self._read, self._where = read, where
        self._first, last, _ = (part or slice(None)).indices(shape[0])
        self.shape = torch.Size([max(0, last - self._first), *shape[1:]])
        empty = self[:0]  # what a read gives may have another shape and dtype than the file
        self.shape, self.dtype = torch.Size([len(self), *empty.shape[1:]]), empty.dtype

    ndim = property(lambda self: len(self.shape))
    device = torch.device("cpu")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """A block of rows, or rows by number; these are read in order of number, each once."""
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return self._rows(first, max(first, last))[::step]
        # Read each row once, in the order of the file, neighbors together; then put them in the order of the index.
        numbers, back = index.cpu().unique(return_inverse=True)
        if not len(numbers):
            return self._rows(0, 0)
        ends = [*(numbers.diff() > 1).nonzero()[:, 0].add(1).tolist(), len(numbers)]  # runs of neighbors
        runs = [numbers[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return torch.cat([self._rows(int(run[0]), int(run[-1]) + 1) for run in runs])[back]

    def is_floating_point(self) -> bool:
        """True: whole numbers are read as floats."""
        return True

    def part(self, rows: slice) -> StoredRows:
        """A slice of the rows, still in the file."""
        first, last, _ = rows.indices(len(self))
        shape = (self._first + len(self), *self.shape[1:])
        return StoredRows(self._read, shape, self._where, slice(self._first + first, self._first + last))

    def then(self, f: Callable[[Tensor], Tensor]) -> StoredRows:
        """The rows as ``f`` makes them when they are read: another dtype, a check, a map of each row."""
        shape = (self._first + len(self), *self.shape[1:])
        part = slice(self._first, self._first + len(self))
        return StoredRows(lambda first, last: f(self._read(first, last)), shape, self._where, part)

    def blocks(self, rows: int = 50_000) -> Iterator[Tensor]:
        """All rows in blocks, for ``partial_fit`` or your own sums.

        All ranks get the same number of blocks, because all must make the same calls; some may be empty.
        """
        integer("StoredRows.blocks", "rows", rows, 1)
        # A rank that has run out of rows goes on with empty blocks.
        longest = max(gather_json(len(self)))
        return (self[start : start + rows] for start in range(0, longest, rows))

    def _rows(self, first: int, last: int) -> Tensor:
        rows = floating(self._read(self._first + first, self._first + last))
        where = f"{self._where}, read from row {self._first + first} on"
        return squarable(where, "rows", rows, empty=True)


Readable: TypeAlias = Tensor | StoredRows


def open_rows(
    path: str | Path | NDArray[Any], *, name: str | None = None, columns: Sequence[str] | None = None
) -> StoredRows:
    """Rows of a file, or of a memmap, without reading them.

    Args:
        path: A file ``.npy``, ``.safetensors`` or ``.parquet``, or an ``np.memmap``.
        name: Name of the tensor in a safetensors file; None where it holds one.
        columns: Columns of a parquet table; None for all, which must be numbers.
    """
    if isinstance(path, np.ndarray):
        return StoredRows(_read_array(path), path.shape, "open_rows")
    path = Path(path)
    if path.suffix not in _KINDS:
        raise ValueError(sentence("open_rows", f"path must end in {', '.join(_KINDS)}", path.name))

    # .npy: a memmap, so that the system reads the pages that are asked for.
    if path.suffix == ".npy":
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise ValueError(sentence("open_rows", f"{path.name} must be an array of numbers", error)) from error
        return StoredRows(_read_array(array), array.shape, path.name)
    if path.suffix == ".parquet":
        return _open_parquet(path, columns)

    # safetensors: one tensor of the file, by name where it holds several.
    from safetensors import safe_open

    file = safe_open(path, "pt")
    names = list(file.keys())
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        need = f"name must be one of {', '.join(map(repr, names))}"
        raise ValueError(sentence("open_rows", need, repr(name)))
    rows = file.get_slice(name)
    return StoredRows(lambda first, last: rows[first:last], rows.get_shape(), path.name)


def _read_array(array: NDArray[Any]) -> Read:
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        got = f"{array.dtype} of {array.shape}"
        raise ValueError(sentence("open_rows", "path must hold numbers of shape (n, ...)", got))
    native = array.dtype.newbyteorder("=")
    return lambda first, last: torch.from_numpy(np.array(array[first:last], dtype=native, order="C"))


def _open_parquet(path: Path, columns: Sequence[str] | None) -> StoredRows:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    if columns is None:
        columns = file.schema_arrow.names
    names = list(columns)

    # Where each row group ends, to find the groups that hold given rows.
    groups = range(file.metadata.num_row_groups)
    ends = list(accumulate(file.metadata.row_group(group).num_rows for group in groups))

    def read(first: int, last: int) -> Tensor:
        if first >= last:
            return torch.empty(0, len(names), dtype=torch.float64)
        # Decode only the row groups that hold these rows.
        low, high = bisect_right(ends, first), bisect_right(ends, last - 1)
        table = file.read_row_groups(list(range(low, high + 1)), columns=names)
        # Take the rows out of each column; the first group decoded starts at row `ends[low - 1]`.
        start = first - [0, *ends][low]
        parts = []
        for name in names:
            values = table.column(name).slice(start, last - first).to_numpy()
            if values.dtype.kind not in "biuf":
                need = f"column {name!r} of {path.name} must be numbers"
                fix = "Give columns=, or prepare the table with mercer.tabular."
                raise ValueError(sentence("open_rows", need, values.dtype, fix))
            parts.append(np.asarray(values, dtype=np.float64))
        return torch.from_numpy(np.stack(parts, axis=1))

    return StoredRows(read, (file.metadata.num_rows, len(names)), path.name)
