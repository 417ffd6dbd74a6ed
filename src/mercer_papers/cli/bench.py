"""``mercer bench``: ours beside peers, ratios measured in one run."""

from __future__ import annotations

import json
import os
import tempfile
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
from mercer.user_text import shorten, shown

if TYPE_CHECKING:
    from mercer_papers.bench import Line

COLUMNS = {"CPU s": 9, "wall s": 9, "CPU ratio": 11, "peak MiB": 10, "accuracy": 10}
GROWTH, TABLES = "growth", "tables"  # areas that run alone
_LETTERS = ("n", "d", "c", "k")
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
    from mercer import checks
    from mercer.cli.process import Interrupted, Interruption
    from mercer_papers.bench import Record, area_names, run

    if output is not None:
        check_output(output, {}, as_json)
    stream = is_stream(output)  # the JSON to standard output, the text to stderr
    output = None if stream else output
    # two areas run alone
    if areas == (GROWTH,):
        measure_growth(output, as_json, stream)
        return
    if areas == (TABLES,):
        rank_tables(output, threads, as_json, stream)
        return
    unknown = [area for area in areas if area not in area_names()]
    if unknown:
        names = [*area_names(), GROWTH, TABLES]
        need = f"bench: AREA must be one of {', '.join(area_names())}, or alone {GROWTH} or {TABLES}"
        raise click.UsageError(f"{need}; got {shown(unknown[0])!r}.{closest(unknown[0], names)}")
    try:
        device = checks.device("bench", device or "cpu")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    # measure, into the folder where one was named
    asked: dict[str, Any] = {"repeats": repeats, "threads": threads}
    if device != "cpu":  # a folder of before has none
        asked["device"] = device
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
        _say_interrupted(output)
        raise click.exceptions.Exit(interrupted.exit_code) from None
    # show
    if record is not None:
        say(record.finish(lines))
    if as_json or stream:
        click.echo(json.dumps([asdict(line) for line in lines], allow_nan=False, default=dict))
    if not as_json:
        for text in _page(lines):
            click.echo(text, err=stream)


def _say_interrupted(output: Path | None) -> None:
    if output is None:
        say("Interrupted.")
    else:
        say(f"Interrupted. The same command resumes {output}.")


def session() -> dict[str, Any]:
    """Where and with what a run is made, and how busy the machine is at its start."""
    from mercer.cli.process import machine, versions

    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None  # not on Windows
    return {"machine": machine(), "versions": versions(), "load": load}


def measure_growth(output: Path | None, as_json: bool, stream: bool) -> None:
    """Measure every method at every size, write ``growth.json`` to the folder or the stream, print the exponents."""
    from mercer.cli.process import Interrupted, Interruption
    from mercer.storage.files import atomic_write
    from mercer_papers.bench.cost_model import document, measure

    def report(method: str, point: dict[str, Any]) -> None:
        size = ", ".join(f"{letter} = {value:,}" for letter, value in point.items() if letter in _LETTERS)
        say(f"{method}: {size}: {point['seconds']:.3g} s, {point['mib']:,.3g} MiB")

    # measure, into the folder where one was named
    where = session()
    path = None
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        path = output / "growth.jsonl"
    try:
        with Interruption():
            points = measure(path=path, progress=report)
    except Interrupted as interrupted:
        say("Interrupted. The same command with the same folder resumes.")
        raise click.exceptions.Exit(interrupted.exit_code) from None
    result = document(points, where)
    text = json.dumps(result, allow_nan=False, indent=1)
    if output is not None:
        atomic_write(output / "growth.json", f"{text}\n".encode())
    if as_json or stream:
        click.echo(text)
    if as_json:
        return
    # for each method the exponent along each letter, over all sizes and between the last two, and the fit's band
    for kind, title in (("seconds", "CPU time grows as"), ("mib", "peak memory grows as")):
        heads = "".join(f"{letter:>12}" for letter in _LETTERS)
        click.echo(click.style(f"{title:<23}{heads}{'within':>8}", bold=True), err=stream)
        for name, growth in result["methods"].items():
            cells = ""
            for letter in _LETTERS:
                exponent, power = growth["exponents"][kind].get(letter), ""
                if exponent:
                    power = f"{exponent['exponent']:.2f} ({exponent['last']:.2f})"
                cells += f"{power:>12}"
            factor = f"{growth['fits'][kind]['factor']:.2g}x"
            click.echo(f"{shorten(name, 23):<23}{cells}{factor:>8}", err=stream)
        click.echo("", err=stream)
    click.echo("exponents over all sizes (and between the two largest)", err=stream)
    click.echo("within: the largest factor by which the fit is off", err=stream)


def rank_tables(output: Path | None, threads: int, as_json: bool, stream: bool) -> None:
    """Measure what the folder does not have yet, then print ranks, wins and losses, and costs."""
    from mercer.cli.process import Interrupted, Interruption, threads_set
    from mercer_papers.bench.record import read_rows
    from mercer_papers.bench.table_ranks import page
    from mercer_papers.bench.tables import measure
    from mercer_papers.data import MissingData

    def report(row: dict[str, Any]) -> None:
        state = row.get("error") or f"{row['cpu_fit']:.3g} CPU s"
        say(f"{row['table']}, fold {row['fold']}, {row['method']}: {state}")

    with tempfile.TemporaryDirectory() as temporary:
        # measure into the folder, or one that goes away
        folder = output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tables.jsonl"
        try:
            with Interruption(), threads_set(threads):
                measure(path, progress=report)
        except MissingData as error:
            raise click.ClickException(str(error)) from error
        except Interrupted as interrupted:
            _say_interrupted(output)
            raise click.exceptions.Exit(interrupted.exit_code) from None
        if as_json or stream:
            click.echo(json.dumps(read_rows(path), allow_nan=False))
        if not as_json:
            click.echo(page(path), err=stream)


def _page(lines: list[Line]) -> Iterator[str]:
    """Blocks of one case, contenders below each other, goals below the numbers that decide them."""
    for area, of_area in groupby(lines, key=lambda line: line.area):
        yield click.style(f"{area:<{_NAME}}", bold=True) + "".join(f"{name:>{w}}" for name, w in COLUMNS.items())
        for _, contenders in groupby(of_area, key=lambda line: line.case):
            block = list(contenders)
            ours = block[0]
            yield from (click.style(text, underline=True) for text in textwrap.wrap(ours.case, width()))
            if ours.repeats:
                text = f"rounds: {ours.repeats}; threads: {ours.threads}"
                if ours.accuracy_name:
                    text = f"accuracy: {ours.accuracy_name}, {ours.better} is better; {text}"
                yield click.style(f"  {text}", dim=True)
            for line in block:
                yield from _contender(line)
        yield ""
    # every goal once more in one list, those that were not reached first
    order = {False: 0, None: 1, True: 2}
    goals = [(line, measure, goal) for line in lines for measure, goal in line.goals.items()]
    if goals:
        yield click.style("every goal, those missed first", bold=True)
    for line, measure, goal in sorted(goals, key=lambda one: order[one[0].met.get(one[1])]):
        text = f"{line.area}: {line.case}"
        if line.who != "mercer":
            text += f", against {line.who}"
        yield from textwrap.wrap(text, width(), initial_indent="  ", subsequent_indent="  ")
        yield _INDENT + _goal(line, measure, goal)
    met = [met for line in lines for met in line.met.values()]
    yield f"{sum(met)} of {len(goals)} goals met, {met.count(False)} not met, {len(goals) - len(met)} not measured"


def _contender(line: Line) -> Iterator[str]:
    name = f"  {shorten(f'{line.who} {line.version}'.rstrip(), _NAME - 3)}"
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
    if line.who == "mercer":  # a bound on ours alone
        what, unit, got = measure, _UNITS.get(measure, ""), getattr(line, measure)
        bound = "at least" if measure == "accuracy" and line.better == "higher" else "at most"
    else:
        what, unit, got, bound = f"{measure} ratio", " x", line.ratios.get(measure), "at least"
    text = f"goal: {what} {bound} {number(goal, 3)}{unit}"
    if got is not None:
        text += f"; got {number(got, 3)}{unit}"
    return f"{text}: {style}"
