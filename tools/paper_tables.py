"""Numbers of the documents, made from stored results: ``python tools/paper_tables.py`` rewrites them in place.

README and every page under docs may hold markers; what stands between one and its end is generated and never typed.

Tables, each on lines of its own, from verdicts, from runs in ``src/mercer_papers/recorded`` and from lines in
``src/mercer_papers/bench/results``::

    <!-- verdicts chen2022 -->
    <!-- counts -->
    <!-- recorded chen2022-matrices: chen2022/table4 chen2022/fig4 pivot test accuracy -->
    <!-- recorded checks: chen2022/thm3.1 -->
    <!-- lines tables.jsonl; method by table; r2; table=salaries; table=hedonic; .3f -->
    <!-- lines bench.json; who; accuracy as test accuracy, cpu as CPU seconds; case=wine; .3g -->
    <!-- end -->

``pivot COLUMN`` puts rows named "set, variant" into a grid of variants by sets; else rows and columns are the entry's,
with the paper's number beside ours where it printed one. ``lines FILE; ROW by COLUMN; VALUE`` puts a field of the lines
into a grid of two others; ``lines FILE; ROW; VALUE as NAME, VALUE`` has a column for each of several fields. A
``field=value`` takes only those lines, several of one field any of them; of lines that share a cell the mean is shown.

A number or a count inside a sentence::

    <!-- number RUN; ENTRY; ROW; COLUMN; .3f -->0.972<!-- end -->
    <!-- number tables.jsonl; table=salaries; method=xRFM; r2; .1% -->34.1 %<!-- end -->
    <!-- printed masoomi2020/exp4; face, CE; test; .2f -->0.79<!-- end -->
    <!-- tally chen2022 -->mixed 2, does not 1; 40 of 120 cells<!-- end -->

``printed`` is the paper's own number, of ``src/mercer_papers/published``. The last part is Python's format of the
number and may be left out (``.4g``). ``--check`` changes nothing and fails where a page is out of date.
"""

from __future__ import annotations

import functools
import json
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mercer_papers import bench
from mercer_papers.catalogue import entries, select
from mercer_papers.recorded_runs import Recorded, describe_repeat, find_recorded
from mercer_papers.results import Summary, summarise
from mercer_papers.verdict import VERDICTS, recorded_verdict

ROOT = Path(__file__).parents[1]
LINES = Path(bench.__file__).parent / "results"
MARKED = re.compile(
    r"<!-- (?P<kind>verdicts|counts|recorded|lines|number|printed|tally)(?: (?P<asked>(?!-->)[^\n]+?))? -->"
    r".*?<!-- end -->",
    re.S,
)
_FORMAT = re.compile(r"[,+]?\.\d+[efg%]")

Grid = tuple[list[str], list[str], dict[tuple[str, str], str]]


def main(check: bool) -> int:
    """Rewrite the pages, or say which are out of date."""
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        fresh = MARKED.sub(_fill, text)
        if fresh != text:
            stale.append(page.name)
            if not check:
                page.write_text(fresh, encoding="utf-8")
    if check and stale:
        sys.stdout.write(f"Out of date: {', '.join(stale)}. Run python tools/paper_tables.py.\n")
    return int(check and bool(stale))


def _fill(marked: re.Match[str]) -> str:
    kind, asked = marked["kind"], marked["asked"] or ""
    opening = f"<!-- {kind} {asked} -->" if asked else f"<!-- {kind} -->"
    inline = {"number": _find_number, "printed": _find_printed, "tally": _count_words}
    if kind in inline:
        return f"{opening}{inline[kind](asked)}<!-- end -->"
    table = {"verdicts": _verdicts, "counts": _counts, "recorded": _numbers, "lines": _lines}[kind](asked)
    return f"{opening}\n{table}\n<!-- end -->"


def _verdicts(papers: str) -> str:
    """An entry's row says how much of the paper's setting was run; below it each claim with its numbers."""
    lines = ["| claim | word | numbers and setting |", "|---|---|---|"]
    for entry in select(papers.split()):
        verdict = recorded_verdict(entry)
        lines.append(f"| `{entry.id}` {entry.title} | **{verdict.word}** | {verdict.setting.text} |")
        for claim in verdict.claims:
            word = claim.word if claim.comparisons else "not run"
            says = claim.says + (" (a detail)" if not claim.headline and not claim.finding else "")
            lines.append(f"| {says} | {word} | {claim.why.replace('|', '/')} |")
    return "\n".join(lines)


def _tally(paper: str) -> tuple[dict[str, int], int, int]:
    """How many entries have each word; how many cells of their tables are filled, of how many."""
    verdicts = [recorded_verdict(entry) for entry in select(paper.split())]
    words = {word: sum(verdict.word == word for verdict in verdicts) for word in VERDICTS}
    settings = [verdict.setting for verdict in verdicts]
    return words, sum(setting.filled for setting in settings), sum(setting.cells for setting in settings)


def _counts(_: str) -> str:
    """Verdicts and filled cells, a row a paper."""
    papers = list(dict.fromkeys(entry.paper for entry in entries()))
    lines = [f"| paper | {' | '.join(VERDICTS)} | cells filled |", "|---" * (len(VERDICTS) + 2) + "|"]
    for name, paper in [*((f"[{paper}]({paper}.md)", paper) for paper in papers), ("all", "")]:
        words, filled, cells = _tally(paper)
        lines.append(f"| {name} | {' | '.join(str(words[word]) for word in VERDICTS)} | {filled} of {cells} |")
    return "\n".join(lines)


def _count_words(paper: str) -> str:
    words, filled, cells = _tally(paper)
    counts = ", ".join(f"{word} {count}" for word, count in words.items() if count)
    return f"{counts}; {filled} of {cells} cells" if cells else counts


def _numbers(asked: str) -> str:
    name, _, rest = asked.partition(": ")
    ids, _, pivot = rest.partition(" pivot ")
    run = _run(name, ids.split())
    summaries = summarise(run.results)
    table = _grid(*(_pivoted(summaries, pivot) if pivot else _plain(summaries, ids.split())))
    cpu = sum(result.cpu_seconds for result in run.results)
    cost = f"{cpu / 60:.0f} CPU minutes" if cpu >= 90 else f"{cpu:.0f} CPU seconds"
    return f"`{run.command}` ({cost}, version {run.version}; {describe_repeat(name)})\n\n{table}"


def _run(name: str, ids: list[str]) -> Recorded:
    """What the recorded run of that name holds of these entries."""
    own = [run for entry in ids for run in find_recorded(entry) if run.folder == name]
    if not own:
        raise SystemExit(f"recorded/{name} must hold {', '.join(ids)}.")
    return replace(own[0], results=tuple(result for run in own for result in run.results))


def _pivoted(summaries: list[Summary], column: str) -> Grid:
    cells: dict[tuple[str, str], str] = {}
    for summary in summaries:
        if summary.column == column:
            first, _, variant = summary.row.partition(", ")
            cells[variant, first] = _number(summary)
    return list(dict.fromkeys(v for v, _ in cells)), list(dict.fromkeys(s for _, s in cells)), cells


def _plain(summaries: list[Summary], ids: list[str]) -> Grid:
    theirs = {(number.row, number.column): number.value for entry in select(ids) for number in entry.numbers}
    cells = {}
    for summary in summaries:
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


def _lines(asked: str) -> str:
    """A table of stored bench lines: fields by one field, or one field by two; above it the version."""
    (name, by, values, *rest), form = _parts(asked)
    lines = _matching(name, rest)
    rows, _, columns = by.partition(" by ")
    named = [value.partition(" as ")[::2] for value in values.split(", ")]
    groups: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        for field, title in named:
            number = line.get(field)
            if isinstance(number, int | float):
                place = (str(line[rows]), str(line[columns]) if columns else title or field)
                groups.setdefault(place, []).append(number)
    cells = {place: _formatted(statistics.fmean(numbers), form) for place, numbers in groups.items()}
    table = _grid(list(dict.fromkeys(r for r, _ in cells)), list(dict.fromkeys(c for _, c in cells)), cells)
    # lines of `mercer bench` say which version they are of
    versions = sorted({str(line["version"]) for line in lines if line.get("who") == "mercer" and line.get("version")})
    return f"`mercer bench`, version {', '.join(versions)}\n\n{table}" if versions else table


def _find_number(asked: str) -> str:
    """One number: of a run by entry, row and column, or of a file of lines by its fields; a mean over its lines."""
    (name, *rest), form = _parts(asked)
    if (LINES / name).is_file():
        field = rest.pop()
        numbers = [line[field] for line in _matching(name, rest) if isinstance(line.get(field), int | float)]
    else:
        entry, row, column = rest
        summaries = summarise(_run(name, [entry]).results)
        numbers = [summary.mean for summary in summaries if (summary.row, summary.column) == (row, column)]
    if not numbers:
        raise SystemExit(f"{asked}: no such number is stored.")
    return _formatted(statistics.fmean(numbers), form)


def _find_printed(asked: str) -> str:
    """The paper's own number, by entry, row and column."""
    (name, row, column), form = _parts(asked)
    numbers = {(number.row, number.column): number.value for number in select([name])[0].numbers}
    if (row, column) not in numbers:
        raise SystemExit(f"{asked}: the paper prints no such number.")
    return _formatted(numbers[row, column], form)


def _parts(asked: str) -> tuple[list[str], str]:
    """What stands between the semicolons, and the format, if the last part is one."""
    parts = [part.strip() for part in asked.split(";")]
    form = parts.pop() if _FORMAT.fullmatch(parts[-1]) else ".4g"
    return parts, form


def _matching(name: str, conditions: list[str]) -> list[dict[str, Any]]:
    """The lines of a file that have, for each field named, one of the values given for it."""
    wanted: dict[str, set[str]] = {}
    for condition in conditions:
        field, _, value = condition.partition("=")
        wanted.setdefault(field, set()).add(value)
    found = [line for line in _read(name) if all(str(line.get(f)) in values for f, values in wanted.items())]
    if not found:
        raise SystemExit(f"{name} must hold lines with {'; '.join(conditions)}.")
    return found


@functools.cache
def _read(name: str) -> list[dict[str, Any]]:
    text = (LINES / name).read_text(encoding="utf-8")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    lines: list[dict[str, Any]] = json.loads(text)["lines"]
    return lines


def _formatted(number: float, form: str) -> str:
    return f"{number:{form}}".replace("%", " %")


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
