"""``mercer explain``: what a model of ``mercer fit`` learned, in words and drawn."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mercer.cli.output import (
    DATA,
    MODEL,
    check_output,
    examples,
    is_stream,
    json_option,
    opened_output,
    progress,
    width,
    wrap,
)
from mercer.user_text import shown

if TYPE_CHECKING:
    from mercer.tabular import TabularModel

PAGE = "explain.html"
_SHOWN = 10  # columns whose weights are listed
_BAR = 30


@click.command(
    short_help="Summarise and plot what a model learned.",
    epilog=examples(
        "mercer explain model", "mercer explain model rows.csv", "mercer explain model --data held-out.csv -o page.html"
    ),
)
@click.argument("model", type=MODEL)
@click.argument("rows", required=False, type=DATA)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="PAGE.html",
    help="File for the page; - is standard output.  [default: MODEL/explain.html; with ROWS no page]",
)
@click.option(
    "--data", type=DATA, help="Rows with the target, to measure how much shuffling each column lowers the score."
)
@json_option
def explain(model: Path, rows: Path | None, output: Path | None, data: Path | None, as_json: bool) -> None:
    """Summarise and plot what MODEL, a folder of `mercer fit`, learned: scores, columns, machines, mistakes.

    With ROWS, a table: why each of its first 20 rows gets its answer. ROWS or DATA may be -, csv from standard input.
    """
    from mercer.cli.predict import load_model
    from mercer.cli.process import stoppable, threads_set
    from mercer.tabular import read
    from mercer.tabular.diagnosis import SCANNED
    from mercer.tabular.effects import EXPLAINED, reasons
    from mercer.tabular.importance import column_weights, permutation_losses
    from mercer.tabular.pages import model_page
    from mercer.tabular.pages.model_page import confusions, headline, machine_lines, reason_lines

    # Refuse, before any work, what cannot end well.
    page = output or model / PAGE
    loaded = load_model(model)
    check_output(page, {"ROWS": rows, "DATA": data}, as_json, model=model, page=PAGE)
    if not page.parent.is_dir():
        raise click.ClickException(f"the page's folder must be there; got {page.parent}. Make it first.")

    # With ROWS, why they get their answers; without, or where a page is wanted, what the model looks at.
    explanations, weights, losses = [], {}, None
    with stoppable(), threads_set(1), progress() as report:
        if rows is not None:
            report(f"explaining rows of {rows.name}")
            explanations = reasons(loaded, read(rows, rows=EXPLAINED, text=loaded.text_columns))
        if rows is None or output is not None or data is not None:
            report("weighing the columns")
            weights = column_weights(loaded)
            if data is not None:
                report(f"shuffling columns of {data.name}")
                table = read(data, rows=SCANNED, text=loaded.text_columns)
                losses = permutation_losses(loaded, table, weights=weights)
            report("drawing the page")
            with opened_output(page) as file:
                model_page(loaded, file, folder=str(model), losses=losses, weights=weights, reasons=explanations)

    # Tell it.
    if rows is not None:
        if as_json:
            click.echo(json.dumps([asdict(row) for row in explanations], indent=2, allow_nan=False, default=str))
            return
        for title, parts in map(reason_lines, explanations):
            click.echo(title, err=is_stream(output))
            for name, value in parts:
                click.echo(f"  {name:<42}{value:>15}", err=is_stream(output))
        return
    if as_json:
        mistakes = confusions(loaded, 20)
        document = {
            "page": str(page),
            "headline": headline(loaded),
            "target": loaded.target.name,
            "task": loaded.target.task,
            "rows": loaded.rows,
            "columns": [column.summary() for column in loaded.preparation.columns],
            "weights": weights,
            "shuffling_costs": losses,
            "machines": [line["values"] for line in machine_lines(loaded)],
            "mistakes": [{"true": a, "predicted": b, "rows": count, "of": of} for a, b, count, of in mistakes],
            "scores": loaded.scores,
            "notes": loaded.notes,
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    for line in _write_lines(loaded, page, weights, losses):
        click.echo(line, err=is_stream(output))


def _write_lines(
    model: TabularModel, page: Path, weights: Mapping[str, float], losses: Mapping[str, float] | None
) -> Iterator[str]:
    """What the command prints: how good the model is, what it looks at, how it is built, its mistakes."""
    from mercer.tabular.effects import correlated
    from mercer.tabular.pages.model_page import confusions, headline, machine_lines, next_steps

    # How good it is, and what to do.
    for text in (headline(model), *next_steps(model)):
        yield from wrap(text)
    # What it looks at, and what it needs.
    yield ""
    yield click.style("What it looks at", bold=True) + "  (share of how the prediction moves)"
    yield from _draw_bars(weights)
    for group in correlated(model, weights):
        yield from wrap(f"{', '.join(group)} say nearly the same: their shares belong together.", "    ", "  ")
    if losses is not None:
        yield click.style("What it needs", bold=True) + "  (points of the score lost when the column is shuffled)"
        yield from _draw_bars(losses)
    # The machines behind it; those that differ in their numbers only share a line, and the page has each.
    yield click.style("How it is built", bold=True)
    shares: dict[str, float] = {}
    for line in machine_lines(model):
        shares[line["what"]] = shares.get(line["what"], 0.0) + line["values"]["share"]
    for what, share in shares.items():
        yield from textwrap.wrap(f"  {f'{share:.1%}':>6}  {what}", width(), subsequent_indent=" " * 10)
    # Its mistakes.
    mistakes = confusions(model, 3)
    if mistakes:
        yield click.style("Its most frequent mistakes", bold=True)
        for true, predicted, count, of in mistakes:
            yield f"  {shown(true, 20)} taken for {shown(predicted, 20)}: {count} of {of} rows"
    yield ""
    yield f"Page: {page}"


def _draw_bars(shares: Mapping[str, float]) -> Iterator[str]:
    """The largest shares, a line each, with bars beside them."""
    first = dict(list(shares.items())[:_SHOWN])
    largest = max([*first.values(), 1e-12])
    for name, share in first.items():
        yield f"  {shown(name, 28):<30}{100 * share:>6.1f}%  {'#' * round(_BAR * max(share, 0) / largest)}".rstrip()
    if len(shares) > _SHOWN:
        yield f"  and {len(shares) - _SHOWN} more on the page"
