"""The run as one picture: what each named peer costs, over what ours does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from mercer.figures import LIGHT, canvas, svg

from .compare import Line
from .timing import OURS

_COSTS = ("cpu", "wall", "memory")
_WORDS = {"cpu": "CPU", "wall": "time", "memory": "memory"}
_CHEAPER, _DEARER = LIGHT.series[0], LIGHT.series[1]
_ROW = 0.245  # inches


@dataclass(frozen=True)
class Speed:
    """What a named peer costs, over what ours does."""

    area: str
    label: str
    ratio: float

    @property
    def cheaper(self) -> bool:
        """Whether ours costs no more."""
        return self.ratio >= 1


def speeds(lines: Sequence[Line]) -> list[Speed]:
    """Every peer whose time or memory is compared: the measures that have a goal, whether it is met or not."""
    return [
        Speed(line.area, f"{line.case} · {_WORDS[measure]} of {line.who}", line.ratios[measure])
        for line in lines
        for measure in _COSTS
        if line.who != OURS and measure in line.met
    ]


def draw(lines: Sequence[Line], machine: str = "") -> str:
    """The picture as SVG, right on light and on dark screens; ``machine`` is printed under it."""
    found = speeds(lines)
    figure, (ax,) = canvas(width=11.0, height=1.6 + _ROW * (len(found) + len({one.area for one in found})))
    row = 0.0
    ticks: list[tuple[float, str]] = []
    for area, group in groupby(found, key=lambda one: one.area):
        ax.annotate(area, (0, row), (-6, 0), ("axes fraction", "data"), "offset points", ha="right", va="center",
                    fontsize=9.5, fontweight="bold", color=LIGHT.ink)  # fmt: skip
        for one in group:
            row += 1
            ticks.append((row, one.label))
            # the ratio as a dot, filled where ours is cheaper, and its way from 1
            colour, face = (_CHEAPER, _CHEAPER) if one.cheaper else (_DEARER, "none")
            ax.plot([1.0, one.ratio], [row, row], color=colour, linewidth=2.2, alpha=0.45, solid_capstyle="butt")
            ax.plot([one.ratio], [row], "o", color=colour, markersize=6.5, markerfacecolor=face, markeredgewidth=1.6)
            ax.annotate(_number(one.ratio), (1, row), (4, 0), ("axes fraction", "data"), "offset points", ha="left",
                        va="center", fontsize=8.5, color=colour)  # fmt: skip
        row += 1
    # a logarithmic axis with few ticks, and what the dots mean
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    places = [10.0**e * m for e in range(-4, 6) for m in (1, 3) if low <= 10.0**e * m <= high]
    ax.set_xticks(places, [_number(place) for place in places])
    ax.minorticks_off()
    ax.set_yticks([place for place, _ in ticks], [text for _, text in ticks], fontsize=8.5)
    ax.set_ylim(row - 0.3, -0.7)
    ax.grid(False, axis="y")
    ax.axvline(1.0, color=LIGHT.soft, linewidth=1.2)
    ax.set_xlabel("the peer's cost over Mercer's")
    ax.set_title("● Mercer is cheaper  ·  ○ the peer is cheaper", loc="left", fontsize=9.5, color=LIGHT.ink)
    if machine:
        figure.supxlabel(machine, fontsize=8.5, color=LIGHT.soft)
    return svg(figure)


def _number(value: float) -> str:
    return f"{value:,.0f}x" if value >= 100 else f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}x"
