"""A figure laid out again for a phone: its panels below each other instead of side by side."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from .theme import DARK, LETTER, LIGHT, legend_below, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = 0.18  # inches of a line of text
_BAR = 0.6  # of a color bar with its numbers


def narrow(figure: Figure, width: float = 4.1) -> Figure:
    """Lay ``figure`` out for a page ``width`` inches wide and return it; it keeps all that is drawn.

    Panels go below each other, pictures two by two. Legends take as many columns as the new width holds.

    Args:
        figure: From `canvas` or a function of this module. It is changed: write the wide one first.
        width: Inches. At 96 pixels an inch, 4.1 is a phone.
    """
    from matplotlib.colors import to_hex

    # One column of panels: only the shape changes.
    places = {ax: place for ax in figure.axes if (place := ax.get_subplotspec()) is not None}
    panels = [ax for ax in places if ax.get_visible()]
    old_width, old_height = figure.get_size_inches()
    if not panels or max(place.get_gridspec().ncols for place in places.values()) == 1:
        figure.set_size_inches(width, width * max(0.8, min(1.1, 1.25 * old_height / old_width)))
        _wrap(panels, width)
    else:
        # Height of a panel as a share of its width, as it was.
        rows, columns = places[panels[0]].get_gridspec().get_geometry()
        shape = float(old_height / rows / (old_width / columns))

        # Where a title comes twice, such a panel belongs to the one above it: go column by column.
        titles = [ax.get_title() for ax in panels]
        order = panels
        if len(set(titles)) < len(titles):
            order = sorted(panels, key=lambda ax: places[ax].colspan.start)

        # Pictures, and panels without numbers along their axes, can be small: two beside each other.
        bare = [bool(ax.images) or not (len(ax.get_xticks()) or len(ax.get_yticks())) for ax in panels]
        across = 1
        if len(panels) > 2 and all(bare):
            across = 2
        down = -(-len(panels) // across)

        # Give a panel the label that it shared with its row or column, where there is only one to give.
        for name, labeled in (("xaxis", order), ("yaxis", order[::across])):
            labels = {text for ax in order if (text := getattr(ax, name).label.get_text())}
            for axis, ax in ((getattr(ax, name), ax) for ax in order):
                if len(labels) != 1 or not len(axis.get_ticklocs()):
                    continue
                axis.set_label_text("")
                if ax in labeled:
                    axis.set_label_text(*labels)
        _wrap(panels, width / across)

        # A color bar that all panels share goes below them, where it takes no width.
        images = [image for ax in figure.axes for image in ax.images if image.colorbar is not None]
        bar_height = 0.0
        if len(images) == 1 and images[0].colorbar is not None:
            bar, bar_height = images[0].colorbar, _BAR
            text = bar.ax.yaxis.label
            name, color, size = text.get_text(), text.get_color(), text.get_fontsize()
            bar.remove()
            below = figure.colorbar(images[0], ax=order, location="bottom", shrink=0.8, aspect=30, pad=0.02)
            below.set_label(name, color=color, fontsize=size)
            below.ax.tick_params(colors=color, labelsize=8)

        # The new grid; a hidden panel takes no room in it.
        grid = figure.add_gridspec(down, across)
        for ax in places:
            ax.set_subplotspec(grid[-1, -1])
        for number, ax in enumerate(order):
            ax.set_subplotspec(grid[number // across, number % across])

        # Room for the lines of the titles, and for numbers and label below a panel.
        lines = max(len(ax.get_title().split("\n")) for ax in panels)
        if any(len(ax.get_xticks()) for ax in panels):
            lines += 2
        height = width / across * max(0.6, min(1.0, shape)) + _LINE * lines
        figure.set_size_inches(width, down * height + bar_height)

    # Legends again, in as many columns as the new width holds.
    theme = LIGHT.name
    if to_hex(figure.get_facecolor()) == DARK.paper:
        theme = DARK.name
    for legend in list(figure.legends):
        handles = {text.get_text(): handle for text, handle in zip(legend.texts, legend.legend_handles, strict=True)}
        legend.remove()
        legend_below(figure, handles, theme=theme)
    return figure


def write_svg(figure: Figure, path: Path) -> None:
    """Write the figure to ``path`` and, laid out for a phone, to a second file beside it, ``NAME_narrow.svg``."""
    path.write_text(svg(figure))
    path.with_stem(f"{path.stem}_narrow").write_text(svg(narrow(figure)))


def _wrap(panels: list[Axes], width: float) -> None:
    """Break titles and labels that are longer than a panel is wide."""
    for text in (text for ax in panels for text in (ax.title, ax.xaxis.label)):
        letters = int(width / (LETTER * float(text.get_fontsize()) / 9))
        lines = [part for line in text.get_text().split("\n") for part in textwrap.wrap(line, letters) or [""]]
        text.set_text("\n".join(lines))
