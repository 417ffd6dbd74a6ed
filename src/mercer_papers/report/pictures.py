"""The figures of an entry as inline SVG: its own ``draw`` where it has one, else its curves, one line for each."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from mercer import figures
from mercer.figures.pages import Picture, inline

from ..catalogue import Entry
from ..results import Result
from .sections import Section

_log = logging.getLogger("mercer")


def pictures(section: Section) -> list[Picture]:
    """Every figure of an entry; none where it has neither ``draw`` nor curves."""
    done = [result for result in section.results if result.status == "done"]
    entry = section.entry
    if not done:
        return []
    alt = f"{entry.title}: {_describe(done)}"
    try:
        figure = _figure(entry, done)
        if figure is None:
            return []
        caption = f"Ours, for {entry.source}." if entry.source else "Ours."
        return [Picture(alt, caption, inline(figure, section.anchor, alt))]
    except Exception as error:  # one entry's drawing must not cost the reader the whole page
        _log.warning("%s: the figure could not be drawn", entry.id, exc_info=error)
        return [Picture(alt, "", why=f"{type(error).__name__}: {error}")]


def _figure(entry: Entry, done: list[Result]) -> figures.Figure | None:
    draw = getattr(entry.load(), "draw", None) if entry.built else None
    if draw is not None:
        drawn: figures.Figure = draw(done)
        return drawn
    curves = mean_curves(done)
    return figures.lines(curves, y_label=entry.metric) if curves else None


def mean_curves(done: Iterable[Result]) -> dict[str, dict[str, list[float]]]:
    """The curves by row, column and name; over seeds with the same x, the mean with a band of one deviation."""
    groups: dict[tuple[str, str, str], list[dict[str, list[float]]]] = {}
    for result in done:
        for name, curve in result.curves.items():
            place = (result.row, result.column, name)
            groups.setdefault(place, []).append({key: list(values) for key, values in curve.items()})
    return {label: _mean(groups[place]) for place, label in _labels(list(groups)).items()}


def _labels(places: list[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """What tells the curves apart: a part that all of them share is left out."""
    differs = [len(set(parts)) > 1 for parts in zip(*places, strict=True)]
    kept = differs if any(differs) else [True] * 3
    return {
        place: ", ".join(part for part, keep in zip(place, kept, strict=False) if keep and part) for place in places
    }


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


def _describe(done: Sequence[Result]) -> str:
    """What a reader who cannot see the figure should know: each curve with its first and last height."""
    parts = [
        f"{name} from {curve['y'][0]:.4g} to {curve['y'][-1]:.4g}"
        for name, curve in mean_curves(done).items()
        if curve.get("y")
    ]
    return "; ".join(parts) or "drawn from the numbers below"
