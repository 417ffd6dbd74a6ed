"""What a paper claims, as comparisons of numbers that a run can settle.

A claim is data, one ``[[entry.claims]]`` of ``published/<paper>.toml``. A number is named ``row | column``. ``{}``
in the first pattern stands for any text without `` | ``, and ``{0}``, ``{1}`` in the others for what it stood for::

    [[entry.claims]]
    says = "Kernel SGD is more accurate than SGD."
    higher = "{}, Kernel SGD | test accuracy"
    than = ["{0}, SGD | test accuracy", "{0}, SGD+M | test accuracy"]

- ``higher`` or ``lower`` ``than``: the mean difference over common seeds exceeds ``by`` (0).
- ``near`` ``to``: the difference is at most ``within``.
- ``value`` ``above`` or ``below`` a number.
- ``matches``: within this share of the published number of the same name.
- none of these: the entry's checks, by ``passed``.

``exact = true`` says that nothing is random: one run settles it. ``finding = true`` is a comparison of ours that the
paper does not make; it is shown and counts for no verdict.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .results import Result

HOLDS, FAILS, OPEN = "holds", "fails", "open"
_QUARTER = 0.25  # of the printed difference: a claim fails where our numbers exclude even that much
# One-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last for all beyond.
_STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.75)

Numbers = Mapping[str, Mapping[int, float]]  # "row | column" -> seed -> number


@dataclass(frozen=True)
class Claim:
    """One claim; see the top of this file."""

    says: str
    higher: str = ""
    lower: str = ""
    than: Sequence[str] = ()
    by: float = 0.0
    near: str = ""
    to: Sequence[str] = ()
    within: float = 0.0
    value: str = ""
    above: float | None = None
    below: float | None = None
    matches: float | None = None
    exact: bool = False
    finding: bool = False


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: whether it ``holds``, ``fails`` or is ``open``, and the numbers in words."""

    claim: Claim
    outcome: str
    text: str


def numbers_by_seed(results: Iterable[Result]) -> dict[str, dict[int, float]]:
    """Every number of the done cells by ``row | column``; a further value of such a cell by ``row | column | name``."""
    found: dict[str, dict[int, float]] = {}
    for result in results:
        if result.status != "done":
            continue
        key = f"{result.row} | {result.column}"
        if result.value is not None:
            found.setdefault(key, {})[result.seed] = result.value
        for name, number in result.values.items():
            longer = f"{key} | {name}" if result.column else f"{result.row} | {name}"
            found.setdefault(longer, {})[result.seed] = number
    return found


def compare(claims: Sequence[Claim], results: Sequence[Result], published: Mapping[str, float]) -> Iterator[Comparison]:
    """Every comparison that the claims ask for and the results have numbers for."""
    numbers = numbers_by_seed(results)
    for claim in claims:
        if claim.higher or claim.lower:
            yield from _ordered(claim, numbers, published)
        elif claim.near:
            yield from _near(claim, numbers)
        elif claim.value:
            yield from _bounded(claim, numbers)
        elif claim.matches is not None:
            yield from _matching(claim, numbers, published)
        else:
            yield from _passed(claim, results)


def _ordered(claim: Claim, numbers: Numbers, published: Mapping[str, float]) -> Iterator[Comparison]:
    pattern, sign = (claim.higher, 1.0) if claim.higher else (claim.lower, -1.0)
    for key, captured in _matched(pattern, numbers):
        for other in (rival.format(*captured) for rival in claim.than):
            if other not in numbers or other == key:
                continue
            gaps = [sign * gap for gap in _gaps(numbers[key], numbers[other])]
            printed = sign * (published[key] - published[other]) if key in published and other in published else None
            yield Comparison(claim, _judge(claim, gaps, printed), _words(key, other, numbers))


def _judge(claim: Claim, gaps: Sequence[float], printed: float | None) -> str:
    """Against ``by``; one run without an error bar is open unless the claim is exact."""
    if not gaps or (len(gaps) < 2 and not claim.exact):
        return OPEN
    mean, reach = statistics.fmean(gaps), _reach(gaps)
    if mean - reach > claim.by:
        return HOLDS
    least = max(claim.by, _QUARTER * printed) if printed is not None else claim.by
    return FAILS if mean + reach < least or (claim.exact and mean <= claim.by) else OPEN


def _near(claim: Claim, numbers: Numbers) -> Iterator[Comparison]:
    for key, captured in _matched(claim.near, numbers):
        for other in (rival.format(*captured) for rival in claim.to):
            if other not in numbers or other == key:
                continue
            gaps = _gaps(numbers[key], numbers[other])
            outcome = OPEN
            if len(gaps) > 1 or (gaps and claim.exact):
                mean, reach = abs(statistics.fmean(gaps)), _reach(gaps)
                outcome = HOLDS if mean + reach <= claim.within else FAILS if mean - reach > claim.within else OPEN
            yield Comparison(claim, outcome, _words(key, other, numbers))


def _bounded(claim: Claim, numbers: Numbers) -> Iterator[Comparison]:
    for key, _ in _matched(claim.value, numbers):
        values = list(numbers[key].values())
        mean, reach = statistics.fmean(values), _reach(values)
        low = -math.inf if claim.above is None else claim.above
        high = math.inf if claim.below is None else claim.below
        if len(values) < 2 and not claim.exact:
            outcome = OPEN
        elif mean - reach >= low and mean + reach <= high:
            outcome = HOLDS
        else:
            outcome = FAILS if mean + reach < low or mean - reach > high else OPEN
        yield Comparison(claim, outcome, f"{key}: {_figure(mean)}")


def _matching(claim: Claim, numbers: Numbers, published: Mapping[str, float]) -> Iterator[Comparison]:
    assert claim.matches is not None
    for key, printed in published.items():
        if key in numbers:
            mean = statistics.fmean(numbers[key].values())
            outcome = HOLDS if abs(mean - printed) <= claim.matches * abs(printed) else FAILS
            yield Comparison(claim, outcome, f"{key}: {_figure(mean)}, printed {_figure(printed)}")


def _passed(claim: Claim, results: Sequence[Result]) -> Iterator[Comparison]:
    by_row: dict[str, list[bool]] = {}
    for result in results:
        if result.status == "done" and result.passed is not None:
            by_row.setdefault(result.row or result.column, []).append(result.passed)
    for row, passed in by_row.items():
        yield Comparison(claim, HOLDS if all(passed) else FAILS, row)


def _matched(pattern: str, numbers: Numbers) -> Iterator[tuple[str, tuple[str, ...]]]:
    expression = re.compile(r"((?:(?! \| ).)+)".join(re.escape(part) for part in pattern.split("{}")))
    for key in numbers:
        found = expression.fullmatch(key)
        if found:
            yield key, found.groups()


def _gaps(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Differences by common seed; where the seeds differ, the difference of single runs."""
    common = sorted(first.keys() & second.keys())
    if len(second) == 1 < len(first):  # the second has no randomness: every seed of the first meets it
        (constant,) = second.values()
        return [value - constant for value in first.values()]
    return [first[seed] - second[seed] for seed in common]


def _reach(values: Sequence[float]) -> float:
    """Half the width of a one-sided 95 % interval of the mean; 0 for a single exact value."""
    if len(values) < 2:
        return 0.0
    student = _STUDENT[min(len(values) - 2, len(_STUDENT) - 1)]
    return student * statistics.stdev(values) / math.sqrt(len(values))


def _words(key: str, other: str, numbers: Numbers) -> str:
    a, b = (statistics.fmean(numbers[name].values()) for name in (key, other))
    seeds = len(_gaps(numbers[key], numbers[other]))
    return f"{key} {_figure(a)} against {other} {_figure(b)}, {seeds} seed{'' if seeds == 1 else 's'}"


def _figure(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"
