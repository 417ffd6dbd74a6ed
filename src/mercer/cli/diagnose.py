"""``mercer diagnose``: which kernel or embedding suits the labels of the user's own data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mercer.cli.options import DATA, STANDARD_INPUT, examples, json_option, seed_option, task_option
from mercer.cli.output import (
    check_one_document,
    check_output,
    is_stream,
    note,
    opened_output,
    progress,
    seconds_since_start,
    table,
    wrap,
)
from mercer.user_text import shown

if TYPE_CHECKING:
    from mercer.tabular.diagnosis.ranking import Diagnosis, Reading

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
@click.option("--target", required=True, metavar="COLUMN", help="Column to predict.")
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

    page = output or Path(f"{data.name.split('.')[0]}-diagnosis.html")
    check_one_document(output, as_json)
    check_output(page, {"DATA": data})
    if not page.parent.is_dir():
        raise click.ClickException(f"the page's folder must be there; got {page.parent}. Make it first.")
    with stoppable(), threads_set(1), progress() as report:
        part = sample(data)
        diagnosis = read(
            part.frame,
            target,
            task=task,
            embeddings=part.embeddings,
            rows=rows,
            random_state=seed,
            source="DATA.csv" if data.name == STANDARD_INPUT else str(data),
            notes=part.notes,
            jobs=min(2, os.cpu_count() or 1),
            progress=report,
        )
        with opened_output(page) as file:
            diagnosis_page(diagnosis, file, source=data.name)
    if as_json:
        click.echo(json.dumps({"page": str(page), **diagnosis.record()}, indent=2, allow_nan=False))
        return
    for line in _lines(diagnosis, page):
        click.echo(line, err=is_stream(output))


def _lines(diagnosis: Diagnosis, page: Path) -> Iterator[str]:
    yield from wrap(diagnosis.verdict.headline, "")
    yield ""
    yield from (line for text in diagnosis.verdict.reasons for line in wrap(text))
    yield from (line for text in diagnosis.notes for line in note(text))
    dropped = [column for column in diagnosis.columns if column.dropped]
    yield from (line for column in dropped for line in note(f"{shown(column.name, 40)}: {column.how}."))
    yield ""
    yield from (line for text in diagnosis.verdict.advice for line in wrap(text))
    yield from (f"  {shown(command, 1000)}" for command in diagnosis.verdict.commands)
    yield ""
    # below, for those who know kernels
    first = diagnosis.readings[:_SHOWN]
    several = f"the best {len(first)} of {len(diagnosis.readings)}; the page has all"
    yield click.style(f"For those who know kernels ({several})", bold=True)
    columns = {name: width for name, width in _COLUMNS.items() if diagnosis.classes or name != "right"}
    rows = [(f"{place:>2} {reading.name}", _cells(reading)) for place, reading in enumerate(first, 1)]
    yield from table(columns, [[name, *(cells[key] for key in columns)] for name, cells in rows], _NAME)
    yield from (line for name in columns for line in _meaning(name, _MEANINGS[name]))
    names = " ".join(reading.name for reading in first)
    yield from (line for word, text in _WORDS.items() if word[:4] in names for line in _meaning(word, text))
    yield ""
    yield f"Page: {page} ({seconds_since_start():.0f} s; pictures, and more on every number)"


def _meaning(name: str, text: str) -> list[str]:
    return wrap(text, " " * 18, f"  {name:<16}")


def _cells(reading: Reading) -> dict[str, str]:
    return {
        "right": "" if reading.accuracy is None else f"{reading.accuracy:.1%}",
        "explained": f"{reading.explained:.1%}".replace("-0.0%", "0.0%"),
        "of shuffled": f"{reading.ratio:.1%}",
        "steps": ">1000" if reading.steps is None else str(reading.steps),
        "alignment": f"{reading.alignment:.3f}",
    }
