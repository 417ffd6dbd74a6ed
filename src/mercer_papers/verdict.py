"""Whether a result of a paper was reproduced, by a rule and never by hand.

1. A *comparison* of a claim (`claims`) has two one-sided tests over common seeds (Student's t): that it holds, and
   that it fails, or that our numbers exclude even a quarter of the printed difference. One seed tests nothing unless
   nothing is random. Comparisons that the paper's own numbers contradict are left out.
2. Of several runs, for each comparison the largest with two seeds or more counts, of equal ones the one with most
   seeds. The size of a run is its rows times its epochs over the paper's (``paper_size`` of the TOML). Below 10 % of
   the paper's size, or with another data set, network or method (``not_the_papers``), nothing fails: a hundredth of
   the training, or another network, refutes nothing. Comparisons with a stand-in count where a claim has no others.
3. A *claim* holds where all its comparisons do (with ``most``: more than half), and fails where too many fail, at 5 %
   for all of them together (`claims.decide`); else it is open. A finding against a fair rival vetoes: a claim holds
   only if that does, fails if that fails, and is open while the fair rival was not run.
4. An *entry* is judged by its headline claims. All hold: *reproduces*, where most of the table's cells were run with
   the paper's data, network and method and half of its training or more, else *reproduces in a smaller setting*.
   Some hold, or some comparisons of them beyond chance: *mixed*. Otherwise *does not* where some fail, and *not
   tested* where all are open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .catalogue import Entry
from .claims import ENOUGH, FAILS, HOLDS, OPEN, Comparison, compare, decide, numbers_by_seed, some_hold
from .recorded_runs import find_recorded
from .results import Result

VERDICTS = ("reproduces", "reproduces in a smaller setting", "mixed", "does not", "not tested")
_MOST = 0.5  # of the training, and of the table's cells, that make the paper's own setting


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with its word (`holds`, `fails` or `open`) and the comparisons behind it.

    Args:
        says: The claim.
        word: By rule 3.
        why: The numbers that decided, in one sentence.
        headline: Whether the entry is judged by it.
        finding: Whether it is a comparison of ours that the paper does not make.
        comparisons: All of them.
    """

    says: str
    word: str
    why: str
    headline: bool
    finding: bool
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class Setting:
    """How much of the paper's own setting was run.

    Args:
        stand_ins: What was not the paper's: data, network, method.
        size: Share of its training, of the shortest run that counts.
        filled: Cells of the paper's table with a number of ours.
        cells: Cells of the paper's table.
        was_run: Whether a headline claim has a comparison at all.
    """

    stand_ins: tuple[str, ...] = ()
    size: float = 1.0
    filled: int = 0
    cells: int = 0
    was_run: bool = True

    @property
    def is_the_papers(self) -> bool:
        """Its data, network and method, half of its training, half of its cells."""
        return not self.stand_ins and self.size >= _MOST and self.filled >= _MOST * self.cells

    @property
    def text(self) -> str:
        """In words."""
        parts = [*self.stand_ins]
        if self.size < 1:
            parts.append(f"{100 * self.size:.2g} % of the paper's training")
        if self.filled:
            parts.append(f"{self.filled} of {self.cells} cells")
        elif self.cells:
            parts.append(f"not run: its {self.cells} cells")
        if parts:
            return "; ".join(parts)
        return "the paper's own setting" if self.was_run else "not run"


@dataclass(frozen=True)
class Verdict:
    """One of `VERDICTS`, why, the claims behind it, and the setting."""

    word: str
    why: str
    claims: tuple[ClaimVerdict, ...] = ()
    setting: Setting = Setting()

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons of all claims."""
        return tuple(comparison for claim in self.claims for comparison in claim.comparisons)


def recorded_verdict(entry: Entry, also: Sequence[Result] = ()) -> Verdict:
    """The verdict of the stored runs together; ``also`` are the lines of a run at hand, one more."""
    runs = [run.results for run in find_recorded(entry.id)]
    if also:
        runs.append(tuple(also))
    return judge(entry, runs)


def judge(entry: Entry, runs: Sequence[Sequence[Result]]) -> Verdict:
    """The verdict of an entry's runs, by the rule at the top of this file."""
    published = {f"{number.row} | {number.column}": number.value for number in entry.numbers}
    # Rules 1 and 2: every comparison, from the run that counts for it.
    pooled: dict[tuple[str, tuple[str, ...]], Comparison] = {}
    for run in runs:
        done = [result for result in run if result.status == "done"]
        for comparison in compare(entry.claims, done, published):
            measured = _with_setting(entry, comparison, done)
            place = (comparison.claim.says, comparison.names)
            if place not in pooled or _weight(measured) > _weight(pooled[place]):
                pooled[place] = measured
    # Rule 3: every claim, by comparisons in the paper's own setting where there are any.
    claims: list[ClaimVerdict] = []
    vetoes: dict[str, list[ClaimVerdict]] = {}
    for says in dict.fromkeys(claim.says for claim in entry.claims):
        claim = next(claim for claim in entry.claims if claim.says == says)
        every = tuple(comparison for (said, _), comparison in pooled.items() if said == says)
        counting = tuple(comparison for comparison in every if not comparison.stand_ins) or every
        word = decide(claim, counting)
        headline = not (claim.detail or claim.finding)
        claims.append(ClaimVerdict(says, word, _explain(word, counting), headline, claim.finding, counting))
        if claim.vetoes:
            vetoes.setdefault(claim.vetoes, []).append(claims[-1])
    # A veto changes the word of the claim that it names; a fair rival that was run says more than one that was not.
    for number, judged in enumerate(claims):
        for fair in sorted(vetoes.get(judged.says, ()), key=lambda fair: not fair.comparisons):
            if judged.word != HOLDS or fair.word == HOLDS:
                continue
            against = f"nothing is stored ({fair.says.removeprefix('Our finding: ').rstrip('.')})."
            if fair.comparisons:
                state = {FAILS: "it fails", OPEN: "it is open"}[fair.word]
                against = f"{state}: {fair.why}"
            judged = replace(judged, word=fair.word, why=f"{judged.why} Against a fair rival {against}")
            claims[number] = judged
    # How much of the paper's setting the headline claims rest on.
    headlines = [judged for judged in claims if judged.headline]
    counted = [comparison for judged in headlines for comparison in judged.comparisons]
    run_names = {name for run in runs for name in numbers_by_seed(run)}
    setting = Setting(
        stand_ins=tuple(dict.fromkeys(text for comparison in counted for text in comparison.stand_ins)),
        size=min((comparison.size for comparison in counted), default=1.0),
        filled=len(published.keys() & run_names),
        cells=len(published),
        was_run=bool(counted),
    )
    # Rule 4: the entry, by its headline claims.
    words = [judged.word for judged in headlines]
    if words and all(word == HOLDS for word in words):
        entry_word = VERDICTS[0] if setting.is_the_papers else VERDICTS[1]
    elif HOLDS in words or any(some_hold(judged.comparisons) for judged in headlines):
        entry_word = "mixed"
    elif FAILS in words:
        entry_word = "does not"
    else:
        entry_word = "not tested"
    return Verdict(entry_word, _sentence(headlines, setting), tuple(claims), setting)


def _with_setting(entry: Entry, comparison: Comparison, results: Sequence[Result]) -> Comparison:
    """The comparison with its run's share of the training and its stand-ins; either may leave it unable to refute."""
    size, stand_ins = 1.0, []
    for result in results:
        place = result.row
        if result.column:
            place += f" | {result.column}"
        if not any(name == place or name.startswith(f"{place} | ") for name in comparison.names):
            continue
        # its share of the training; a setting that is no number, such as None for all rows, is the paper's
        share = 1.0
        for name, full in entry.paper_size.items():
            used = result.settings.get(name)
            if isinstance(used, int | float):
                share *= min(1.0, used / full)
        size = min(size, share)
        # what stands in for the paper's data, network or method
        for stand_in in entry.not_the_papers:
            settings = stand_in.get("where", {}).items()
            applies = result.scale != "paper" or stand_in.get("always")
            if applies and all(result.settings.get(key) == value for key, value in settings):
                stand_ins.append(stand_in["says"])
    p_fails = comparison.p_fails
    if size < ENOUGH or stand_ins:
        p_fails = 1.0
    return replace(comparison, size=size, stand_ins=tuple(dict.fromkeys(stand_ins)), p_fails=p_fails)


def _weight(comparison: Comparison) -> tuple[bool, float, int]:
    return comparison.is_settled, comparison.size, comparison.seeds


def _explain(word: str, comparisons: Sequence[Comparison]) -> str:
    """Counts, and the comparison that decided: the first that failed, else the weakest."""
    if not comparisons:
        return "No run of it is stored."
    if word == FAILS:
        decisive = min(comparisons, key=lambda c: c.p_fails)
    else:
        decisive = max(comparisons, key=lambda c: (c.outcome == FAILS, c.p_holds))
    if len(comparisons) == 1:
        return f"{decisive.text}."
    counts = [sum(c.outcome == outcome for c in comparisons) for outcome in (HOLDS, FAILS, OPEN)]
    parts = [f"{counts[0]} of {len(comparisons)} comparisons hold"]
    if counts[1]:
        parts.append("1 fails" if counts[1] == 1 else f"{counts[1]} fail")
    if counts[2]:
        parts.append(f"{counts[2]} open")
    return f"{', '.join(parts)}. {decisive.text}."


def _sentence(headlines: Sequence[ClaimVerdict], setting: Setting) -> str:
    """The claim that decided, in the order failed, open, held, and how much of the paper's setting it rests on."""
    if not any(claim.comparisons for claim in headlines):
        missing = "no claim of the paper is written down"
        if headlines:
            missing = headlines[0].says
        return f"No stored run settles: {missing.rstrip('.')}."
    order = (FAILS, OPEN, HOLDS)
    first = min(headlines, key=lambda claim: (order.index(claim.word), not claim.comparisons))
    text = f"{first.word.capitalize()}: {first.says.rstrip('.')} ({first.why.rstrip('.')}). Setting: {setting.text}."
    if len(headlines) == 1:
        return text
    counts = []
    for word, plural in ((HOLDS, "hold"), (FAILS, "fail"), (OPEN, "open")):
        count = sum(claim.word == word for claim in headlines)
        if count:
            counts.append(f"{count} {word if count == 1 else plural}")
    return f"Of {len(headlines)} claims {', '.join(counts)}. {text}"
