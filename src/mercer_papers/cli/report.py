"""``mercer report``: the page of a run, built again from its stored results."""

from __future__ import annotations

from pathlib import Path

import click

from mercer.cli.output import examples


@click.command(short_help="Rebuild the page of a run.", epilog=examples("mercer report runs/2026-11-16-0930"))
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
def report(run: Path) -> None:
    """Rebuild RUN/report.html from the stored results and print its path."""
    from mercer_papers.report import build
    from mercer_papers.results import read_run

    read_run(run)
    click.echo(build(run))
