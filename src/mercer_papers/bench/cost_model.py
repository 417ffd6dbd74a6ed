r"""A cost model: how time and memory of each method grow with n, d, c and k, measured, fitted, predicted.

A cost is a sum of terms. Their coefficients solve
:math:`\min_{a \ge 0} \sum_i \big(\sum_j a_j t_j(s_i) / y_i - 1\big)^2`: relative errors, so that the small sizes count
as much as the large. The band is honest about predictions: the largest factor by which the fit is off at any measured
size, and by which a fit without the largest size of a letter misses that size.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mercer import checks
from mercer.cli.process import threads_set
from mercer.storage.files import read_json

from .cost_methods import LETTERS, METHODS, Method, monomial
from .memory import watch_peak
from .record import append_row, read_rows

MEASURED = Path(__file__).with_name("growth.json")
RANKS = (1, 2, 8, 64)
LEAST_SECONDS = 1e-4
LEAST_MIB = 8.0  # below this the peak is the allocator's pages, not the method's
_SHORT, _ROUNDS = 0.5, 5  # a work shorter than so many seconds is timed so often
_log = logging.getLogger("mercer")

Point = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """A fitted cost.

    Args:
        terms: coefficients by term; those that came out 0 are left out.
        factor: the cost lies within a factor of so much, within the sizes measured.
    """

    terms: Mapping[str, float]
    factor: float

    def at(self, values: Mapping[str, float]) -> float:
        """The cost at a size."""
        return sum(coefficient * monomial(term, values) for term, coefficient in self.terms.items())


@dataclass(frozen=True)
class Cost:
    """The cost of a run on so many ranks; seconds are CPU seconds of each rank, memory is each rank's."""

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


def measure(
    methods: Sequence[Method] = METHODS,
    *,
    path: Path | None = None,
    progress: Callable[[str, Point], None] | None = None,
) -> dict[str, list[Point]]:
    """Measure each method at each of its sizes: CPU seconds and MiB added at the peak.

    Args:
        methods: which.
        path: a file of rows that keeps each point as it is measured; points it has are not measured again.
        progress: called with the method's name and each point.
    """
    rows = read_rows(path) if path is not None else []
    points: dict[str, list[Point]] = {}
    for method in methods:
        earlier = [row["point"] for row in rows if row["method"] == method.name]
        warm = False
        for size in method.sizes():
            # a point of an earlier session stands
            point = next((one for one in earlier if all(one[letter] == size[letter] for letter in size)), None)
            if point is None:
                _log.info("growth: %s at %s", method.name, size)
                if not warm:  # libraries that load at the first call are no part of a method's memory
                    warm = bool(_measure_point(method, method.sizes()[0]))
                point = _measure_point(method, size)
                if path is not None:
                    append_row(path, {"method": method.name, "point": point})
            points.setdefault(method.name, []).append(point)
            if progress is not None:
                progress(method.name, point)
    return points


def _measure_point(method: Method, size: Mapping[str, int]) -> Point:
    """The least of several times: what else runs on the machine only adds to them."""

    def measure_seconds() -> float:
        start = time.process_time()
        answer = method.work(data)
        seconds = time.process_time() - start
        del answer
        return seconds

    with threads_set(1):
        data = method.setup(size)
        with watch_peak() as mark:
            seconds = [measure_seconds()]
        while len(seconds) < _ROUNDS and min(seconds) < _SHORT:
            seconds.append(measure_seconds())
    return {**size, "seconds": min(seconds) * method.share, "mib": mark.mib}


def document(points: Mapping[str, Sequence[Point]], session: Mapping[str, Any]) -> dict[str, Any]:
    """Points, coefficients, bands and exponents, with where they were measured: what ``growth.json`` holds."""
    methods = {}
    for method in METHODS:
        if method.name not in points:
            continue
        measured = list(points[method.name])
        sizes = [{letter: point[letter] for letter in method.base} for point in measured]
        fits: dict[str, Any] = {}
        exponents: dict[str, dict[str, Any]] = {}
        for kind, terms, least in (("seconds", method.seconds, LEAST_SECONDS), ("mib", method.memory, LEAST_MIB)):
            costs = [float(point[kind]) for point in measured]
            fit = fit_terms(method, sizes, costs, terms, least)
            fits[kind] = {"terms": dict(fit.terms), "factor": fit.factor}
            # the exponent along each letter, from the points that have the others at the base
            exponents[kind] = {}
            for letter in method.axes:
                others = [other for other in method.base if other != letter]
                places = [i for i, size in enumerate(sizes) if all(size[o] == method.base[o] for o in others)]
                places.sort(key=lambda i: sizes[i][letter])
                x, y = [sizes[i][letter] for i in places], [max(costs[i], least) for i in places]
                power, constant = exponent(x, y)
                last = exponent(x[-2:], y[-2:])[0]
                exponents[kind][letter] = {"exponent": power, "constant": constant, "last": last}
        ranges = {letter: [min(values), max(values)] for letter, values in method.axes.items()}
        methods[method.name] = {"points": measured, "fits": fits, "exponents": exponents, "ranges": ranges}
    return {**session, "threads": 1, "methods": methods}


def fit_terms(
    method: Method, sizes: Sequence[Mapping[str, int]], costs: Sequence[float], terms: Sequence[str], least: float
) -> Fit:
    """The coefficients of ``terms`` for costs at sizes, and the band.

    Args:
        method: whose sizes they are.
        sizes: measured.
        costs: measured.
        terms: of the sum; a constant is added.
        least: costs below this count as this much: the instrument sees no less.
    """
    from scipy.optimize import nnls

    names = ["1", *terms]
    table = np.array([[monomial(term, method.values(size)) for term in names] for size in sizes])
    table /= np.maximum(np.asarray(costs), least)[:, None]

    def solve(chosen: Sequence[int]) -> Fit:
        part = table[list(chosen)]
        scale = part.max(0)
        coefficients = nnls(part / scale, np.ones(len(part)))[0] / scale
        return Fit({term: float(a) for term, a in zip(names, coefficients, strict=True) if a > 0}, math.inf)

    def miss(fit: Fit, i: int) -> float:
        ratio = max(fit.at(method.values(sizes[i])), least) / max(costs[i], least)
        return max(ratio, 1 / ratio)

    # the fit of all points, and how far it is off at its own
    places = range(len(sizes))
    whole = solve(places)
    factor = max(miss(whole, i) for i in places)
    # and how far a fit that has not seen the largest size of a letter is off there
    for letter in method.axes:
        largest = max(places, key=lambda i, letter=letter: sizes[i][letter])  # type: ignore[misc]
        factor = max(factor, miss(solve([i for i in places if i != largest]), largest))
    return Fit(whole.terms, factor)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Power p and constant a of a x^p by least squares on the logarithms."""
    power, intercept = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(power), math.exp(intercept)


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
    methods = {one.name: one for one in METHODS}
    chosen = methods[checks.choice("estimate", "method", method, methods)]
    # the size: what was given, else the base
    asked = {letter: v for letter, v in {"n": n, "d": d, "c": c, "k": k}.items() if v is not None}
    for letter, value in asked.items():
        if letter not in chosen.letters:
            letters = ", ".join(f"{one} ({what})" for one, what in chosen.letters.items())
            raise ValueError(checks.sentence("estimate", f"{chosen.name} has {letters}", f"{letter} = {value}"))
        checks.integer("estimate", letter, value, 1)
    size = {letter: asked.get(letter, chosen.base[letter]) for letter in LETTERS if letter in chosen.base}
    # the cost of each rank: terms in n are dealt over the ranks, the others are paid by each
    document = read_json(path)
    stored = document["methods"][chosen.name]
    values = chosen.values(size)
    costs = []
    for count in ranks:
        checks.integer("estimate", "ranks", count, 1)
        cost = dict.fromkeys(("seconds", "mib"), 0.0)
        for kind in cost:
            for term, coefficient in stored["fits"][kind]["terms"].items():
                sharing = count if chosen.divides(term) else 1
                cost[kind] += coefficient * monomial(term, values) / sharing
        costs.append(Cost(count, cost["seconds"], cost["mib"]))
    # letters outside what was measured
    beyond = []
    for letter, value in size.items():
        low, high = stored["ranges"].get(letter, (value, value))
        if value > high:
            beyond.append(f"{letter} = {value:,} is {value / high:,.3g} times the largest measured, {high:,}")
        elif value < low:
            beyond.append(f"{letter} = {value:,} is below the least measured, {low:,}")
    return Estimate(
        method=chosen.name,
        size=size,
        costs=tuple(costs),
        seconds_factor=stored["fits"]["seconds"]["factor"],
        mib_factor=stored["fits"]["mib"]["factor"],
        exponents={letter: growth["exponent"] for letter, growth in stored["exponents"]["seconds"].items()},
        beyond=tuple(beyond),
        machine=document["machine"],
        versions=document["versions"],
        load=document["load"],
    )
