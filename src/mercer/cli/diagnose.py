"""``mercer diagnose``: which kernel or embedding suits the labels of the user's own data."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mercer.cli.options import task_option

if TYPE_CHECKING:
    from mercer.tabular import Diagnosis, Reading

_WIDTH = 98
_NAME = 28
_COLUMNS = {"right": 7, "explained": 11, "of shuffled": 13, "complexity in": 18, "steps": 7, "alignment": 11}


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--target", required=True, metavar="COLUMN", help="What is to be predicted.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PAGE.html",
    help="The page.  [default: DATA-diagnosis.html here]",
)
@task_option
@click.option("--rows", type=click.IntRange(10), default=1500, show_default=True, help="Rows to read at most.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the rows and the control.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def diagnose(data: Path, target: str, output: Path | None, task: str, rows: int, seed: int, as_json: bool) -> None:
    """Rank kernels and embeddings by how well they suit COLUMN, before anything is trained.

    DATA is csv, tsv, parquet or npz; the arrays (n, m) of an npz file are embeddings, each a candidate. The page has
    the verdict, the table with every number explained, and the pictures.
    """
    from mercer.cli.signals import stoppable
    from mercer.process import threads_set
    from mercer.report import diagnosis_page
    from mercer.tabular.diagnosis import diagnose as read
    from mercer.tabular.problem import sample

    page = output or Path(f"{data.name.split('.')[0]}-diagnosis.html")
    if not page.parent.is_dir():
        raise click.ClickException(f"the page's folder must be there; got {page.parent}. Make it first.")
    with stoppable(), threads_set(1):
        part = sample(data)
        found = read(
            part.frame,
            target,
            task=task,
            embeddings=part.embeddings,
            rows=rows,
            random_state=seed,
            source=str(data),
            notes=part.notes,
            jobs=min(2, os.cpu_count() or 1),
            progress=lambda name: click.echo(f"reading {name}", err=True),
        )
        diagnosis_page(found, page, source=data.name)
    if as_json:
        click.echo(json.dumps({"page": str(page), **found.record()}, indent=2, allow_nan=False))
        return
    for line in _lines(found, page):
        click.echo(line)


def _lines(found: Diagnosis, page: Path) -> Iterator[str]:
    yield from textwrap.wrap(found.verdict.headline, _WIDTH)
    yield ""
    columns = {name: width for name, width in _COLUMNS.items() if found.classes or name != "right"}
    yield click.style(f"{'':<{_NAME}}" + "".join(f"{name:>{width}}" for name, width in columns.items()), bold=True)
    for place, reading in enumerate(found.readings, 1):
        cells = _cells(reading)
        name = f"{place:>2} {reading.name}"
        name = name if len(name) < _NAME else name[: _NAME - 2] + "~"
        yield f"{name:<{_NAME}}" + "".join(f"{cells[key]:>{width}}" for key, width in columns.items())
    yield ""
    yield from (line for text in found.verdict.reasons for line in _wrapped(text))
    yield from (line for text in found.notes for line in _wrapped(f"Note: {text}"))
    yield ""
    yield from (line for text in found.verdict.advice for line in _wrapped(text))
    yield from (f"  {command}" for command in found.verdict.commands)
    yield ""
    yield f"Page: {page} ({found.seconds:.0f} s; every number is explained there)"


def _cells(reading: Reading) -> dict[str, str]:
    return {
        "right": "" if reading.accuracy is None else f"{reading.accuracy:.1%}",
        "explained": f"{reading.explained:.1%}",
        "of shuffled": f"{reading.ratio:.1%}",
        "complexity in": _interval(*reading.bracket),
        "steps": ">1000" if reading.steps is None else str(reading.steps),
        "alignment": f"{reading.alignment:.3f}",
    }


def _interval(low: float, high: float) -> str:
    digits = 0 if high >= 10_000 else 1 if high >= 100 else 3
    return f"{low:,.{digits}f}-{high:,.{digits}f}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ")
