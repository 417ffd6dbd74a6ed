"""Sizes and the monomials in them that costs are sums of: ``"n^2 d"`` at n = 10, d = 3 is 300."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LETTERS = ("n", "d", "c", "k")
Size = Mapping[str, int]


def monomial(term: str, values: Mapping[str, float]) -> float:
    """The value of a term: letters with an optional exponent, a product of them; ``"1"`` is the constant."""
    product = 1.0
    for factor in term.split():
        letter, _, power = factor.partition("^")
        product *= 1.0 if letter == "1" else values[letter] ** int(power or 1)
    return product


@dataclass(frozen=True)
class Method:
    """A method whose growth is measured.

    Args:
        name: as the command line has it.
        what: the work that is timed.
        letters: what n, d, c and k count here; a letter that is left out plays no part.
        base: the size at which the other letters stay while one grows.
        axes: for each letter the sizes measured, two decades or what memory and time allow.
        seconds: the terms that the CPU time is a sum of; their coefficients are measured.
        memory: the same for the peak.
        setup: makes the data for a size, untimed.
        work: the work.
        share: of the work that is reported: 0.05 for one step of twenty.
        derived: further letters that terms may use, from the size.
        shared: whether ranks share the terms that grow with the rows.
        whole: of those the ones that every rank pays in full all the same, such as rows that all need.
    """

    name: str
    what: str
    letters: Mapping[str, str]
    base: Size
    axes: Mapping[str, tuple[int, ...]]
    seconds: tuple[str, ...]
    memory: tuple[str, ...]
    setup: Callable[[Size], Any]
    work: Callable[[Any], Any]
    share: float = 1.0
    derived: Mapping[str, Callable[[Size], float]] = field(default_factory=dict)
    shared: bool = True
    whole: tuple[str, ...] = ()

    def sizes(self) -> list[dict[str, int]]:
        """The sizes to measure: along each axis, the others at the base; each once."""
        along = [{**self.base, letter: value} for letter, values in self.axes.items() for value in values]
        return list({tuple(size.items()): size for size in along}.values())

    def values(self, size: Size) -> dict[str, float]:
        """The letters of a size, the derived ones included."""
        return {**size, **{letter: make(size) for letter, make in self.derived.items()}}

    def divides(self, term: str) -> bool:
        """Whether ranks share a term: it grows with the rows, and the method is a sum over them."""
        letters = {factor.partition("^")[0] for factor in term.split()}
        return self.shared and term not in self.whole and bool(letters & _ROWS)


_ROWS = {"n", "r", "g"}  # all rows, and bounded numbers of them that are dealt over the ranks in the same way
