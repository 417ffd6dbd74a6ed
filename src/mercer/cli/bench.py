"""``mercer bench``: ours beside peers, ratios measured in one run."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mercer.bench import Line

COLUMNS = {"CPU s": 9, "wall s": 9, "CPU ratio": 11, "peak MiB": 10, "accuracy": 10}
_NAME = 24
_WIDTH = 98  # a line of the page fits a terminal of 100
_INDENT = " " * 4
_UNITS = {"cpu": " s", "wall": " s", "memory": " MiB"}


@click.command()
@click.argument("areas", metavar="[AREA ...]", nargs=-1)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds; contenders take turns.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="For ours and peers alike.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def bench(areas: tuple[str, ...], repeats: int, threads: int, as_json: bool) -> None:
    """Ours side by side with peers: time, memory, accuracy. A ratio is the peer's cost over ours."""
    from mercer.bench import area_names, run

    unknown = [area for area in areas if area not in area_names()]
    if unknown:
        known = ", ".join(area_names()) or "none yet"
        raise click.UsageError(f"bench: AREA must be one of {known}; got {unknown[0]!r}.")
    lines = run(areas, repeats=repeats, threads=threads, progress=_progress)
    if as_json:
        click.echo(json.dumps([asdict(line) for line in lines], allow_nan=False, default=dict))
    else:
        for text in _page(lines):
            click.echo(text)


def _progress(line: Line) -> None:
    click.echo(f"{line.area}: {line.case}, {line.who}: {line.state}", err=True)


def _page(lines: list[Line]) -> Iterator[str]:
    """Blocks of one case, contenders below each other, goals below the numbers that decide them."""
    for area, found in groupby(lines, key=lambda line: line.area):
        yield click.style(f"{area:<{_NAME}}", bold=True) + "".join(f"{name:>{w}}" for name, w in COLUMNS.items())
        for _, contenders in groupby(found, key=lambda line: line.case):
            block = list(contenders)
            yield from _title(block[0])
            for line in block:
                yield from _contender(line)
        yield ""
    kept = [met for line in lines for met in line.met.values()]
    asked = sum(len(line.goals) for line in lines)
    yield f"{sum(kept)} of {asked} goals met, {kept.count(False)} not met, {asked - len(kept)} not measured"


def _title(ours: Line) -> Iterator[str]:
    yield click.style(ours.case, underline=True)
    score = f"accuracy: {ours.accuracy_name}, {ours.better} is better; " if ours.accuracy_name else ""
    if ours.repeats:
        yield click.style(f"  {score}rounds: {ours.repeats}; threads: {ours.threads}", dim=True)


def _contender(line: Line) -> Iterator[str]:
    name = f"  {line.who} {line.version}".rstrip()
    if line.state != "measured":
        yield f"{name}: {line.state}"
        yield from _why(line)
        return
    ratio = line.ratios.get("cpu")
    cells = [_number(line.cpu), _number(line.wall), "" if ratio is None else f"{_number(ratio)} x"]
    cells += [_number(line.memory), _number(line.accuracy)]
    yield f"{name:<{_NAME}}" + "".join(f"{cell:>{w}}" for cell, w in zip(cells, COLUMNS.values(), strict=True)).rstrip()
    for measure, goal in line.goals.items():
        yield _INDENT + _goal(line, measure, goal)
    yield from _why(line)


def _why(line: Line) -> list[str]:
    return textwrap.wrap(line.why, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _goal(line: Line, measure: str, goal: float) -> str:
    """``goal: cpu ratio at least 20 x; got 51.3 x: met``."""
    word = {True: "met", False: "not met", None: "not measured"}[line.met.get(measure)]
    style = click.style(word, fg={"met": "green", "not met": "red"}.get(word))
    peer = line.who != "mercer"
    got = line.ratios.get(measure) if peer else getattr(line, measure)
    unit = " x" if peer else _UNITS.get(measure, "")
    reach = "at least" if peer or (measure == "accuracy" and line.better == "higher") else "at most"
    what = f"{measure} ratio" if peer else measure
    reached = "" if got is None else f"; got {_number(got)}{unit}"
    return f"goal: {what} {reach} {_number(goal)}{unit}{reached}: {style}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
