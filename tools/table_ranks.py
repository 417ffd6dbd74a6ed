"""Ranks of docs/tables.md, docs/index.md and README, made from the stored lines: ``python tools/table_ranks.py``.

What stands between a marker and its end is generated and never typed::

    <!-- tables ranks: mercer, CatBoost, linear -->    mean ranks below 3,000 rows, to 12,000, above
    <!-- tables duels: CatBoost, TabM -->              ours against each: tables won and lost, CPU of fit
    <!-- tables losses: CatBoost, linear -->           where ours is farthest behind the best of these
    <!-- tables intervals: mercer, NGBoost -->         coverage and score of intervals
    <!-- tables runs -->                               what was run: tables, fits, versions, settings
    <!-- tables first: mercer, CatBoost, linear -->    in a sentence: ranks of ours and of the best other
    <!-- tables cost: CatBoost -->                     in a sentence: CPU of our fit over its
    <!-- tables honesty -->                            in a sentence: reported minus held-out scores
    <!-- tables coverage -->                           in a sentence: coverage of our intervals
    <!-- tables changes: CatBoost -->                  in a sentence: tables whose folds name different winners
    <!-- end -->

The pictures ``tables.svg`` and ``tables_duels.svg`` of docs/img have the methods of the first ``ranks`` and of the
first ``duels`` in docs/tables.md. ``--check`` changes nothing and fails where a page is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd

from mercer.figures.narrow import write_svg
from mercer_papers.bench import table_ranks
from mercer_papers.bench.tables import STORED

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "tables.md", ROOT / "docs" / "index.md", ROOT / "README.md")
PICTURES = ROOT / "docs" / "img"
_BLOCK = re.compile(r"<!-- tables (\w+)(?:: (.+?))? -->(\n?).*?<!-- end -->", re.S)


def main(check: bool) -> int:
    """Rewrite the pages, or say which are out of date."""
    lines = table_ranks.read(STORED)
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        made = _BLOCK.sub(lambda block: fill(lines, block), text)
        if made != text:
            stale.append(page.name)
            if not check:
                page.write_text(made, encoding="utf-8")
    if check:
        if stale:
            sys.stdout.write(f"Out of date: {', '.join(stale)}. Run python tools/table_ranks.py.\n")
        return int(bool(stale))
    blocks = list(_BLOCK.finditer(PAGES[0].read_text(encoding="utf-8")))
    for kind, draw, name in (
        ("ranks", table_ranks.draw, "tables.svg"),
        ("duels", table_ranks.draw_duels, "tables_duels.svg"),
    ):
        methods = next(_names(block) for block in blocks if block[1] == kind)
        write_svg(draw(lines, methods), PICTURES / name)
    return 0


def fill(lines: pd.DataFrame, block: re.Match[str]) -> str:
    """A marker with what the lines say now."""
    kind, names, newline = block[1], _names(block), block[3]
    whole = {"runs": table_ranks.runs, "honesty": table_ranks.honesty, "coverage": table_ranks.coverage}
    if kind in whole:
        text = whole[kind](lines)
    elif kind == "cost":
        ratio = table_ranks.cost_ratios(lines, names[0])
        worst = f"{table_ranks.times(ratio.iloc[-1])} times at worst (`{ratio.index[-1]}`)"
        text = f"{table_ranks.times(ratio.median())} times {names[0]}'s in the median and {worst}"
    elif kind == "changes":
        text = table_ranks.changing_winners(lines, names[0])
    else:
        makers = {
            "ranks": table_ranks.ranks_by_length,
            "duels": table_ranks.duels,
            "losses": table_ranks.losses,
            "intervals": table_ranks.intervals,
            "first": table_ranks.sentence,
        }
        text = makers[kind](lines, names)
    asked = f": {block[2]}" if block[2] else ""
    return f"<!-- tables {kind}{asked} -->{newline}{text}{newline}<!-- end -->"


def _names(block: re.Match[str]) -> list[str]:
    return [name.strip() for name in (block[2] or "").split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
