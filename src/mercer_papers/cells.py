"""The input and the output of one run of an entry: `Cell` in, `Outcome` out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SCALES = ("smoke", "small", "paper")


class MissingPackage(ImportError):  # noqa: N818
    """A cell needs an optional package that is not installed; its message says how to get it. The cell is *missing*."""


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one curve of a figure: the whole input of ``run``.

    Args:
        entry: the id, ``"spectral2019/table1"``.
        row: the row as ``published/<paper>.toml`` spells it, so that theirs and ours meet.
        column: the column, likewise; ``""`` where one run gives a whole row (then ``Outcome.values`` has the columns).
        settings: everything else ``run`` depends on, as JSON values.
        data: names of the data sets that must be found in ``MERCER_DATA``; none for what ships with a dependency.
        seeds: how many seeds to run at this scale; None where nothing is random (``--seeds`` then changes nothing).
        seed: set by the runner, 0 .. seeds - 1.
        device: set by the runner, where networks are trained; not part of the key, for the result is the same.
    """

    entry: str
    row: str = ""
    column: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Sequence[str] = ()
    seeds: int | None = None
    seed: int = 0
    device: str = "cpu"

    def key(self) -> str:
        """A digest of all that the result depends on: the same key, the same result."""
        inputs = [self.entry, self.row, self.column, self.seed, dict(self.settings), list(self.data)]
        text = json.dumps(inputs, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def over_seeds(self, seeds: int | None = None) -> Iterator[Cell]:
        """This cell once for each seed; ``seeds`` overrides the entry's own count."""
        count = 1 if self.seeds is None else (seeds or self.seeds)
        return (replace(self, seed=seed) for seed in range(count))


@dataclass(frozen=True)
class Outcome:
    """The answer of ``run``. Every number must be finite: a NaN or an infinity fails the cell.

    Args:
        value: the cell's number, compared with the published one of the same row and column.
        values: further numbers by name; the columns, where the cell is a whole row.
        curves: by name, ``{"x": [...], "y": [...]}`` (and ``"low"``, ``"high"`` for a band).
        arrays: by name, nested lists of numbers (a heat map, a decision region), for ``draw``.
        passed: of a check, whether the paper's claim held (a claim that fails is a result, not an error).
        note: one sentence for the reader of the page.
    """

    value: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    passed: bool | None = None
    note: str = ""

    def plain(self) -> Outcome:
        """This outcome with Python's own numbers and lists in place of tensors and arrays, as JSON needs them."""
        return replace(
            self,
            value=None if self.value is None else float(self.value),
            values={name: float(number) for name, number in self.values.items()},
            curves=_plain(self.curves),
            arrays=_plain(self.arrays),
            passed=None if self.passed is None else bool(self.passed),
        )


def non_finite(outcome: Outcome) -> str | None:
    """Where the first NaN or infinity of an outcome stands, as ``"values['loss']"``; None when all is finite."""
    if outcome.value is not None and not math.isfinite(outcome.value):
        return f"value is {outcome.value}"
    for name, number in outcome.values.items():
        if not math.isfinite(number):
            return f"values[{name!r}] is {number}"
    # the numbers of curves and arrays
    for kind, group in (("curves", outcome.curves), ("arrays", outcome.arrays)):
        for name, numbers in group.items():
            bad = next((x for x in _flat(numbers) if not math.isfinite(x)), None)
            if bad is not None:
                return f"{kind}[{name!r}] holds {bad}"
    return None


def _flat(numbers: Any) -> Iterator[float]:
    if isinstance(numbers, int | float):
        yield numbers
        return
    if isinstance(numbers, Mapping):
        numbers = numbers.values()
    for part in numbers:
        yield from _flat(part)


def _plain(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value]
