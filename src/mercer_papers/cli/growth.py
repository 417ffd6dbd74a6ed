"""``mercer_papers.bench.cost_model``: measure how time and memory of each method grow, for ``mercer estimate``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mercer.cli.output import say
from mercer.user_text import shortened

GROWTH = "growth"
_NAME = 23
_LETTERS = ("n", "d", "c", "k")


def measure_growth(output: Path | None, as_json: bool, stream: bool = False) -> None:
    """Measure every method at every size, write ``growth.json`` to the folder or the stream, print the exponents."""
    from mercer.cli.process import Interrupted, Interruption
    from mercer.storage.files import atomic_write
    from mercer_papers.bench.cost_model import document, measure

    where = session()

    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    try:
        with Interruption():
            points = measure(path=None if output is None else output / "growth.jsonl", progress=_progress)
    except Interrupted as interrupted:
        say("Interrupted. The same command with the same folder resumes.")
        raise click.exceptions.Exit(interrupted.exit_code) from None
    found = document(points, where)
    text = json.dumps(found, allow_nan=False, indent=1)
    if output is not None:
        atomic_write(output / "growth.json", f"{text}\n".encode())
    if as_json or stream:
        click.echo(text)
    if not as_json:
        for line in exponent_table(found):
            click.echo(line, err=stream)


def session() -> dict[str, Any]:
    """Where and with what a run is made, and how busy the machine is at its start."""
    from mercer.cli.process import machine, versions

    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None  # not on Windows
    return {"machine": machine(), "versions": versions(), "load": load}


def exponent_table(found: dict[str, Any]) -> Iterator[str]:
    """For each method the exponent along each letter, over all sizes and between the last two, and the fit's band."""
    for measure, title in (("seconds", "CPU time grows as"), ("mib", "peak memory grows as")):
        yield click.style(_row(title, list(_LETTERS), "within"), bold=True)
        for name, held in found["methods"].items():
            along = held["exponents"][measure]
            cells = [_powers(along[letter]) if letter in along else "" for letter in _LETTERS]
            yield _row(name, cells, f"{held['fits'][measure]['factor']:.2g}x")
        yield ""
    yield "exponents over all sizes (and between the two largest)"
    yield "within: the largest factor by which the fit is off"


def _row(name: str, cells: list[str], last: str) -> str:
    return f"{shortened(name, _NAME):<{_NAME}}" + "".join(f"{cell:>12}" for cell in cells) + f"{last:>8}"


def _powers(along: dict[str, float]) -> str:
    return f"{along['exponent']:.2f} ({along['last']:.2f})"


def _progress(method: str, point: dict[str, Any]) -> None:
    size = ", ".join(f"{letter} = {value:,}" for letter, value in point.items() if letter in "ndck")
    say(f"{method}: {size}: {point['seconds']:.3g} s, {point['mib']:,.3g} MiB")
