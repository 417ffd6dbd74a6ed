"""``mercer report``: the page of a run, built again from its stored results."""

from __future__ import annotations

from pathlib import Path

import click

from mercer.cli.output import check_output, examples, is_stream, opened_output


@click.command(short_help="Rebuild the page of a run.", epilog=examples("mercer report runs/2026-11-16-0930"))
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="PAGE.html",
    help="File for the page; - is standard output.  [default: RUN/report.html]",
)
def report(run: Path, output: Path | None) -> None:
    """Rebuild the page of RUN from the stored results and print its path."""
    from mercer_papers.report import build
    from mercer_papers.results import RESULTS, RUN, read_run

    read_run(run)
    page = output or run / "report.html"
    check_output(page, {name: run / name for name in (RUN, RESULTS)}, as_json=False)
    with opened_output(page) as file:
        build(run, file)
    if not is_stream(page):
        click.echo(page)
