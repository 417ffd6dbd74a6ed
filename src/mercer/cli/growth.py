"""``mercer bench growth``: measure how time and memory of each method grow, for ``mercer estimate``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

GROWTH = "growth"
_NAME = 24


def measure_growth(output: Path | None, as_json: bool) -> None:
    """Measure every method at every size, write ``growth.json`` to the folder, print the exponents."""
    from mercer.bench.growth import document, measure
    from mercer.experiments.interruption import Interrupted, Interruption
    from mercer.experiments.machine import machine, versions
    from mercer.storage import atomic_write

    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    try:
        with Interruption():
            points = measure(path=None if output is None else output / "growth.jsonl", progress=_progress)
    except Interrupted as interrupted:
        click.echo("Interrupted: the same command with the same folder goes on.", err=True)
        raise click.exceptions.Exit(interrupted.exit_code) from None
    found = document(points, {"machine": machine(), "versions": versions()})
    text = json.dumps(found, allow_nan=False, indent=1)
    if output is not None:
        atomic_write(output / "growth.json", f"{text}\n".encode())
    if as_json:
        click.echo(text)
    else:
        for line in exponent_table(found):
            click.echo(line)


def exponent_table(found: dict[str, Any]) -> Iterator[str]:
    """For each method the exponents of time and memory along each letter, and the band of the fit."""
    letters = ("n", "d", "c", "k")
    heads = [f"{measure} {letter}" for measure in ("time", "peak") for letter in letters]
    yield click.style(f"{'exponent of':<{_NAME}}" + "".join(f"{head:>8}" for head in heads) + "   within", bold=True)
    for name, held in found["methods"].items():
        cells = [
            f"{along['exponent']:.2f}" if (along := held["exponents"][measure].get(letter)) else ""
            for measure in ("seconds", "mib")
            for letter in letters
        ]
        bands = " ".join(f"{held['fits'][measure]['factor']:.2g}x" for measure in ("seconds", "mib"))
        yield f"{name:<{_NAME}}" + "".join(f"{cell:>8}" for cell in cells) + f"   {bands}"


def _progress(method: str, point: dict[str, Any]) -> None:
    size = ", ".join(f"{letter} = {value:,}" for letter, value in point.items() if letter in "ndck")
    click.echo(f"{method}: {size}: {point['seconds']:.3g} s, {point['mib']:,.3g} MiB", err=True)
