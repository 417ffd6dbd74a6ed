"""The rule for verdicts: seeds, sizes and standard errors, never a hand."""

from dataclasses import replace

import pytest

from mercer_papers import catalogue, verdict
from mercer_papers.catalogue import Entry, Number
from mercer_papers.claims import Claim, numbers_by_seed
from mercer_papers.recorded_runs import Recorded, recorded
from mercer_papers.results import Result
from mercer_papers.verdict import VERDICTS, judge, recorded_verdict

ENTRY = Entry(
    "a/b", "a", "result", "", "",
    claims=(Claim("ours is higher", higher="{}, ours | score", than=["{0}, theirs | score"]),),
)  # fmt: skip


def lines(ours, theirs, *, name="x", **settings):
    return [
        Result("a/b", f"{name}{who}{seed}", "done", "small", row=f"{name}, {who}", seed=seed,
               values={"score": value}, settings=settings)
        for who, values in (("ours", ours), ("theirs", theirs))
        for seed, value in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ([5.0, 5.1, 5.2], [4.0, 4.1, 4.2], "reproduces"),
        ([4.0, 4.1, 4.2], [5.0, 5.1, 5.2], "does not"),
        ([4.0, 5.1, 4.2], [4.1, 4.9, 4.3], "cannot tell"),  # within the spread
        ([9.0], [1.0], "cannot tell"),  # one seed has no error bar
        ([5.0, 6.0], [4.0, 4.9], "reproduces"),  # two seeds, paired differences of 1.0 and 1.1
        ([5.0, 9.0], [4.9, 4.0], "cannot tell"),  # two seeds ask for t = 6.31
    ],
)
def test_seeds_and_their_spread_decide(ours, theirs, word):
    assert judge(ENTRY, lines(ours, theirs)).word == word


def test_a_pattern_does_not_reach_into_the_further_numbers_of_a_cell():
    """``{} | ours, {}`` once compared the training losses of table 3 as accuracies."""
    entry = replace(ENTRY, claims=(Claim("ours is higher", higher="{} | ours, {}", than=["{0} | theirs, {1}"]),))
    results = [
        Result(ENTRY.id, f"{who}{seed}", "done", "small", row="net", column=f"{who}, set", seed=seed,
               value=value + seed, values={"training loss": -value})
        for who, value in (("ours", 2.0), ("theirs", 1.0))
        for seed in range(2)
    ]  # fmt: skip
    assert [c.text.split(" against ")[0] for c in judge(entry, results).comparisons] == ["net | ours, set 2.5"]


def test_some_that_hold_and_some_that_fail_are_partly():
    mixed = lines([5.0, 5.1], [4.0, 4.1]) + lines([4.0, 4.1], [5.0, 5.1], name="y")
    found = judge(ENTRY, mixed)
    assert found.word == "partly" and "1 of 2 comparisons hold, 1 fail" in found.why and "y, ours" in found.why


def test_a_hundredth_of_the_training_refutes_nothing_and_proves_little():
    small = replace(ENTRY, paper_size={"rows": 1000, "epochs": 100})
    assert judge(small, lines([4.0, 4.1], [5.0, 5.1], rows=100, epochs=10)).label == "cannot tell at this size"
    assert judge(small, lines([5.0, 5.1], [4.0, 4.1], rows=100, epochs=10)).word == "partly"
    assert judge(small, lines([5.0, 5.1], [4.0, 4.1], rows=1000, epochs=10)).word == "reproduces"  # 10 % is enough
    assert "1 % of the paper's training" in judge(small, lines([4.0], [5.0], rows=100, epochs=10)).why


def test_no_difference_fails_a_claim_of_a_large_one():
    """0.05 with a spread of 0.01 excludes a quarter of the printed 8 points, though it is above 0."""
    printed = replace(ENTRY, numbers=(Number("x, ours", "score", 94.0), Number("x, theirs", "score", 86.0)))
    flat = lines([1.05, 2.04, 3.06], [1.0, 2.1, 3.0])
    assert judge(ENTRY, flat).word == "cannot tell" and judge(printed, flat).word == "does not"


def test_findings_are_shown_and_count_for_nothing():
    finding = replace(ENTRY, claims=(*ENTRY.claims, replace(ENTRY.claims[0], higher="{}, theirs | score",
                                                            than=["{0}, ours | score"], finding=True)))  # fmt: skip
    found = judge(finding, lines([5.0, 5.1], [4.0, 4.1]))
    assert found.word == "reproduces" and [c.outcome for c in found.comparisons] == ["holds", "fails"]


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        (Claim("near", near="x, ours | score", to=["x, theirs | score"], within=2.0), "reproduces"),
        (Claim("near", near="x, ours | score", to=["x, theirs | score"], within=0.1), "does not"),
        (Claim("high", value="x, ours | score", above=4.0), "reproduces"),
        (Claim("low", value="x, ours | score", below=4.0), "does not"),
        (Claim("far", higher="x, ours | score", than=["x, theirs | score"], by=3.0), "does not"),
        (Claim("once", value="x, ours | score", above=4.0, exact=True), "reproduces"),
    ],
)
def test_other_kinds_of_claims(claim, word):
    assert judge(replace(ENTRY, claims=(claim,)), lines([5.0, 5.1], [4.0, 4.1])).word == word


def test_checks_are_judged_by_what_passed():
    check = replace(ENTRY, claims=(Claim("a theorem"),))
    held, not_held = (Result("a/b", str(p), "done", "small", row=str(p), passed=p) for p in (True, False))
    assert judge(check, [held]).word == "reproduces"
    assert judge(check, [held, not_held]).word == "partly"
    assert judge(check, [not_held]).word == "does not"
    assert judge(check, []).word == "cannot tell"


def test_every_entry_has_claims_whose_patterns_name_its_own_cells():
    """A pattern that matches nothing would leave its claim out without a word."""
    for entry in catalogue.entries():
        assert entry.claims and any(not claim.finding for claim in entry.claims), entry.id
        for scale in ("small", "paper"):
            rows = {cell.row for cell in entry.load().cells(entry, scale)}
            assert rows
    table = catalogue.entry("chen2022/fig4")
    names = {f"{cell.row} | test accuracy" for cell in table.load().cells(table, "small")}
    for claim in table.claims:
        for pattern in (*claim.than, *claim.to):
            assert pattern.format("usps") in names


def test_a_longer_run_decides_and_one_seed_does_not(monkeypatch):
    entry = replace(ENTRY, paper_size={"rows": 100})

    def decided(*runs):
        stored = [Recorded({}, {}, 1, tuple(lines(ours, theirs, rows=rows))) for rows, ours, theirs in runs]
        monkeypatch.setattr(verdict, "recorded", lambda _: stored)
        return recorded_verdict(entry).word

    short, long, single = (20, [5.0, 5.1, 5.2], [4.0, 4.1, 4.2]), (80, [4.0, 5.1], [4.9, 4.1]), (100, [1.0], [2.0])
    assert [decided(short), decided(long), decided(single)] == ["reproduces", "cannot tell", "cannot tell"]
    assert decided(short, long) == "cannot tell"  # what more rows leave open stays open
    assert decided(single, short) == "reproduces"  # one seed has no error bar
    more_seeds = (20, [4.0, 4.1, 4.2, 4.3], [5.0, 5.1, 5.2, 5.3])
    assert decided(short, more_seeds) == "does not"


def test_recorded_runs_give_the_verdicts_that_are_listed():
    for entry in catalogue.entries():
        found = recorded_verdict(entry)
        assert found.word in VERDICTS and found.why.endswith(".")
        if recorded(entry.id):
            assert numbers_by_seed(recorded(entry.id)[0].results) or entry.kind == "check"
