"""The claims of a paper, as comparisons of numbers that a run can settle.

A claim is data, one ``[[entry.claims]]`` of ``published/<paper>.toml``. A number is named ``row | column``. ``{}``
in the first pattern stands for any text without `` | ``, and ``{0}``, ``{1}`` in the others for what it stood for::

    [[entry.claims]]
    says = "Kernel SGD is more accurate than SGD."
    higher = "{}, Kernel SGD | test accuracy"
    than = ["{0}, SGD | test accuracy", "{0}, SGD+M | test accuracy"]

- ``higher`` or ``lower`` ``than``: the mean difference over common seeds exceeds ``by`` (0). With ``times`` the ratio
  does: ``lower`` with ``times = 10`` is at most a tenth. Its numbers are positive, and their logarithms are compared.
  ``printed = [A, B]`` names the paper's two numbers where our rows have names of their own.
- ``near`` ``to``: the difference is at most ``within``.
- ``value`` ``above`` or ``below`` a number.
- ``matches``: within this share of the published number of the same name; of those that ``value`` names, if given.
- none of these: the entry's checks, by ``passed``; only those whose row is like ``rows``, if given.

With ``logarithms = true`` a ``value`` and its bounds are compared by their logarithms: counts that were doubled until
they were enough spread by factors, not by differences.

``exact = true`` says that nothing is random: one run settles it. ``most = true`` asks for more than half of the
comparisons, not for all. ``detail = true`` is a claim that the entry's verdict does not hang on. ``finding = true`` is
a comparison of ours that the paper does not make; it is shown and counts for no verdict, but one against a fair rival
(the same start, a tuned rate, a bias) may name a claim that it ``vetoes``: that claim holds only where this holds, too.
Several claims that say the same are one.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .results import Result

HOLDS, FAILS, OPEN = "holds", "fails", "open"
LEVEL = 0.05  # one-sided, of one comparison
ENOUGH = 0.1  # of the paper's training: below it a failure refutes nothing
_QUARTER = 0.25  # of the printed difference: a claim fails where our numbers exclude even that much

Numbers = Mapping[str, Mapping[int, float]]  # "row | column" -> seed -> number


@dataclass(frozen=True)
class Claim:
    """One claim; see the top of this file."""

    says: str
    higher: str = ""
    lower: str = ""
    than: Sequence[str] = ()
    printed: Sequence[str] = ()
    by: float = 0.0
    times: float = 1.0
    near: str = ""
    to: Sequence[str] = ()
    within: float = 0.0
    value: str = ""
    above: float | None = None
    below: float | None = None
    matches: float | None = None
    logarithms: bool = False
    rows: str = ""
    exact: bool = False
    most: bool = False
    detail: bool = False
    finding: bool = False
    vetoes: str = ""


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim.

    Args:
        claim: What it belongs to.
        names: The numbers compared, ``row | column`` each; the row of a check.
        p_holds: Probability of such numbers where the claim is wrong.
        p_fails: Probability of such numbers where it is right; 1 where the run was too short to refute anything.
        text: The numbers in words.
        seeds: Runs that it rests on.
        size: Share of the paper's training.
        stand_ins: What was not the paper's: data, network, method.
    """

    claim: Claim
    names: tuple[str, ...]
    p_holds: float
    p_fails: float
    text: str
    seeds: int = 1
    size: float = 1.0
    stand_ins: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """By itself: beyond a one-sided 95 % interval on either side, or open."""
        if self.p_holds < LEVEL:
            return HOLDS
        if self.p_fails < LEVEL:
            return FAILS
        return OPEN

    @property
    def is_settled(self) -> bool:
        """Whether there is an error bar, or none is needed."""
        return self.seeds > 1 or self.claim.exact


def numbers_by_seed(results: Iterable[Result]) -> dict[str, dict[int, float]]:
    """Every number of the done cells by ``row | column``; a further value of such a cell by ``row | column | name``."""
    numbers: dict[str, dict[int, float]] = {}
    for result in results:
        if result.status != "done":
            continue
        key = f"{result.row} | {result.column}"
        if result.value is not None:
            numbers.setdefault(key, {})[result.seed] = result.value
        for name, number in result.values.items():
            longer = f"{result.row} | {name}"
            if result.column:
                longer = f"{key} | {name}"
            numbers.setdefault(longer, {})[result.seed] = number
    return numbers


def compare(claims: Sequence[Claim], results: Sequence[Result], published: Mapping[str, float]) -> Iterator[Comparison]:
    """Every comparison that the claims ask for and the results have numbers for.

    A comparison that the paper's own numbers contradict is left out: the paper does not make it.
    """
    numbers = numbers_by_seed(results)
    for claim in claims:
        if claim.higher or claim.lower:
            sign = 1.0 if claim.higher else -1.0
            for key, other in _pairs(claim.higher or claim.lower, claim.than, numbers):
                ours, theirs = numbers[key], numbers[other]
                asked = threshold = claim.by
                first, second = claim.printed or (key, other)
                is_printed = first in published and second in published
                if claim.times != 1:
                    # a ratio: by the logarithms of both, which are positive
                    ours, theirs = (
                        {seed: math.log(value) for seed, value in side.items() if value > 0} for side in (ours, theirs)
                    )
                    asked = threshold = math.log(claim.times)
                    if is_printed and min(published[first], published[second]) > 0:
                        threshold = _QUARTER * max(asked, sign * math.log(published[first] / published[second]))
                elif is_printed:
                    printed = sign * (published[first] - published[second])
                    if printed <= min(0.0, claim.by) and not claim.finding:
                        continue
                    if claim.by >= 0:
                        threshold = max(claim.by, _QUARTER * printed)
                # it holds beyond what is asked for, and fails where a quarter of the printed difference is excluded
                gaps = [sign * gap for gap in _gaps(ours, theirs)]
                above, below = _p_above(gaps, asked, claim.exact), _p_below(gaps, threshold, claim.exact)
                text = _words(key, other, numbers)
                if below < LEVEL and statistics.fmean(gaps) > asked:
                    text += ", less than a quarter of the printed difference"
                yield Comparison(claim, (key, other), above, below, text, len(gaps))
        elif claim.near:
            for key, other in _pairs(claim.near, claim.to, numbers):
                gaps = _gaps(numbers[key], numbers[other])
                # near: the difference is above -within and below within, each by its own test
                inside = max(_p_above(gaps, -claim.within, claim.exact), _p_below(gaps, claim.within, claim.exact))
                outside = min(_p_above(gaps, claim.within, claim.exact), _p_below(gaps, -claim.within, claim.exact))
                yield Comparison(claim, (key, other), inside, outside, _words(key, other, numbers), len(gaps))
        elif claim.value or claim.matches is not None:
            for key, _ in _match(claim.value or "{} | {}", numbers):
                # the bounds that the number must lie in
                low = -math.inf if claim.above is None else claim.above
                high = math.inf if claim.below is None else claim.below
                values = list(numbers[key].values())
                text = f"{key.removesuffix(' | ')}: {_figure(statistics.fmean(values))}"
                if claim.matches is not None:
                    if key not in published:
                        continue
                    room = claim.matches * abs(published[key])
                    low, high = published[key] - room, published[key] + room
                    text += f", printed {_figure(published[key])}"
                if claim.logarithms:
                    values = [math.log(value) for value in values]
                    low, high = (math.log(bound) if bound > 0 else -math.inf for bound in (low, high))
                inside = max(_p_above(values, low, claim.exact), _p_below(values, high, claim.exact))
                outside = min(_p_above(values, high, claim.exact), _p_below(values, low, claim.exact))
                yield Comparison(claim, (key,), inside, outside, text, len(values))
        else:
            by_row: dict[str, list[bool]] = {}
            for result in results:
                like = not claim.rows or any(_match(claim.rows, {result.row: {}}))
                if result.status == "done" and result.passed is not None and like:
                    by_row.setdefault(result.row or result.column, []).append(result.passed)
            for row, passed in by_row.items():  # a check draws as often as it needs: one run settles it
                yield Comparison(claim, (row,), float(not all(passed)), float(all(passed)), row, max(2, len(passed)))


def decide(claim: Claim, comparisons: Sequence[Comparison]) -> str:
    """Whether all, or with ``most`` more than half, of n comparisons hold, at 5 % for them together.

    At least u of n hold where u do at the level 5 % / (n - u + 1), and fewer do where n - u + 1 fail at 5 % / u: the
    partial conjunction by Bonferroni. For all of them, u = n, each must hold at 5 %, and one fails at 5 % / n.
    """
    n = needed = len(comparisons)
    if claim.most:
        needed = n // 2 + 1
    if n and sum(c.p_holds < LEVEL / (n - needed + 1) for c in comparisons) >= needed:
        return HOLDS
    if n and sum(c.p_fails < LEVEL / needed and c.outcome != HOLDS for c in comparisons) >= n - needed + 1:
        return FAILS
    return OPEN


def some_hold(comparisons: Sequence[Comparison]) -> bool:
    """Whether at least one holds beyond what the best of so many would by chance."""
    return any(c.p_holds < LEVEL / len(comparisons) for c in comparisons)


def _pairs(pattern: str, rivals: Sequence[str], numbers: Numbers) -> Iterator[tuple[str, str]]:
    for key, captured in _match(pattern, numbers):
        for other in (rival.format(*captured) for rival in rivals):
            if other in numbers and other != key:
                yield key, other


def _match(pattern: str, numbers: Numbers) -> Iterator[tuple[str, tuple[str, ...]]]:
    expression = re.compile(r"((?:(?! \| ).)+)".join(re.escape(part) for part in pattern.split("{}")))
    for key in numbers:
        match = expression.fullmatch(key)
        if match:
            yield key, match.groups()


def _gaps(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Differences by common seed; where the seeds differ, the difference of single runs."""
    common = sorted(first.keys() & second.keys())
    if len(second) == 1 < len(first):  # the second has no randomness: every seed of the first meets it
        (constant,) = second.values()
        return [value - constant for value in first.values()]
    return [first[seed] - second[seed] for seed in common]


def _p_above(values: Sequence[float], bound: float, exact: bool) -> float:
    """Probability of a mean so far above ``bound`` where the true one is not: Student's t; 1 for a single draw."""
    if not values or (len(values) < 2 and not exact):
        return 1.0
    distance, spread = statistics.fmean(values) - bound, 0.0
    if len(values) > 1:
        spread = statistics.stdev(values) / math.sqrt(len(values))
    if spread == 0 or math.isinf(distance):
        return float(distance <= 0)
    return student_tail(distance / spread, len(values) - 1)


def _p_below(values: Sequence[float], bound: float, exact: bool) -> float:
    return _p_above([-value for value in values], -bound, exact)


def student_tail(t: float, degrees: int) -> float:
    r"""P(T > t) for Student's t with a whole number of degrees of freedom, by the finite series in cos(atan(t/sqrt d)).

    >>> round(student_tail(6.314, 1), 3), round(student_tail(2.015, 5), 3), round(student_tail(-1.812, 10), 3)
    (0.05, 0.05, 0.95)
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine, squared = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2 == 1
    total = term = math.cos(angle) if is_odd else 1.0
    for i in range(2 + degrees % 2, degrees - 1, 2):  # each term from the one before
        term *= squared * (i - 1) / i
        total += term
    # P(|T| < |t|), with the sign of t
    inside = sine * total
    if degrees == 1:
        inside = 2 / math.pi * angle
    elif is_odd:
        inside = 2 / math.pi * (angle + sine * total)
    return (1 - inside) / 2


def _words(key: str, other: str, numbers: Numbers) -> str:
    a, b = (statistics.fmean(numbers[name].values()) for name in (key, other))
    seeds = len(_gaps(numbers[key], numbers[other]))
    first, second = key.removesuffix(" | "), other.removesuffix(" | ")  # a whole row's number has no column
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return f"{first} {_figure(a)} against {second} {_figure(b)}, {count}"


def _figure(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"
