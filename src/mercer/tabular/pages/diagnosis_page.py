"""A diagnosis as one self-contained page: the verdict first, the table, the pictures, what was done."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ... import __version__, figures
from ...figures.pages import Picture, fill, inline, label, own_text
from ...storage.files import atomic_write
from ..diagnosis import SHUFFLES, STEPS
from .column_lines import column_lines

if TYPE_CHECKING:
    from ..diagnosis.ranking import Diagnosis

_log = logging.getLogger("mercer")
_MOODS = {"very well": "good", "well": "good", "in part": "middling", "weakly": "middling", "not shown": "bad"}
_CLASSES = 12  # classes that are named
_RANDOM = "the first, shuffled labels"
_SIZE = (5.9, 3.7)  # inches: two fit side by side on a desk


def diagnosis_page(found: Diagnosis, path: str | Path, *, source: str = "the table") -> Path:
    """Write the page and return its path.

    Args:
        found: What :func:`mercer.tabular.diagnose` gave.
        path: Where the page goes.
        source: What the table is called.
    """
    path = Path(path)
    shown = list(zip(found.classes, found.counts, strict=True))
    values = {
        "d": found,
        "columns": column_lines(found.columns),
        "source": source,
        "title": f"{found.target}: {found.verdict.learnable}",
        "version": __version__,
        "seconds": found.seconds,
        "style": own_text("style.css") + own_text("pages.css"),
        "mood": _MOODS[found.verdict.learnable],
        "guess": max(found.counts, default=0) / found.rows,
        "shown_classes": shown[:_CLASSES],
        "more_classes": max(0, len(shown) - _CLASSES),
        "shuffles": SHUFFLES,
        "pictures": _pictures(found),
    }
    atomic_write(path, fill("mercer.tabular.pages", "diagnosis.html", values).encode())
    return path


def _pictures(found: Diagnosis) -> dict[str, Picture]:
    return {
        "curves": drawn(
            "curves",
            lambda: _curves(found),
            f"Predicted loss over {STEPS} steps for {', '.join(found.eigen)}, and for shuffled labels.",
            "How gradient descent would learn the labels, predicted. A curve well below the dashed control: there is "
            "structure to learn. The control falls late and slowly, for it has to be learned by heart.",
        ),
        "shares": drawn(
            "shares",
            lambda: _shares(found),
            f"Share of the labels held by the first directions of {', '.join(found.eigen)}.",
            "How much of the labels the kernel's strongest directions hold. The earlier it rises, the fewer directions "
            "have to be learned, and the fewer rows are needed.",
        ),
        "eigenvalues": drawn(
            "eigenvalues",
            lambda: _values(found),
            f"The largest eigenvalues of {', '.join(found.eigen)}.",
            "How strong these directions are. A steep fall: a smooth, stiff kernel; a flat line: one that treats every "
            "row as its own case.",
        ),
    }


def drawn(anchor: str, draw: Callable[[], figures.Figure], alt: str, caption: str) -> Picture:
    """A picture; one that fails is named on the page, for it must not cost the reader the rest."""
    try:
        return Picture(alt, caption, inline(draw(), anchor, alt))
    except Exception as error:
        _log.warning("%s: the figure could not be drawn", anchor, exc_info=error)
        return Picture(alt, "", why=f"{type(error).__name__}: {error}")


def _curves(found: Diagnosis) -> figures.Figure:
    chosen = [reading for reading in found.readings if reading.name in found.eigen]
    curves = {label(r.name): _curve(r.curve) for r in chosen}
    curves[_RANDOM] = _curve(chosen[0].shuffled_curve)
    return _sized(figures.lines(curves, x_label="steps", y_label="loss left", x_log=True, control=_RANDOM))


def _curve(losses: list[float]) -> dict[str, list[float]]:
    """About 80 points, evenly spaced in the logarithm of the step."""
    last = len(losses) - 1
    steps = sorted({round(math.exp(i / 80 * math.log(last))) for i in range(81)}) if last else [0]
    return {"x": [float(step) for step in steps], "y": [losses[step] for step in steps]}


def _shares(found: Diagnosis) -> figures.Figure:
    curves = {label(name): _by_rank(eigen.shares) for name, eigen in found.eigen.items()}
    curves[_RANDOM] = _by_rank(found.shuffled_shares)
    x_label, y_label = "directions counted, strongest first", "share of the labels"
    figure = figures.lines(curves, x_label=x_label, y_label=y_label, control=_RANDOM)
    figure.axes[0].set_ylim(0, 1.02)
    return _sized(figure)


def _values(found: Diagnosis) -> figures.Figure:
    curves = {label(name): _by_rank(eigen.values) for name, eigen in found.eigen.items()}
    return _sized(figures.lines(curves, x_label="direction, by rank", y_label="eigenvalue", x_log=True, y_log=True))


def _sized(figure: figures.Figure) -> figures.Figure:
    figure.set_size_inches(*_SIZE)
    return figure


def _by_rank(values: list[float]) -> dict[str, list[float]]:
    return {"x": [float(i) for i in range(1, len(values) + 1)], "y": values}
