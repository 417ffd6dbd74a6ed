"""The figures of an entry as inline SVG: its own ``draw`` where it has one, else its curves, one line for each."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from mercer import figures
from mercer.figures.pages import Picture, inline

from ..results import Result
from .sections import Section

_log = logging.getLogger("mercer")


def pictures(section: Section) -> list[Picture]:
    """Every figure of an entry; none where it has neither ``draw`` nor curves."""
    done = [result for result in section.results if result.status == "done"]
    entry = section.entry
    if not done:
        return []
    # what a reader who cannot see the figure should know: each curve with its first and last height
    curves = mean_curves(done)
    heights = [f"{name} from {c['y'][0]:.4g} to {c['y'][-1]:.4g}" for name, c in curves.items() if c.get("y")]
    alt = f"{entry.title}: {'; '.join(heights) or 'drawn from the numbers below'}"
    try:
        draw = getattr(entry.load(), "draw", None) if entry.built else None
        figure = None
        if draw is not None:
            figure = draw(done)
        elif curves:
            figure = figures.lines(curves, y_label=entry.metric)
        if figure is None:
            return []
        caption = f"Ours, for {entry.source}." if entry.source else "Ours."
        return [Picture(alt, caption, inline(figure, section.anchor, alt))]
    except Exception as error:  # one entry's drawing must not cost the reader the whole page
        _log.warning("%s: the figure could not be drawn", entry.id, exc_info=error)
        return [Picture(alt, "", why=f"{type(error).__name__}: {error}")]


def mean_curves(done: Iterable[Result]) -> dict[str, dict[str, list[float]]]:
    """The curves by row, column and name; over seeds with the same x, the mean with a band of one deviation."""
    groups: dict[tuple[str, str, str], list[dict[str, list[float]]]] = {}
    for result in done:
        for name, curve in result.curves.items():
            place = (result.row, result.column, name)
            groups.setdefault(place, []).append({key: list(values) for key, values in curve.items()})
    # what tells the curves apart: a part of the name that all of them share is left out
    differs = [len(set(parts)) > 1 for parts in zip(*groups, strict=True)]
    kept = differs if any(differs) else [True] * 3
    means = {}
    for place, curves in groups.items():
        label = ", ".join(part for part, keep in zip(place, kept, strict=False) if keep and part)
        means[label] = _mean(curves)
    return means


def _mean(curves: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    first = curves[0]
    alike = [curve for curve in curves if curve["x"] == first["x"]]
    if len(alike) < 2:
        return first
    heights = list(zip(*(curve["y"] for curve in alike), strict=True))
    means = [math.fsum(ys) / len(ys) for ys in heights]
    spreads = [
        math.sqrt(math.fsum((y - mean) ** 2 for y in ys) / (len(ys) - 1))
        for ys, mean in zip(heights, means, strict=True)
    ]
    return {
        "x": first["x"],
        "y": means,
        "low": [mean - spread for mean, spread in zip(means, spreads, strict=True)],
        "high": [mean + spread for mean, spread in zip(means, spreads, strict=True)],
    }
