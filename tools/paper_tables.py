"""Tables of docs/papers, made from the recorded runs: ``python tools/paper_tables.py`` rewrites them in place.

A page holds markers; what stands between one and its end is generated and never typed::

    <!-- verdicts chen2022 -->
    <!-- recorded chen2022-matrices: chen2022/table4 chen2022/fig4 pivot test accuracy -->
    <!-- recorded checks: chen2022/thm3.1 -->
    <!-- end -->

``pivot COLUMN`` puts rows named "set, variant" into a grid of variants by sets; else rows and columns are the entry's,
with the paper's number beside ours where it printed one.
``--check`` changes nothing and fails where a page is out of date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from mercer_papers.catalogue import select
from mercer_papers.recorded_runs import Recorded, recorded
from mercer_papers.results import Summary, summarise
from mercer_papers.verdict import recorded_verdict

PAGES = Path(__file__).parents[1] / "docs" / "papers"
_BLOCK = re.compile(r"<!-- (verdicts|recorded) (.+?) -->\n.*?<!-- end -->", re.S)


def main(check: bool) -> int:
    """Rewrite the pages, or say which are out of date."""
    stale = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        made = _BLOCK.sub(_filled, text)
        if made != text:
            stale.append(page.name)
            if not check:
                page.write_text(made, encoding="utf-8")
    if check and stale:
        sys.stdout.write(f"Out of date: {', '.join(stale)}. Run python tools/paper_tables.py.\n")
    return int(check and bool(stale))


def _filled(block: re.Match[str]) -> str:
    kind, asked = block[1], block[2]
    table = _verdicts(asked) if kind == "verdicts" else _numbers(asked)
    return f"<!-- {kind} {asked} -->\n{table}\n<!-- end -->"


def _verdicts(papers: str) -> str:
    """One row a claim: its word, the numbers that decided, and how much of the paper's setting was run."""
    lines = ["| entry | claim | word | numbers | setting |", "|---|---|---|---|---|"]
    for entry in select(papers.split()):
        found = recorded_verdict(entry)
        lines.append(f"| `{entry.id}` | {entry.title} | **{found.word}** | | {found.setting.text} |")
        for claim in found.claims:
            word = claim.word if claim.comparisons else "not run"
            says = claim.says + (" (a detail)" if not claim.headline and not claim.finding else "")
            lines.append(f"| | {says} | {word} | {claim.why.replace('|', '/')} | |")
    return "\n".join(lines)


def _numbers(asked: str) -> str:
    name, _, rest = asked.partition(": ")
    ids, _, pivot = rest.partition(" pivot ")
    run = _run(name, ids.split())
    done = summarise(run.results)
    table = _grid(*(_pivoted(done, pivot) if pivot else _plain(done, ids.split())))
    cpu = sum(result.cpu_seconds for result in run.results)
    cost = f"{cpu / 60:.0f} CPU minutes" if cpu >= 90 else f"{cpu:.0f} CPU seconds"
    return f"`{run.command}` ({cost})\n\n{table}"


def _run(name: str, ids: list[str]) -> Recorded:
    """What the recorded run of that name holds of these entries."""
    own = [run for entry in ids for run in recorded(entry) if run.folder == name]
    if not own:
        raise SystemExit(f"recorded/{name} must hold {', '.join(ids)}.")
    return replace(own[0], results=tuple(result for run in own for result in run.results))


def _pivoted(done: list[Summary], column: str) -> tuple[list[str], list[str], dict[tuple[str, str], str]]:
    cells: dict[tuple[str, str], str] = {}
    for summary in done:
        if summary.column == column:
            first, _, variant = summary.row.partition(", ")
            cells[variant, first] = _number(summary)
    return list(dict.fromkeys(v for v, _ in cells)), list(dict.fromkeys(s for _, s in cells)), cells


def _plain(done: list[Summary], ids: list[str]) -> tuple[list[str], list[str], dict[tuple[str, str], str]]:
    theirs = {(number.row, number.column): number.value for entry in select(ids) for number in entry.numbers}
    cells = {}
    for summary in done:
        place = (summary.row, summary.column)
        paper = f" (paper {theirs[place]:,.6g})" if place in theirs else ""
        cells[place] = _number(summary) + paper
    return list(dict.fromkeys(r for r, _ in cells)), list(dict.fromkeys(c for _, c in cells)), cells


def _grid(rows: list[str], columns: list[str], cells: dict[tuple[str, str], str]) -> str:
    heads = [column.replace("|", "\\|") or "value" for column in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(cells.get((row, column), "") for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _number(summary: Summary) -> str:
    spread = f" ± {summary.deviation:.2g}" if summary.deviation is not None else ""
    mean = f"{summary.mean:,.0f}" if abs(summary.mean) >= 1000 else f"{summary.mean:.4g}"
    return mean + spread


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
