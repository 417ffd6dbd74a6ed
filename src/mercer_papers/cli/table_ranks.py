"""``mercer bench tables``: ours among the methods that are installed, on the tables of ``MERCER_DATA``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from mercer.cli.output import say

TABLES = "tables"
_LINES = "tables.jsonl"


def rank_tables(output: Path | None, threads: int, as_json: bool, stream: bool = False) -> None:
    """Measure what the folder does not have yet, then print ranks, wins and losses, and costs."""
    from mercer.cli.process import Interrupted, Interruption, threads_set
    from mercer_papers.bench.record import read_rows
    from mercer_papers.bench.table_ranks import page
    from mercer_papers.bench.tables import measure
    from mercer_papers.data import MissingData

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if output is None else output
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with Interruption(), threads_set(threads):
                measure(folder / _LINES, progress=_progress)
        except MissingData as error:
            raise click.ClickException(str(error)) from error
        except Interrupted as interrupted:
            say("Interrupted." if output is None else f"Interrupted. The same command resumes {output}.")
            raise click.exceptions.Exit(interrupted.exit_code) from None
        if as_json or stream:
            click.echo(json.dumps(read_rows(folder / _LINES), allow_nan=False))
        if not as_json:
            click.echo(page(folder / _LINES), err=stream)


def _progress(row: dict[str, Any]) -> None:
    state = row.get("error") or f"{row['cpu_fit']:.3g} CPU s"
    say(f"{row['table']}, fold {row['fold']}, {row['method']}: {state}")
