"""``mercer list``: every entry of the five papers and whether it can run here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

WORDS = {
    "ready": "ready",
    "missing": "data missing",
    "paper_scale_only": "paper scale only",
    "not_built": "not built yet",
}


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array of entries.")
def list_entries(as_json: bool) -> None:
    """Every entry: id, paper, what it shows, data, scale, state."""
    from mercer.experiments import entries

    rows = [_row(entry) for entry in entries()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for paper in dict.fromkeys(row["paper"] for row in rows):
        click.echo(click.style(paper, bold=True))
        for row in (row for row in rows if row["paper"] == paper):
            data = ", ".join(row["data"]) or "none"
            click.echo(f"  {row['id']:<25}{WORDS[row['state']]:<18}{row['what']}")
            click.echo(
                click.style(f"  {'':<43}{row['kind']}; data: {data}; scale: {', '.join(row['scale'])}", dim=True)
            )
    click.echo(_totals(rows))


def _row(entry: Any) -> dict[str, Any]:
    from mercer.experiments import SCALES

    return {
        "id": entry.id,
        "paper": entry.paper,
        "kind": entry.kind,
        "what": entry.title,
        "source": entry.source,
        "data": list(entry.data),
        "scale": ["paper"] if entry.scale == "paper" else list(SCALES),
        "state": _state(entry),
    }


def _state(entry: Any) -> str:
    if not entry.built:
        return "not_built"
    if entry.scale == "paper":
        return "paper_scale_only"
    from mercer.experiments.execution import missing

    cells = entry.load().cells(entry, "small")
    absent = set(missing({name for cell in cells for name in cell.data}))
    return "missing" if all(absent.intersection(cell.data) for cell in cells) else "ready"


def _totals(rows: Sequence[dict[str, Any]]) -> str:
    kinds = [row["kind"] for row in rows]
    states = [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {word}" for state, word in WORDS.items() if state in states)
    return f"{kinds.count('result')} results and {kinds.count('check')} checks: {counts}"
