"""Time and peak memory of every method at every size, one process, one thread; then the fits as one document."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mercer.cli.process import threads_set

from ..memory import peak_watched
from ..record import append_row, read_rows
from .cost_terms import Method
from .fitting import exponent, fit_terms
from .methods import METHODS

LEAST_SECONDS = 1e-4
LEAST_MIB = 8.0  # below this the peak is the allocator's pages, not the method's
_SHORT, _ROUNDS = 0.5, 5  # a work shorter than so many seconds is timed so often
_log = logging.getLogger("mercer")

Point = dict[str, Any]


def measure(
    methods: Sequence[Method] = METHODS,
    *,
    path: Path | None = None,
    progress: Callable[[str, Point], None] | None = None,
) -> dict[str, list[Point]]:
    """The points of each method: its size, CPU seconds and MiB added at the peak.

    Args:
        methods: which.
        path: a file of rows that keeps each point as it is measured; points it has are not measured again.
        progress: called with the method's name and each point.
    """
    rows = read_rows(path) if path is not None else []
    found: dict[str, list[Point]] = {}
    for method in methods:
        held = [row["point"] for row in rows if row["method"] == method.name]
        warm = False
        for size in method.sizes():
            point = next((one for one in held if all(one[letter] == size[letter] for letter in size)), None)
            if point is None:
                _log.info("growth: %s at %s", method.name, size)
                if not warm:  # libraries that load at the first call are no part of a method's memory
                    warm = bool(_point(method, method.sizes()[0]))
                point = _point(method, size)
                if path is not None:
                    append_row(path, {"method": method.name, "point": point})
            found.setdefault(method.name, []).append(point)
            if progress is not None:
                progress(method.name, point)
    return found


def document(points: Mapping[str, Sequence[Point]], session: Mapping[str, Any]) -> dict[str, Any]:
    """Points, coefficients, bands and exponents, with where they were measured: what ``growth.json`` holds."""
    methods = {method.name: method for method in METHODS}
    return {**session, "threads": 1, "methods": {name: _fitted(methods[name], held) for name, held in points.items()}}


def _point(method: Method, size: Mapping[str, int]) -> Point:
    """The least of the times, for what else runs on the machine only adds to them."""
    with threads_set(1):
        data = method.setup(size)
        with peak_watched() as mark:
            seconds = [_timed(method, data)]
        while len(seconds) < _ROUNDS and min(seconds) < _SHORT:
            seconds.append(_timed(method, data))
    return {**size, "seconds": min(seconds) * method.share, "mib": mark.mib}


def _timed(method: Method, data: Any) -> float:
    start = time.process_time()
    answer = method.work(data)
    seconds = time.process_time() - start
    del answer
    return seconds


def _fitted(method: Method, points: Sequence[Point]) -> dict[str, Any]:
    sizes = [{letter: point[letter] for letter in method.base} for point in points]
    measures = {"seconds": (method.seconds, LEAST_SECONDS), "mib": (method.memory, LEAST_MIB)}
    fits, exponents = {}, {}
    for measure_, (terms, least) in measures.items():
        costs = [float(point[measure_]) for point in points]
        fit = fit_terms(method, sizes, costs, terms, least)
        fits[measure_] = {"terms": dict(fit.terms), "factor": fit.factor}
        exponents[measure_] = {letter: _along(method, letter, sizes, costs, least) for letter in method.axes}
    ranges = {letter: [min(values), max(values)] for letter, values in method.axes.items()}
    return {"points": list(points), "fits": fits, "exponents": exponents, "ranges": ranges}


def _along(
    method: Method, letter: str, sizes: Sequence[Mapping[str, int]], costs: Sequence[float], least: float
) -> dict[str, float]:
    others = [other for other in method.base if other != letter]
    chosen = [i for i, size in enumerate(sizes) if all(size[other] == method.base[other] for other in others)]
    chosen.sort(key=lambda i: sizes[i][letter])
    x, y = [sizes[i][letter] for i in chosen], [max(costs[i], least) for i in chosen]
    power, constant = exponent(x, y)
    return {"exponent": power, "constant": constant, "last": exponent(x[-2:], y[-2:])[0]}
