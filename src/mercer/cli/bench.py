"""``mercer bench``: ours beside peers, ratios measured in one run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mercer.bench import Line

COLUMNS = ("case", "who", "CPU s", "wall s", "MiB", "accuracy", "CPU ratio", "goal")


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
        _table(lines)


def _progress(line: Line) -> None:
    click.echo(f"{line.area}: {line.case}, {line.who}: {line.state}", err=True)


def _table(lines: list[Line]) -> None:
    from rich.console import Console
    from rich.table import Table

    for area in dict.fromkeys(line.area for line in lines):
        table = Table(title=area, title_justify="left", show_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("case", "who", "goal") else "right")
        for line in (line for line in lines if line.area == area):
            table.add_row(*_cells(line))
        # A pipe has no width of its own: give it enough that no cell is cut.
        Console(width=None if sys.stdout.isatty() else 200).print(table)


def _cells(line: Line) -> list[str]:
    if line.state != "measured":
        return [line.case, line.who, line.state, "", "", "", "", line.why]
    numbers = (line.cpu, line.wall, line.memory, line.accuracy, line.ratios.get("cpu"))
    goals = [f"{name} {goal:g}: {'met' if line.met.get(name) else 'not met'}" for name, goal in line.goals.items()]
    return [line.case, f"{line.who} {line.version}".strip(), *map(_number, numbers), "; ".join(goals)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
