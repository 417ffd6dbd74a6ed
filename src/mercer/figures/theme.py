"""The one plotting style: colors for light and dark pages, an empty canvas, and the ways out of it.

Matplotlib is imported when the first picture is drawn, and never through pyplot: no window, no global state.
"""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ..checks import choice

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

Figure: TypeAlias = "matplotlib.figure.Figure"  # named without importing matplotlib


@dataclasses.dataclass(frozen=True)
class Theme:
    """Colors by what they are for.

    The series keep apart for the color-blind (hues after Okabe and Ito) and stand at 3:1 or more against the paper.
    """

    name: str
    paper: str
    ink: str
    soft: str  # axis labels, ticks
    line: str  # grid, frames
    series: tuple[str, ...]
    sequential: str  # a color map, least value nearest to the paper
    diverging: str


LIGHT = Theme(
    "light",
    paper="#ffffff",
    ink="#1c1d21",
    soft="#5c6068",
    line="#dedcd5",
    series=("#0072b2", "#d55e00", "#00845f", "#b0538a", "#946800", "#4b5bd6", "#66707c"),
    sequential="YlGnBu",
    diverging="RdBu_r",
)
DARK = Theme(
    "dark",
    paper="#1c1f23",
    ink="#e9e7e2",
    soft="#a6aab2",
    line="#353a41",
    series=("#4aa8e8", "#ff8b3d", "#35c79a", "#e08fc0", "#e0b23a", "#9aa4ff", "#a9b1bb"),
    sequential="YlGnBu_r",
    diverging="RdBu_r",
)
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))  # when the colors come round again
_PLAIN = (1e-4, 1e6)  # between these a number is written out
LETTER, _HANDLE = 0.08, 0.6  # inches of a legend's letter at 9 points, and of its line with the gaps
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_COORDINATES = re.compile(r'\b(d|x|y)="([^"]*)"')
_MARKER_GROUPS = re.compile(r'(<g clip-path="[^"]*")>((?:\s*<use [^>]*style="[^"]*"/>)+\s*</g>)')


def theme_named(name: str) -> Theme:
    """The theme of that name, ``light`` or ``dark``."""
    return {"light": LIGHT, "dark": DARK}[choice("figures", "theme", name, ("light", "dark"))]


def canvas(
    rows: int = 1, columns: int = 1, *, width: float | None = None, height: float | None = None, theme: str = "light"
) -> tuple[Figure, list[Axes]]:
    """An empty figure in the house style and its axes, row by row, for pictures that have no function here.

    Args:
        rows: Axes from top to bottom.
        columns: Axes from left to right.
        width: Inches; by default 6.4 for one column, 3.6 for each of several.
        height: Inches; by default 3.6 for one row, 3.1 for each of several.
        theme: ``light`` or ``dark``.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # One panel is larger than one of several.
    colors = theme_named(theme)
    if width is None and columns == 1:
        width = 6.4
    if height is None and rows == 1:
        height = 3.6
    size = (width or 3.6 * columns, height or 3.1 * rows)

    # The figure, with room for labels, and each of its axes in the house's style.
    room = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=size, dpi=110, layout=room, facecolor=colors.paper)
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        dress(ax, colors)
    return figure, axes


def dress(ax: Axes, theme: Theme) -> None:
    """Give axes the house's colors, a quiet grid and no box."""
    from cycler import cycler

    ax.set_facecolor("none")
    ax.set_prop_cycle(cycler(color=list(theme.series)))
    ax.set_axisbelow(True)
    ax.grid(True, color=theme.line, linewidth=0.7)
    ax.tick_params(which="both", colors=theme.soft, labelsize=9, length=0)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.line)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(theme.soft)
        label.set_fontsize(10)
    ax.title.set_color(theme.ink)
    ax.title.set_fontsize(11)


def legend_below(figure: Figure, handles: Mapping[str, Any], *, theme: str = "light") -> None:
    """One legend under all axes, in as many columns as the figure's width holds.

    Args:
        figure: From `canvas`.
        handles: By label, a line or patch.
        theme: ``light`` or ``dark``.
    """
    if len(handles) < 2:
        return
    widest = max(len(label) for label in handles) * LETTER + _HANDLE
    columns = max(1, min(len(handles), int(figure.get_size_inches()[0] / widest)))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=theme_named(theme).ink,
    )


def svg(figure: Figure) -> str:
    """The figure as one ``<svg>`` element to put into a page, right on light and on dark screens.

    Its colors are CSS variables that follow ``prefers-color-scheme``; text stays text; the background is clear.
    The same figure gives the same bytes.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    _write_plain_powers(figure)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mercer"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ", UserWarning)  # text stays text: the browser has the letters
        figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]

    # Colors become variables, in tags only: a name may look like a color.
    def recolor(tag: re.Match[str]) -> str:
        return re.sub(r"#[0-9a-f]{6}\b", lambda match: _VARIABLES.get(match[0], match[0]), tag[0])

    text = re.sub(r"<[^>]*>", recolor, text)
    text = re.sub(r"'DejaVu Sans'(, [^;\"]*)?sans-serif", "system-ui, sans-serif", text)

    # Fewer bytes, because a page holds every figure twice, for a desk and for a phone: coordinates to 0.01 points, ...
    def round_numbers(match: re.Match[str]) -> str:
        rounded = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", match[2])
        one_line = re.sub(r"\s*\n\s*", " ", rounded).strip()
        return f'{match[1]}="{one_line}"'

    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", text)
    text = _COORDINATES.sub(round_numbers, text)

    # ... a style that all markers of a group share once, ...
    def share_style(match: re.Match[str]) -> str:
        styles = set(re.findall(r'style="([^"]*)"', match[2]))
        if len(styles) != 1:
            return match[0]
        return f'{match[1]} style="{styles.pop()}">' + re.sub(r' style="[^"]*"', "", match[2])

    text = _MARKER_GROUPS.sub(share_style, text)

    # ... and no ids that nothing refers to.
    named = set(re.findall(r"#([\w.-]+)", text))

    def drop_unused(match: re.Match[str]) -> str:
        if match[1] in named:
            return match[0]
        return ""

    text = re.sub(r' id="([^"]*)"', drop_unused, text)
    text = re.sub(r"\n\s+", "\n", text)
    end = text.index(">") + 1
    return f"{text[:end]}\n <style>{_DARK_RULE}</style>{text[end:]}"


def png(figure: Figure, dpi: int = 160) -> bytes:
    """The figure as a PNG image, in the theme it was drawn in."""
    buffer = io.BytesIO()
    _write_plain_powers(figure)
    figure.savefig(buffer, format="png", dpi=dpi, facecolor=figure.get_facecolor())
    return buffer.getvalue()


def _write_plain_powers(figure: Figure) -> None:
    """Numbers along axes as one reads them, 0.06 and 200,000, where they are neither tiny nor huge."""
    from matplotlib.ticker import LogFormatterMathtext, MaxNLocator, ScalarFormatter, StrMethodFormatter

    class Plain(LogFormatterMathtext):
        def __call__(self, x: float, pos: int | None = None) -> str:
            if not super().__call__(x, pos):  # it leaves out what would be too dense
                return ""
            return f"{x:,g}"

    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        if axis.get_scale() == "log" and low >= _PLAIN[0] and high <= _PLAIN[1]:
            axis.set_major_formatter(Plain())
            axis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
        elif isinstance(axis.get_major_formatter(), ScalarFormatter) and 1e4 <= max(-low, high) <= 1e8:
            axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            if axis.axis_name == "x":
                axis.set_major_locator(MaxNLocator(4))  # more would touch each other


def _name_colors(theme: Theme) -> dict[str, str]:
    named = {name: getattr(theme, name) for name in ("paper", "ink", "soft", "line")}
    return named | {f"s{i}": color for i, color in enumerate(theme.series)}


# Either theme's color -> the variable that carries both.
_VARIABLES = {
    color: f"var(--mercer-{slot}, {_name_colors(LIGHT)[slot]})"
    for theme in (LIGHT, DARK)
    for slot, color in _name_colors(theme).items()
}
_DARK_RULE = (
    "@media screen and (prefers-color-scheme: dark) {:root {"
    + " ".join(f"--mercer-{slot}: {color};" for slot, color in _name_colors(DARK).items())
    + "}}"
)
