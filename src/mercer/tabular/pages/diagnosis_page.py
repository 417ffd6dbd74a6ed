"""A diagnosis as one self-contained page: the verdict first, the table, the pictures, what was done."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ... import __version__
from ...figures import plots
from ...figures.pages import Picture, fill, inline, label, own_text
from ...figures.theme import Figure
from ...storage.files import atomic_write
from ..diagnosis import SHUFFLES, STEPS

if TYPE_CHECKING:
    from ..columns.column import Column
    from ..diagnosis.ranking import Diagnosis

_log = logging.getLogger("mercer")
_MOODS = {"very well": "good", "well": "good", "in part": "middling", "weakly": "middling", "not shown": "bad"}
_CLASSES = 12  # classes that are named
_RANDOM = "the first, shuffled labels"
_ALONE = 4  # columns alike up to which each has a line
_NAMED = 8  # names of a shared line
_SIZE = (5.9, 3.7)  # inches: two fit side by side on a desk


def diagnosis_page(diagnosis: Diagnosis, path: str | Path, *, source: str = "the table") -> Path:
    """Write the page and return its path.

    Args:
        diagnosis: What :func:`mercer.tabular.diagnose` gave.
        path: Where the page goes.
        source: What the table is called.
    """
    path = Path(path)
    shown = list(zip(diagnosis.classes, diagnosis.counts, strict=True))
    values = {
        "d": diagnosis,
        "columns": column_lines(diagnosis.columns),
        "source": source,
        "title": f"{diagnosis.target}: {diagnosis.verdict.learnable}",
        "version": __version__,
        "seconds": diagnosis.seconds,
        "style": own_text("style.css") + own_text("pages.css"),
        "mood": _MOODS[diagnosis.verdict.learnable],
        "guess": max(diagnosis.counts, default=0) / diagnosis.rows,
        "shown_classes": shown[:_CLASSES],
        "more_classes": max(0, len(shown) - _CLASSES),
        "shuffles": SHUFFLES,
        "pictures": _draw_pictures(diagnosis),
    }
    atomic_write(path, fill("mercer.tabular.pages", "diagnosis.html", values).encode())
    return path


def _draw_pictures(diagnosis: Diagnosis) -> dict[str, Picture]:
    """Three pictures of the first few kernels, each beside the labels in random order."""
    names = ", ".join(diagnosis.eigen)
    first = [reading for reading in diagnosis.readings if reading.name in diagnosis.eigen]

    # How each is drawn.
    def draw_curves() -> Figure:
        curves = {label(reading.name): _thin_out(reading.curve) for reading in first}
        curves[_RANDOM] = _thin_out(first[0].shuffled_curve)
        return plots.lines(curves, x_label="steps", y_label="loss left", x_log=True, control=_RANDOM)

    def draw_shares() -> Figure:
        curves = {label(name): _by_rank(eigen.shares) for name, eigen in diagnosis.eigen.items()}
        curves[_RANDOM] = _by_rank(diagnosis.shuffled_shares)
        x_label, y_label = "directions counted, strongest first", "share of the labels"
        figure = plots.lines(curves, x_label=x_label, y_label=y_label, control=_RANDOM)
        figure.axes[0].set_ylim(0, 1.02)
        return figure

    def draw_eigenvalues() -> Figure:
        curves = {label(name): _by_rank(eigen.values) for name, eigen in diagnosis.eigen.items()}
        return plots.lines(curves, x_label="direction, by rank", y_label="eigenvalue", x_log=True, y_log=True)

    # What each shows, in words.
    return {
        "curves": draw_picture(
            "curves",
            draw_curves,
            f"Predicted loss over {STEPS} steps for {names}, and for shuffled labels.",
            "How gradient descent would learn the labels, predicted. A curve well below the dashed control: there is "
            "structure to learn. The control falls late and slowly, for it has to be learned by heart.",
            size=_SIZE,
        ),
        "shares": draw_picture(
            "shares",
            draw_shares,
            f"Share of the labels held by the first directions of {names}.",
            "How much of the labels the kernel's strongest directions hold. The earlier it rises, the fewer directions "
            "have to be learned, and the fewer rows are needed.",
            size=_SIZE,
        ),
        "eigenvalues": draw_picture(
            "eigenvalues",
            draw_eigenvalues,
            f"The largest eigenvalues of {names}.",
            "How strong these directions are. A steep fall: a smooth, stiff kernel; a flat line: one that treats every "
            "row as its own case.",
            size=_SIZE,
        ),
    }


def _thin_out(losses: list[float]) -> dict[str, list[float]]:
    """About 80 points of a curve, evenly spaced in the logarithm of the step."""
    last = max(len(losses) - 1, 1)
    steps = sorted({round(math.exp(i / 80 * math.log(last))) for i in range(81)})
    return {"x": [float(step) for step in steps], "y": [losses[step] for step in steps]}


def _by_rank(values: list[float]) -> dict[str, list[float]]:
    return {"x": [float(i) for i in range(1, len(values) + 1)], "y": values}


# --- what both pages have ---------------------------------------------------------------------------------------------


def draw_picture(
    anchor: str,
    draw: Callable[[], Figure],
    alt: str,
    caption: str,
    size: tuple[float, float] | None = None,
) -> Picture:
    """A picture, of ``size`` in inches; one that fails is named on the page, and the rest of the page stays."""
    try:
        figure = draw()
        if size is not None:
            figure.set_size_inches(*size)
        return Picture(alt, caption, inline(figure, anchor, alt))
    except Exception as error:
        _log.warning("%s: the figure could not be drawn", anchor, exc_info=error)
        return Picture(alt, "", why=f"{type(error).__name__}: {error}")


class ColumnLine(NamedTuple):
    """One line: the columns' names, what they are and what is done with them."""

    names: str
    kind: str
    how: str


def column_lines(columns: Sequence[Column]) -> list[ColumnLine]:
    """What is done with each column, in the table's order; columns that are treated alike share a line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for column in columns:
        groups.setdefault((column.kind, column.how), []).append(column.name)
    lines = []
    for column in columns:
        alike = groups[column.kind, column.how]
        if len(alike) <= _ALONE:
            lines.append(ColumnLine(column.name, column.kind, column.how))
        elif column.name == alike[0]:
            names = ", ".join(alike)
            if not column.dropped and len(alike) > _NAMED:  # columns that are not used are all named
                names = f"{', '.join(alike[:_NAMED])} and {len(alike) - _NAMED} more"
            lines.append(ColumnLine(names, column.kind, f"each {column.how}"))
    return lines
