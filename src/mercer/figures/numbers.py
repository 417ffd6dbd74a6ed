"""Numbers as a reader wants them: the paper's as printed, ours to the deviation's digits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MINUS = "\N{MINUS SIGN}"


def plain(value: float | None, digits: int = 4) -> str:
    """``digits`` significant digits, thousands set apart; an en dash where there is no number.

    >>> plain(74512.6), plain(0.973149), plain(-2.5), plain(None)
    ('74,513', '0.9731', '−2.5', '–')
    """
    if value is None:
        return "\N{EN DASH}"
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value).replace("-", MINUS)
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 8:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", MINUS)
    text = f"{value:,.{max(0, digits - 1 - size)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", MINUS)


def show_published(value: float, deviation: float | None = None) -> str:
    """A published number, with every digit the paper gives."""
    text = f"{value:,.10g}".replace("-", MINUS)
    if deviation is None:
        return text
    return f"{text} ± {deviation:.10g}"


def with_deviation(mean: float, deviation: float | None) -> str:
    """The mean to the second digit of its deviation.

    >>> with_deviation(790.1234, 3.218), with_deviation(0.97, None)
    ('790.1 ± 3.2', '0.97')
    """
    if deviation is None or not math.isfinite(deviation):
        return plain(mean)
    if deviation == 0:
        return f"{plain(mean)} ± 0"
    decimals = 1 - math.floor(math.log10(deviation))
    if decimals > 6 or decimals < -6:
        return f"{plain(mean)} ± {plain(deviation, 2)}"
    places = max(0, decimals)
    return f"{mean:,.{places}f} ± {deviation:,.{places}f}".replace("-", MINUS)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample deviation; None for one value."""
    if len(values) == 1:
        return statistics.fmean(values), None
    return statistics.fmean(values), statistics.stdev(values)


def duration(seconds: float) -> str:
    """Seconds as one would say them.

    >>> duration(0.0123), duration(4.26), duration(125), duration(7300)
    ('12 ms', '4.3 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left_over = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_over} s"
    return f"{minutes // 60} h {minutes % 60} min"


def machine(known: Mapping[str, Any]) -> str:
    """Processor, cores and memory of a run, as far as they are known.

    >>> machine({"cpu": "A processor", "cores": 2, "memory_gib": 24.0, "gpu": ""})
    'A processor, 2 cores, 24.0 GiB'
    """
    units = {"cores": "{} cores", "memory_gib": "{} GiB"}
    names = [name for name in ("cpu", "cores", "memory_gib", "gpu", "system") if known.get(name)]
    return ", ".join(units.get(name, "{}").format(known[name]) for name in names)
