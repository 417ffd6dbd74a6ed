"""Seconds and peak memory of a run that was not made, from the coefficients that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mercer import checks
from mercer.storage.files import read_json

from .cost_terms import LETTERS, Method, monomial
from .fitting import Fit
from .methods import METHODS

MEASURED = Path(__file__).with_name("growth.json")
RANKS = (1, 2, 8, 64)


@dataclass(frozen=True)
class Cost:
    """What a run takes on so many ranks; seconds are CPU seconds of each rank, memory is each rank's."""

    ranks: int
    seconds: float
    mib: float


@dataclass(frozen=True)
class Estimate:
    """The predicted cost of a run.

    Args:
        method: whose.
        size: the letters in force; those not given are the base's.
        costs: by number of ranks.
        seconds_factor: the time is right within such a factor, in the sizes measured.
        mib_factor: the same of the memory.
        exponents: of the time along each letter.
        beyond: one sentence for each letter that lies outside what was measured.
        machine: where the coefficients were measured.
        versions: and with what.
        load: how busy that machine was at the start, in processes that wanted a core.
    """

    method: str
    size: Mapping[str, int]
    costs: tuple[Cost, ...]
    seconds_factor: float
    mib_factor: float
    exponents: Mapping[str, float]
    beyond: tuple[str, ...]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    load: float | None


def estimate(
    method: str,
    *,
    n: int,
    d: int | None = None,
    c: int | None = None,
    k: int | None = None,
    ranks: Sequence[int] = RANKS,
    path: Path = MEASURED,
) -> Estimate:
    """Estimate CPU time and peak memory of a method at a size.

    Args:
        method: a name of :data:`METHODS`.
        n: as the method's ``letters`` say, and so the others; one not given is the method's base.
        d: mostly the width of a row.
        c: mostly the classes.
        k: mostly the functions or directions.
        ranks: processes that share the rows; what does not grow with the rows is paid by each.
        path: the measured coefficients; by default those that ship with the package.

    Raises:
        ValueError: there is no such method or letter, or a size below 1.
    """
    known = {one.name: one for one in METHODS}
    chosen = known[checks.choice("estimate", "method", method, known)]
    size = _size(chosen, {"n": n, "d": d, "c": c, "k": k})
    whole = read_json(path)
    held = whole["methods"][chosen.name]
    fits = {name: Fit(fit["terms"], fit["factor"]) for name, fit in held["fits"].items()}
    costs = [
        Cost(r, _shared(chosen, fits["seconds"], size, r), _shared(chosen, fits["mib"], size, r))
        for r in (checks.integer("estimate", "ranks", r, 1) for r in ranks)
    ]
    return Estimate(
        method=chosen.name,
        size=size,
        costs=tuple(costs),
        seconds_factor=fits["seconds"].factor,
        mib_factor=fits["mib"].factor,
        exponents={letter: along["exponent"] for letter, along in held["exponents"]["seconds"].items()},
        beyond=tuple(_beyond(size, held["ranges"])),
        machine=whole["machine"],
        versions=whole["versions"],
        load=whole["load"],
    )


def _size(method: Method, letters: Mapping[str, int | None]) -> dict[str, int]:
    given = {letter: value for letter, value in letters.items() if value is not None}
    for letter, value in given.items():
        if letter not in method.letters:
            own = ", ".join(f"{one} ({what})" for one, what in method.letters.items())
            raise ValueError(checks.sentence("estimate", f"{method.name} has {own}", f"{letter} = {value}"))
        checks.integer("estimate", letter, value, 1)
    return {letter: given.get(letter, method.base[letter]) for letter in LETTERS if letter in method.base}


def _shared(method: Method, fit: Fit, size: Mapping[str, int], ranks: int) -> float:
    """Terms in n are dealt over the ranks where the method is a sum over rows; the others are paid by each."""
    values = method.values(size)
    return sum(
        coefficient * monomial(term, values) / (ranks if method.divides(term) else 1)
        for term, coefficient in fit.terms.items()
    )


def _beyond(size: Mapping[str, int], ranges: Mapping[str, Sequence[int]]) -> list[str]:
    found = []
    for letter, value in size.items():
        low, high = ranges.get(letter, (value, value))
        if value > high:
            found.append(f"{letter} = {value:,} is {value / high:,.3g} times the largest measured, {high:,}")
        elif value < low:
            found.append(f"{letter} = {value:,} is below the least measured, {low:,}")
    return found
