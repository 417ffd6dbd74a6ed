"""Whether a result of a paper was reproduced, by a rule and never by hand.

1. Each claim of an entry gives comparisons (`claims`). With two seeds or more a comparison *holds* where the mean
   difference is beyond a one-sided 95 % interval (Student's t over common seeds), *fails* where the difference is
   beyond it on the other side, or excludes a quarter of the printed difference, and is *open* otherwise. One seed
   leaves it open unless nothing is random.
2. The size of a run is its rows times its epochs over the paper's (``paper_size`` of the TOML); without such, 1.
3. At 10 % of the paper's size or more: *reproduces* if none fails and at most one in ten is open; *does not* if none
   holds and some fail; *cannot tell* if all are open; *partly* otherwise.
4. Below 10 %: *partly* where some hold, and *cannot tell at this size* where none does: a failure on a hundredth of
   the training refutes nothing.
5. Of several runs the largest with two seeds or more decides, of equal ones the one with most seeds: what a
   longer training leaves open, a shorter one does not settle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .catalogue import Entry
from .claims import FAILS, HOLDS, OPEN, Comparison, compare
from .recorded_runs import recorded
from .results import Result

VERDICTS = ("reproduces", "partly", "does not", "cannot tell")
_ENOUGH = 0.1  # of the paper's size
_FEW = 0.1  # of the comparisons may be open
_NOTHING = "no run of it is stored"


@dataclass(frozen=True)
class Verdict:
    """One of `VERDICTS`, why, and the comparisons behind it; ``size`` is the run's share of the paper's training."""

    word: str
    why: str
    size: float = 1.0
    comparisons: tuple[Comparison, ...] = ()

    @property
    def label(self) -> str:
        """The verdict in full: *cannot tell at this size* where it is the size."""
        return "cannot tell at this size" if self.word == "cannot tell" else self.word


def judge(entry: Entry, results: Sequence[Result]) -> Verdict:
    """The verdict of an entry's results, by the rule at the top of this file."""
    done = [result for result in results if result.status == "done"]
    if not done:
        return Verdict("cannot tell", f"Nothing to compare: {_NOTHING}.")
    published = {f"{number.row} | {number.column}": number.value for number in entry.numbers}
    comparisons = tuple(compare(entry.claims, done, published))
    size = max(_size(entry.paper_size, result.settings) for result in done)
    counts = {
        outcome: sum(c.outcome == outcome and not c.claim.finding for c in comparisons)
        for outcome in (HOLDS, FAILS, OPEN)
    }
    return Verdict(_word(counts, size), _why(counts, size, comparisons), size, comparisons)


def recorded_verdict(entry: Entry, also: Sequence[Result] = ()) -> Verdict:
    """The verdict of the stored run that decides, by rule 5; ``also`` are the lines of a run at hand, one more."""
    runs = [run.results for run in recorded(entry.id)] + ([tuple(also)] if also else [])
    return max((_weighed(entry, run) for run in runs or [()]), key=lambda pair: pair[0])[1]


def _weighed(entry: Entry, results: Sequence[Result]) -> tuple[tuple[bool, float, int, int], Verdict]:
    found = judge(entry, results)
    seeds = len({result.seed for result in results if result.status == "done"})
    return (seeds > 1, found.size if found.comparisons else 0.0, seeds, len(found.comparisons)), found


def _word(counts: Mapping[str, int], size: float) -> str:
    holds, fails, unsure = counts[HOLDS], counts[FAILS], counts[OPEN]
    if size < _ENOUGH:
        return "partly" if holds else "cannot tell"
    if not fails and holds and unsure <= _FEW * (holds + unsure):
        return "reproduces"
    if not holds:
        return "does not" if fails else "cannot tell"
    return "partly"


def _why(counts: Mapping[str, int], size: float, comparisons: Sequence[Comparison]) -> str:
    total = sum(counts.values())
    if not total:
        return "The claim is about what one sees: there is no number to compare."
    parts = [f"{counts[HOLDS]} of {total} comparisons hold"]
    parts += [f"{counts[FAILS]} fail"] if counts[FAILS] else []
    are = "is" if counts[OPEN] == 1 else "are"
    parts += [f"{counts[OPEN]} {are} open (one seed, or within the spread of seeds)"] if counts[OPEN] else []
    text = ", ".join(parts)
    if size < _ENOUGH:
        text += f", at {100 * size:.2g} % of the paper's training"
    failed = next((c for c in comparisons if c.outcome == FAILS and not c.claim.finding), None)
    return f"{text}." + (f" Fails: {failed.text}." if failed else "")


def _size(paper: Mapping[str, float], settings: Mapping[str, Any]) -> float:
    share = 1.0
    for name, whole in paper.items():
        ours = settings.get(name)
        share *= min(1.0, float(ours) / whole) if isinstance(ours, int | float) else 1.0
    return share
