"""A figure laid out again for a phone: its panels below each other instead of side by side."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from .theme import DARK, LETTER, legend_below, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = 0.18  # inches of a line of text
_BAR = 0.6  # of a colour bar with its numbers


def narrow(figure: Figure, width: float = 4.1) -> Figure:
    """Lay ``figure`` out for a page ``width`` inches wide and return it; it keeps all that is drawn.

    Panels go below each other, pictures two by two. Legends take as many columns as the new width holds.

    Args:
        figure: From `canvas` or a function of this module. It is changed: write the wide one first.
        width: Inches. At 96 pixels an inch, 4.1 is a phone.
    """
    panels = [ax for ax in figure.axes if ax.get_subplotspec() is not None]
    shown = [ax for ax in panels if ax.get_visible()]
    if _across(panels) > 1 and shown:
        _stack(figure, panels, shown, width)
    else:
        old_width, old_height = figure.get_size_inches()
        figure.set_size_inches(width, width * max(0.8, min(1.1, 1.25 * old_height / old_width)))
        _wrap(shown, width)
    for legend in list(figure.legends):
        handles = {text.get_text(): handle for text, handle in zip(legend.texts, legend.legend_handles, strict=True)}
        legend.remove()
        legend_below(figure, handles, theme=_theme(figure))
    return figure


def write_svg(figure: Figure, path: Path) -> None:
    """Write the figure to ``path`` and, laid out for a phone, to a second file beside it, ``NAME_narrow.svg``."""
    path.write_text(svg(figure))
    path.with_stem(f"{path.stem}_narrow").write_text(svg(narrow(figure)))


def _stack(figure: Figure, panels: list[Axes], shown: list[Axes], width: float) -> None:
    tall = _shape(figure, shown[0])
    order = _reading_order(shown)
    across = 2 if len(shown) > 2 and all(map(_is_bare, shown)) else 1
    down = -(-len(shown) // across)
    _name_axes(order, across)
    _wrap(shown, width / across)
    room = _lay_colour_bar_down(figure, order)
    grid = figure.add_gridspec(down, across)
    for ax in panels:
        ax.set_subplotspec(grid[-1, -1])  # a hidden one takes no room
    for place, ax in enumerate(order):
        ax.set_subplotspec(grid[place // across, place % across])
    titles = max(len(ax.get_title().split("\n")) for ax in shown)
    lines = titles + (2 if any(len(ax.get_xticks()) for ax in shown) else 0)  # and the numbers below a panel
    each = width / across * max(0.6, min(1.0, tall)) + _LINE * lines
    figure.set_size_inches(width, down * each + room)


def _theme(figure: Figure) -> str:
    from matplotlib.colors import to_hex

    return DARK.name if to_hex(figure.get_facecolor()) == DARK.paper else "light"


def _across(panels: list[Axes]) -> int:
    grids = [place.get_gridspec() for ax in panels if (place := ax.get_subplotspec()) is not None]
    return max((grid.ncols for grid in grids), default=1)


def _shape(figure: Figure, ax: Axes) -> float:
    """Height of a panel as a share of its width."""
    place = ax.get_subplotspec()
    assert place is not None
    rows, columns = place.get_gridspec().get_geometry()
    wide, high = figure.get_size_inches()
    return float(high / rows / (wide / columns))


def _reading_order(shown: list[Axes]) -> list[Axes]:
    """Row by row; column by column where a title comes twice, for such a panel belongs to the one above it."""
    titles = [ax.get_title() for ax in shown]
    if len(set(titles)) == len(titles):
        return shown
    return sorted(shown, key=_column)


def _column(ax: Axes) -> int:
    place = ax.get_subplotspec()
    assert place is not None
    return place.colspan.start


def _name_axes(order: list[Axes], across: int) -> None:
    """Give a panel the label that it shared with its row or column, where there is only one to give."""
    for axis, panels in (("xaxis", order), ("yaxis", order[::across])):
        names = {text for ax in order if (text := getattr(ax, axis).label.get_text())}
        for ax in order:
            own = getattr(ax, axis)
            if len(names) == 1 and len(own.get_ticklocs()):
                own.set_label_text(next(iter(names)) if ax in panels else "")


def _is_bare(ax: Axes) -> bool:
    """Whether a panel is a picture or has no numbers along its axes, and so can be small."""
    return bool(ax.images) or not (len(ax.get_xticks()) or len(ax.get_yticks()))


def _wrap(shown: list[Axes], width: float) -> None:
    """Break titles and labels that are longer than a panel is wide."""
    for text in (text for ax in shown for text in (ax.title, ax.xaxis.label)):
        letters = int(width / (LETTER * float(text.get_fontsize()) / 9))
        lines = [part for line in text.get_text().split("\n") for part in textwrap.wrap(line, letters) or [""]]
        text.set_text("\n".join(lines))


def _lay_colour_bar_down(figure: Figure, panels: list[Axes]) -> float:
    """A colour bar that all panels share goes below them, where it takes no width. Return the height it needs."""
    drawn = [image for ax in figure.axes for image in ax.images if image.colorbar is not None]
    if len(drawn) != 1:
        return 0.0
    bar = drawn[0].colorbar
    assert bar is not None
    name, colour, size = bar.ax.get_ylabel(), bar.ax.yaxis.label.get_color(), bar.ax.yaxis.label.get_fontsize()
    bar.remove()
    below = figure.colorbar(drawn[0], ax=panels, location="bottom", shrink=0.8, aspect=30, pad=0.02)
    below.set_label(name, color=colour, fontsize=size)
    below.ax.tick_params(colors=colour, labelsize=8)
    return _BAR
