"""How much a table's file may ask for."""

from __future__ import annotations

from dataclasses import dataclass


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
