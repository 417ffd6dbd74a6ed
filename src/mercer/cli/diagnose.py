"""``mercer diagnose``: which kernel or embedding suits the labels of the user's own data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mercer.cli.output import (
    DATA,
    STANDARD_INPUT,
    check_output,
    examples,
    is_stream,
    json_option,
    note,
    opened_output,
    progress,
    seconds_since_start,
    seed_option,
    table,
    target_option,
    task_option,
    wrap,
)
from mercer.user_text import shown

if TYPE_CHECKING:
    from mercer.tabular.diagnosis.ranking import Diagnosis

_NAME = 29
_SHOWN = 5  # kernels that are listed
_MEANINGS = {
    "right": "share of rows left out whose class is predicted correctly",
    "explained": "share of the variation predicted on rows left out; the best first",
    "of shuffled": "complexity, in percent of a shuffled target's; lower is better",
    "steps": "steps of gradient descent until the loss is halved",
    "alignment": "similarity to a kernel that knows the target; at best 1",
}
_WORDS = {  # of the kernels' names
    "near, mid, far": "how far a row's influence reaches",
    "weighted": "columns that matter count more",
    "rotated": "sums of columns that matter count more",
    "straight": "columns with a few huge values are put on an even scale first",
}
_COLUMNS = {"right": 8, "explained": 11, "of shuffled": 13, "steps": 7, "alignment": 11}


@click.command(
    short_help="Say whether a column can be learned, and how well.",
    epilog=examples(
        "mercer diagnose houses.csv --target price", "mercer diagnose embeddings.npz --target label -o page.html"
    ),
)
@click.argument("data", type=DATA)
@target_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="PAGE.html",
    help="File for the page; - is standard output.  [default: ./DATA-diagnosis.html]",
)
@task_option
@click.option("--rows", type=click.IntRange(10), default=1500, show_default=True, help="Maximum number of rows.")
@seed_option
@json_option
def diagnose(data: Path, target: str, output: Path | None, task: str, rows: int, seed: int, as_json: bool) -> None:
    """Say whether COLUMN can be learned from the other columns of DATA, and how well, before you train anything.

    DATA is csv, tsv, parquet or npz, or - for csv from standard input; each array (n, m) of an npz file is an embedding
    to rank. The page has the verdict, what is done with each column, and the kernels that were compared.
    """
    from mercer.cli.process import stoppable, threads_set
    from mercer.tabular import diagnose as read
    from mercer.tabular.diagnosis import sample
    from mercer.tabular.pages import diagnosis_page

    # Refuse, before any work, what cannot end well.
    page = output or Path(f"{data.name.split('.')[0]}-diagnosis.html")
    check_output(page, {"DATA": data}, as_json)
    if not page.parent.is_dir():
        raise click.ClickException(f"the page's folder must be there; got {page.parent}. Make it first.")
    source = str(data)
    if data.name == STANDARD_INPUT:
        source = "DATA.csv"

    # Read the table, judge it, draw the page, and tell the verdict.
    with stoppable(), threads_set(1), progress() as report:
        part = sample(data)
        diagnosis = read(
            part.frame,
            target,
            task=task,
            embeddings=part.embeddings,
            rows=rows,
            random_state=seed,
            source=source,
            notes=part.notes,
            jobs=min(2, os.cpu_count() or 1),
            progress=report,
        )
        with opened_output(page) as file:
            diagnosis_page(diagnosis, file, source=data.name)
    if as_json:
        click.echo(json.dumps({"page": str(page), **diagnosis.record()}, indent=2, allow_nan=False))
        return
    for line in _write_lines(diagnosis, page):
        click.echo(line, err=is_stream(output))


def _write_lines(diagnosis: Diagnosis, page: Path) -> Iterator[str]:
    """What the command prints: the verdict, what to do next, and below, for those who know kernels, the table."""
    # The verdict, and what was noticed.
    yield from wrap(diagnosis.verdict.headline, "")
    yield ""
    for text in diagnosis.verdict.reasons:
        yield from wrap(text)
    unused = [f"{shown(column.name, 40)}: {column.how}." for column in diagnosis.columns if column.dropped]
    for text in (*diagnosis.notes, *unused):
        yield from note(text)
    # What to do next.
    yield ""
    for text in diagnosis.verdict.advice:
        yield from wrap(text)
    yield from (f"  {shown(command, 1000)}" for command in diagnosis.verdict.commands)

    # The best kernels, and what each number says.
    yield ""
    first = diagnosis.readings[:_SHOWN]
    several = f"the best {len(first)} of {len(diagnosis.readings)}; the page has all"
    yield click.style(f"For those who know kernels ({several})", bold=True)
    rows = []
    columns = dict(_COLUMNS)
    if not diagnosis.classes:  # of numbers, none is right or wrong
        del columns["right"]
    for place, reading in enumerate(first, 1):
        cells = [f"{place:>2} {reading.name}"]
        if reading.accuracy is not None:
            cells.append(f"{reading.accuracy:.1%}")
        steps = ">1000"
        if reading.steps is not None:
            steps = str(reading.steps)
        explained = f"{reading.explained:.1%}".replace("-0.0%", "0.0%")
        rows.append([*cells, explained, f"{reading.ratio:.1%}", steps, f"{reading.alignment:.3f}"])
    yield from table(columns, rows, _NAME)
    names = " ".join(reading.name for reading in first)
    meanings = {name: _MEANINGS[name] for name in columns}
    meanings |= {word: text for word, text in _WORDS.items() if word[:4] in names}
    for name, text in meanings.items():
        yield from wrap(text, " " * 18, f"  {name:<16}")
    yield ""
    yield f"Page: {page} ({seconds_since_start():.0f} s; pictures, and more on every number)"
