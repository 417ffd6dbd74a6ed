"""A table's columns as lines of a page: those that are treated alike share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..columns.column import Column

_ALONE = 4  # columns alike up to which each has a line
_NAMED = 8  # names of a shared line


class ColumnLine(NamedTuple):
    """One line: the columns' names, what they are and what is done with them."""

    names: str
    kind: str
    how: str


def column_lines(columns: Sequence[Column]) -> list[ColumnLine]:
    """The lines in the table's order."""
    groups: dict[tuple[str, str], list[str]] = {}
    for column in columns:
        groups.setdefault((column.kind, column.how), []).append(column.name)
    lines, done = [], set()
    for column in columns:
        alike = groups[column.kind, column.how]
        if len(alike) <= _ALONE:
            lines.append(ColumnLine(column.name, column.kind, column.how))
        elif (column.kind, column.how) not in done:
            done.add((column.kind, column.how))
            named = len(alike) if column.dropped else _NAMED  # a column that is not used is named
            more = f" and {len(alike) - named} more" if len(alike) > named else ""
            lines.append(ColumnLine(", ".join(alike[:named]) + more, column.kind, f"each {column.how}"))
    return lines
