"""``mercer list``: every entry of the five papers, whether it can run here, and what its recorded runs show."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from typing import Any

import click

from mercer.cli.output import examples, width

WORDS = {
    "ready": "ready",
    "missing": "data missing",
    "paper_scale_only": "paper scale only",
    "not_built": "not built yet",
}


@click.command(
    "list",
    short_help="List the papers' entries and their verdicts.",
    epilog=examples("mercer list", "mercer list chen2022", "mercer list spectral2019/table1 --json"),
)
@click.argument("papers", metavar="[PAPER ...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of entries.")
def list_entries(papers: tuple[str, ...], as_json: bool) -> None:
    """List entries: id, paper, what it shows, data, scale, state, verdict.

    PAPER is a paper (chen2022) or an entry (chen2022/fig4); default: all. The state says whether the entry can run
    here; the verdict whether the recorded runs reproduce the paper.
    """
    from mercer_papers.catalogue import select
    from mercer_papers.cells import SCALES
    from mercer_papers.data_files import data_folder, is_here  # no wait for torch
    from mercer_papers.verdict import recorded_verdict

    try:
        entries = select(papers)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    rows: list[dict[str, Any]] = []
    for entry in entries:
        # whether it can run here
        state = "ready"
        if not entry.built:
            state = "not_built"
        elif entry.scale == "paper":
            state = "paper_scale_only"
        elif entry.needs and not any(is_here(name, data_folder(None)) for name in entry.needs):
            state = "missing"
        # and what the recorded runs show
        verdict = recorded_verdict(entry)
        rows.append(
            {
                "id": entry.id,
                "paper": entry.paper,
                "kind": entry.kind,
                "what": entry.title,
                "source": entry.source,
                "data": list(entry.data),
                "scale": ["paper"] if entry.scale == "paper" else list(SCALES),
                "state": state,
                "verdict": verdict.word,
                "why": verdict.why,
                "cells": [verdict.setting.filled, verdict.setting.cells],
                "claims": [{"says": claim.says, "word": claim.word, "why": claim.why} for claim in verdict.claims],
            }
        )
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    # a block for each paper, then the totals
    for paper in dict.fromkeys(row["paper"] for row in rows):
        click.echo(click.style(paper, bold=True))
        for row in (row for row in rows if row["paper"] == paper):
            click.echo(f"  {row['id']:<24}{row['verdict']:<33}{WORDS[row['state']]}")
            data = ", ".join(row["data"]) or "none"
            for text in (row["what"], row["why"], f"{row['kind']}; data: {data}; scale: {', '.join(row['scale'])}"):
                lines = textwrap.fill(text, width() + 1, initial_indent="    ", subsequent_indent="    ")
                click.echo(click.style(lines, dim=True))
    kinds, states = [row["kind"] for row in rows], [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {word}" for state, word in WORDS.items() if state in states)
    verdicts = ", ".join(f"{count} {word}" for word, count in Counter(row["verdict"] for row in rows).most_common())
    filled, cells = (sum(row["cells"][i] for row in rows) for i in (0, 1))
    total = f"{kinds.count('result')} results and {kinds.count('check')} checks: {counts}. Verdicts: {verdicts}. "
    total += f"{filled} of {cells} published numbers have one of ours beside them."
    click.echo(textwrap.fill(total, width() + 1))
