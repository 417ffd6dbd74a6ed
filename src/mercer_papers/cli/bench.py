"""``mercer bench``: ours beside peers, ratios measured in one run."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mercer.cli.output import (
    check_output,
    closest,
    count_option,
    device_option,
    examples,
    is_stream,
    json_option,
    number,
    progress,
    say,
    width,
)
from mercer.user_text import shortened, shown

if TYPE_CHECKING:
    from mercer_papers.bench import Line

COLUMNS = {"CPU s": 9, "wall s": 9, "CPU ratio": 11, "peak MiB": 10, "accuracy": 10}
_NAME = 29
_INDENT = " " * 4
_UNITS = {"cpu": " s", "wall": " s", "memory": " MiB"}


@click.command(
    epilog=examples("mercer bench tables", "mercer bench head bayes --repeats 3 -o run", "mercer bench growth -o run")
)
@click.argument("areas", metavar="[AREA ...]", nargs=-1)
@count_option("--repeats", 5, "Number of rounds.")
@count_option("--threads", 1, "Threads for all contenders.")
@device_option("Device to time the heads on: cpu, cuda, cuda:1, mps.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False, allow_dash=True),
    metavar="RUN",
    help="Folder for the results, the JSON and the picture; an existing folder is resumed. - puts the JSON on standard "
    "output.",
)
@json_option
def bench(
    areas: tuple[str, ...], repeats: int, threads: int, device: str | None, output: Path | None, as_json: bool
) -> None:
    """Compare time, memory and accuracy with other libraries. A ratio is the other's cost over ours.

    Without AREA all areas run but these two, which run alone: `growth` measures how time and memory grow with n, d, c
    and k, which `mercer estimate` uses; `tables` ranks `mercer fit` among other methods on the tables of MERCER_DATA.
    """
    from mercer_papers.bench import area_names
    from mercer_papers.cli.growth import GROWTH, measure_growth
    from mercer_papers.cli.table_ranks import TABLES, rank_tables

    if output is not None:
        check_output(output, {}, as_json)
    stream = is_stream(output)  # the JSON to standard output, the text to stderr
    output = None if stream else output
    if areas == (GROWTH,):
        measure_growth(output, as_json, stream)
        return
    if areas == (TABLES,):
        rank_tables(output, threads, as_json, stream)
        return
    unknown = [area for area in areas if area not in area_names()]
    if unknown:
        known = [*area_names(), GROWTH, TABLES]
        need = f"bench: AREA must be one of {', '.join(area_names())}, or alone {GROWTH} or {TABLES}"
        raise click.UsageError(f"{need}; got {shown(unknown[0])!r}.{closest(unknown[0], known)}")
    lines = _measure(areas, repeats, threads, _usable(device or "cpu"), output)
    if as_json or stream:
        click.echo(json.dumps([asdict(line) for line in lines], allow_nan=False, default=dict))
    if not as_json:
        for text in _page(lines):
            click.echo(text, err=stream)


def _usable(device: str) -> str:
    from mercer import checks

    try:
        return checks.device("bench", device)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _measure(areas: tuple[str, ...], repeats: int, threads: int, device: str, output: Path | None) -> list[Line]:
    from mercer.cli.process import Interrupted, Interruption
    from mercer_papers.bench import Record, run
    from mercer_papers.cli.growth import session

    asked: dict[str, Any] = {"repeats": repeats, "threads": threads}
    asked |= {} if device == "cpu" else {"device": device}  # a folder of before has none
    record = None if output is None else Record(output, asked, session())
    try:
        with Interruption(), progress() as report:
            lines = run(
                areas,
                repeats=repeats,
                threads=threads,
                device=device,
                progress=lambda line: report(f"{line.area}: {line.case}, {line.who}: {line.state}"),
                record=record,
            )
    except Interrupted as interrupted:
        say("Interrupted." if output is None else f"Interrupted. The same command resumes {output}.")
        raise click.exceptions.Exit(interrupted.exit_code) from None
    if record is not None:
        say(record.finish(lines))
    return lines


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
    yield from _speed_lines(lines)
    yield f"{sum(kept)} of {asked} goals met, {kept.count(False)} not met, {asked - len(kept)} not measured"


def _speed_lines(lines: list[Line]) -> Iterator[str]:
    """Every goal once more in one list, those that were not reached first."""
    order = {False: 0, None: 1, True: 2}
    goals = [(line, measure, goal) for line in lines for measure, goal in line.goals.items()]
    if goals:
        yield click.style("every goal, those missed first", bold=True)
    for line, measure, goal in sorted(goals, key=lambda one: order[one[0].met.get(one[1])]):
        who = "" if line.who == "mercer" else f", against {line.who}"
        yield from textwrap.wrap(f"{line.area}: {line.case}{who}", width(), initial_indent="  ", subsequent_indent="  ")
        yield _INDENT + _goal(line, measure, goal)


def _title(ours: Line) -> Iterator[str]:
    yield from (click.style(text, underline=True) for text in textwrap.wrap(ours.case, width()))
    score = f"accuracy: {ours.accuracy_name}, {ours.better} is better; " if ours.accuracy_name else ""
    if ours.repeats:
        yield click.style(f"  {score}rounds: {ours.repeats}; threads: {ours.threads}", dim=True)


def _contender(line: Line) -> Iterator[str]:
    name = f"  {shortened(f'{line.who} {line.version}'.rstrip(), _NAME - 3)}"
    if line.state != "measured":
        yield f"{name}: {line.state}"
        yield from _why(line)
        return
    ratio = line.ratios.get("cpu")
    cells = [number(line.cpu, 3), number(line.wall, 3), "" if ratio is None else f"{number(ratio, 3)} x"]
    cells += [number(line.memory, 3), number(line.accuracy, 3)]
    yield f"{name:<{_NAME}}" + "".join(f"{cell:>{w}}" for cell, w in zip(cells, COLUMNS.values(), strict=True)).rstrip()
    for measure, goal in line.goals.items():
        yield _INDENT + _goal(line, measure, goal)
    yield from _why(line)


def _why(line: Line) -> list[str]:
    return textwrap.wrap(line.why, width(), initial_indent=_INDENT, subsequent_indent=_INDENT)


def _goal(line: Line, measure: str, goal: float) -> str:
    """``goal: cpu ratio at least 20 x; got 51.3 x: met``."""
    word = {True: "met", False: "not met", None: "not measured"}[line.met.get(measure)]
    style = click.style(word, fg={"met": "green", "not met": "red"}.get(word))
    peer = line.who != "mercer"
    got = line.ratios.get(measure) if peer else getattr(line, measure)
    unit = " x" if peer else _UNITS.get(measure, "")
    reach = "at least" if peer or (measure == "accuracy" and line.better == "higher") else "at most"
    what = f"{measure} ratio" if peer else measure
    reached = "" if got is None else f"; got {number(got, 3)}{unit}"
    return f"goal: {what} {reach} {number(goal, 3)}{unit}{reached}: {style}"
