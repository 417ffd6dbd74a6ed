"""The rule for verdicts: seeds, sizes and standard errors, never a hand."""

import re
from dataclasses import replace

import pytest

from mercer_papers import catalogue, verdict
from mercer_papers.catalogue import Entry, Number
from mercer_papers.claims import FAILS, HOLDS, OPEN, Claim, Comparison, decide, numbers_by_seed
from mercer_papers.recorded_runs import Recorded, find_recorded
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
        ([4.0, 5.1, 4.2], [4.1, 4.9, 4.3], "not tested"),  # within the spread
        ([9.0], [1.0], "not tested"),  # one seed has no error bar
        ([5.0, 6.0], [4.0, 4.9], "reproduces"),  # two seeds, paired differences of 1.0 and 1.1
        ([5.0, 9.0], [4.9, 4.0], "not tested"),  # two seeds ask for t = 6.31
    ],
)
def test_seeds_and_their_spread_decide(ours, theirs, word):
    assert judge(ENTRY, [lines(ours, theirs)]).word == word


def test_an_entry_whose_headline_was_not_run_says_so_of_its_setting():
    assert judge(ENTRY, [lines([5.0, 5.1], [4.0, 4.1])]).setting.text == "the paper's own setting"
    assert judge(ENTRY, []).setting.text == "not run"


def test_counts_that_double_are_compared_by_their_logarithms():
    """128, 1024 and 512 are all far above 10; their plain mean has a standard error as large as half of it."""
    counts = [
        Result("a/b", str(seed), "done", "small", row="x", column="passes", seed=seed, value=value)
        for seed, value in enumerate((128.0, 1024.0, 512.0))
    ]
    for logarithms, word in ((False, "not tested"), (True, "reproduces")):
        claim = Claim("more than 10", value="x | passes", above=10, logarithms=logarithms)
        assert judge(replace(ENTRY, claims=(claim,)), [counts]).word == word
    below = Claim("fewer than 10", value="x | passes", below=10, logarithms=True)
    assert judge(replace(ENTRY, claims=(below,)), [counts]).word == "does not"


def test_the_printed_difference_counts_for_a_row_that_has_another_name_here():
    """A tenth more than the rival's is not refuted by itself; beside a printed difference of 8 it is."""
    numbers = (Number("printed", "score", 9.0), Number("rival", "score", 1.0))
    rows = lines([5.1, 5.0, 5.4], [5.0, 5.1, 5.1])
    claim = Claim("ours is higher", higher="x, ours | score", than=["x, theirs | score"])
    named = replace(claim, printed=("printed | score", "rival | score"))
    assert judge(replace(ENTRY, claims=(claim,), numbers=numbers), [rows]).word == "not tested"
    assert judge(replace(ENTRY, claims=(named,), numbers=numbers), [rows]).word == "does not"


def test_a_pattern_does_not_reach_into_the_further_numbers_of_a_cell():
    """``{} | ours, {}`` once compared the training losses of table 3 as accuracies."""
    entry = replace(ENTRY, claims=(Claim("ours is higher", higher="{} | ours, {}", than=["{0} | theirs, {1}"]),))
    results = [
        Result(ENTRY.id, f"{who}{seed}", "done", "small", row="net", column=f"{who}, set", seed=seed,
               value=value + seed, values={"training loss": -value})
        for who, value in (("ours", 2.0), ("theirs", 1.0))
        for seed in range(2)
    ]  # fmt: skip
    assert [c.text.split(" against ")[0] for c in judge(entry, [results]).comparisons] == ["net | ours, set 2.5"]


def test_a_claim_about_all_fails_where_one_fails_and_the_entry_is_mixed_where_others_hold():
    both = lines([5.0, 5.1], [4.0, 4.1]) + lines([4.0, 4.1], [5.0, 5.1], name="y")
    found = judge(ENTRY, [both])
    assert found.word == "mixed" and found.claims[0].word == FAILS
    assert "1 of 2 comparisons hold, 1 fails" in found.why and "y, ours" in found.why


def made_up(p_holds, p_fails=1.0):
    return Comparison(Claim("c"), ("a", "b"), p_holds, p_fails, "")


def test_many_comparisons_ask_for_more_than_one_at_five_percent():
    every, most = Claim("all"), Claim("most", most=True)
    assert decide(every, [made_up(0.04)] * 8) == HOLDS  # each must hold, each at 5 %
    assert decide(every, [made_up(0.04)] * 7 + [made_up(0.2)]) == OPEN
    assert decide(every, [made_up(0.01)] * 7 + [made_up(0.9, 0.04)]) == OPEN  # one of eight at 4 % is chance
    assert decide(every, [made_up(0.01)] * 7 + [made_up(0.9, 0.004)]) == FAILS
    assert decide(most, [made_up(0.01)] * 5 + [made_up(0.9, 0.004)] * 3) == HOLDS  # 5 of 8, at 5 % / 4
    assert decide(most, [made_up(0.04)] * 5 + [made_up(0.9)] * 3) == OPEN
    assert decide(most, [made_up(0.9, 0.004)] * 5 + [made_up(0.01)] * 3) == FAILS
    assert decide(every, []) == OPEN
    # one of eight that holds at 4 % makes nothing mixed: the best of eight does so in 28 % of all cases by chance
    one = lines([5.0, 5.1, 5.6], [4.9, 4.9, 5.3], name="x0")
    rest = [line for i in range(1, 8) for line in lines([4.0, 5.1, 4.2], [4.1, 4.9, 4.3], name=f"x{i}")]
    assert judge(ENTRY, [one]).word == "reproduces" and judge(ENTRY, [one + rest]).word == "not tested"


def test_a_hundredth_of_the_training_refutes_nothing_and_is_a_smaller_setting():
    small = replace(ENTRY, paper_size={"rows": 1000, "epochs": 100})
    good, bad = ([5.0, 5.1], [4.0, 4.1]), ([4.0, 4.1], [5.0, 5.1])
    assert judge(small, [lines(*bad, rows=100, epochs=10)]).word == "not tested"
    assert judge(small, [lines(*bad, rows=1000, epochs=10)]).word == "does not"  # 10 % can refute
    assert judge(small, [lines(*good, rows=100, epochs=10)]).word == "reproduces in a smaller setting"
    assert judge(small, [lines(*good, rows=1000, epochs=50)]).word == "reproduces"
    assert "1 % of the paper's training" in judge(small, [lines(*bad, rows=100, epochs=10)]).why


def test_another_network_is_not_the_papers_setting():
    entry = replace(ENTRY, not_the_papers=({"says": "a small net for a large one", "where": {"network": "small"}},))
    good, bad = ([5.0, 5.1], [4.0, 4.1]), ([4.0, 4.1], [5.0, 5.1])
    assert judge(entry, [lines(*good, network="small")]).word == "reproduces in a smaller setting"
    assert judge(entry, [lines(*good, network="large")]).word == "reproduces"
    assert judge(entry, [lines(*bad, network="small")]).word == "not tested"  # another network refutes nothing
    assert "a small net for a large one" in judge(entry, [lines(*good, network="small")]).why
    beside = lines(*good, network="large") + lines(*bad, name="y", network="small")
    assert judge(entry, [beside]).word == "reproduces"  # what stands beside the paper's own setting does not count
    whole = [replace(line, scale="paper") for line in lines(*good, network="small")]
    assert judge(entry, [whole]).word == "reproduces"
    ours = replace(entry, not_the_papers=({"says": "our generator", "where": {"network": "small"}, "always": True},))
    assert judge(ours, [whole]).word == "reproduces in a smaller setting"


def test_one_cell_of_a_table_of_four_is_a_smaller_setting():
    printed = {"ours": 5.0, "theirs": 4.0}
    numbers = tuple(Number(f"{name}, {who}", "score", printed[who]) for name in "xy" for who in printed)
    entry = replace(ENTRY, numbers=(*numbers, Number("z, ours", "score", 1.0)))
    found = judge(entry, [lines([5.0, 5.1], [4.0, 4.1])])
    assert found.word == "reproduces in a smaller setting" and "2 of 5 cells" in found.why
    both = lines([5.0, 5.1], [4.0, 4.1]) + lines([5.0, 5.1], [4.0, 4.1], name="y")
    assert judge(entry, [both]).word == "reproduces"


def test_no_difference_fails_a_claim_of_a_large_one_but_not_after_a_hundredth_of_the_training():
    """0.05 with a spread of 0.01 excludes a quarter of the printed 8 points, though it is above 0."""
    printed = replace(ENTRY, numbers=(Number("x, ours", "score", 94.0), Number("x, theirs", "score", 86.0)))
    flat = lines([1.05, 2.04, 3.06], [1.0, 2.1, 3.0], rows=1)
    assert judge(ENTRY, [flat]).word == "not tested" and judge(printed, [flat]).word == "does not"
    assert judge(replace(printed, paper_size={"rows": 100}), [flat]).word == "not tested"


def test_what_the_papers_own_numbers_contradict_is_not_its_claim():
    printed = replace(ENTRY, numbers=(Number("x, ours", "score", 80.0), Number("x, theirs", "score", 86.0)))
    assert judge(printed, [lines([5.0, 5.1], [4.0, 4.1])]).comparisons == ()


def test_findings_count_for_nothing_unless_they_veto():
    fair = Claim("against a fair rival", higher="{}, ours | score", than=["{0}, fair | score"], finding=True)
    rows = lines([5.0, 5.1], [4.0, 4.1])
    level = [replace(line, key=f"fair{line.seed}", row="x, fair") for line in lines([4.9, 5.3], [])]
    ahead = [replace(line, values={"score": line.values["score"] + 2}) for line in level]
    entry = replace(ENTRY, claims=(*ENTRY.claims, fair))
    assert judge(entry, [rows + ahead]).word == "reproduces"
    strict = replace(ENTRY, claims=(*ENTRY.claims, replace(fair, vetoes="ours is higher")))
    alone = judge(strict, [rows])
    assert alone.claims[0].word == OPEN and "nothing is stored (against a fair rival)" in alone.claims[0].why
    assert judge(strict, [rows + level]).claims[0].word == OPEN
    lost = judge(strict, [rows + ahead])
    assert lost.claims[0].word == FAILS and "Against a fair rival it fails" in lost.claims[0].why


def test_details_do_not_decide_and_claims_that_say_the_same_are_one():
    wrong = Claim("a detail", higher="{}, theirs | score", than=["{0}, ours | score"], detail=True)
    assert judge(replace(ENTRY, claims=(*ENTRY.claims, wrong)), [lines([5.0, 5.1], [4.0, 4.1])]).word == "reproduces"
    again = replace(ENTRY.claims[0], higher="y, ours | score", than=["y, theirs | score"])
    twice = replace(ENTRY, claims=(*ENTRY.claims, again))
    found = judge(twice, [lines([5.0, 5.1], [4.0, 4.1]) + lines([5.0, 5.1], [4.0, 4.1], name="y")])
    assert len(found.claims) == 1 and len(found.comparisons) == 2


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
    assert judge(replace(ENTRY, claims=(claim,)), [lines([5.0, 5.1], [4.0, 4.1])]).word == word


def test_a_printed_number_is_matched_by_draws_and_not_by_one():
    entry = replace(ENTRY, claims=(Claim("as printed", matches=0.1),), numbers=(Number("x, ours", "score", 5.0),))
    assert judge(entry, [lines([5.0, 5.1], [4.0, 4.1])]).word == "reproduces"
    assert judge(entry, [lines([5.0], [4.0])]).word == "not tested"
    assert judge(entry, [lines([9.0, 9.1], [4.0, 4.1])]).word == "does not"


def test_checks_are_judged_by_what_passed():
    check = replace(ENTRY, claims=(Claim("a theorem"),))
    held, not_held = (Result("a/b", str(p), "done", "small", row=str(p), passed=p) for p in (True, False))
    assert judge(check, [[held]]).word == "reproduces"
    assert judge(check, [[held, not_held]]).word == "mixed"
    assert judge(check, [[not_held]]).word == "does not"
    assert judge(check, []).word == "not tested"


OURS = (
    "Mercer",
    "distilled",
    "prototypes",
    "FunctionSpaceSGD",
    "rotated",
    "own last-layer",
    "steeper",
    "leave-one-out",
)


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.id)
def test_a_headline_is_of_the_papers_own_method_or_says_that_it_was_not_run(entry):
    """Ours are findings, or details that say so; a headline without a run has no word but open."""
    for claim in entry.claims:
        if not (claim.finding or claim.detail):
            about = f"{claim.higher} {claim.lower} {claim.near} {claim.value} {claim.rows}"
            assert not any(name in about for name in OURS), claim.says
    for judged in verdict.recorded_verdict(entry).claims:
        if not judged.comparisons:
            assert judged.word == "open" and judged.why == "No run of it is stored."


# Entries whose headline claims rest on no stand-in and on no shortened training, and why that may be said.
OWN_SETTING = {
    "chen2022/table2": "counts of the sets",
    "chen2022/fig1": "usps, three hidden layers, two weights at random; which two is not printed",
    "chen2022/thm3.1": "a theorem",
    "chen2022/prop3.2": "a proposition",
    "deng2022/classic": "kernels, rows, networks and steps of the authors' scripts",
    "deng2022/thm1": "a theorem",
    "jayasumana2021/table1": "the sphere of Appendix B; epochs and start are not printed",
    "jayasumana2021/fig1": "the same",
    "jayasumana2021/sec5.2": "counts of operations",
    "jayasumana2021/thmE.1": "a theorem",
    "masoomi2020/exp1": "the authors' walk of bandwidths; the sets' generators are not printed",
    "masoomi2020/exp2": "both solvers, layer by layer",
    "masoomi2020/exp4": "the sets whose files are the authors'; the others are stand-ins and count for no word",
    "masoomi2020/thm1": "a theorem",
    "masoomi2020/thm2": "a theorem",
    "masoomi2020/cor2": "corollaries",
    "masoomi2020/claims4-5": "claims about gradients",
    "masoomi2020/claim6": "an identity",
    "spectral2019/table1": "a formula on all rows of the two classes",
}


def test_only_these_entries_rest_on_the_papers_own_setting():
    """Every other entry names its stand-in, its share of the training, or that it was not run."""
    settings = {entry.id: verdict.recorded_verdict(entry).setting for entry in catalogue.entries()}
    assert {name for name, s in settings.items() if s.was_run and not s.stand_ins and s.size == 1} == set(OWN_SETTING)
    assert all(s.text.strip() for s in settings.values())
    assert {name for name, s in settings.items() if not s.was_run} == {"deng2022/fig6"}


def test_every_claim_names_cells_of_its_entry():
    """A pattern that matches nothing would leave its claim open for ever, without a word."""
    for entry in catalogue.entries():
        assert any(not (claim.finding or claim.detail) for claim in entry.claims), entry.id
        says = {claim.says for claim in entry.claims}
        assert {claim.vetoes for claim in entry.claims} <= {*says, ""}, entry.id
        places = {
            place
            for scale in ("small", "paper")
            for cell in entry.load().cells(entry, scale)
            for place in (cell.row, f"{cell.row} | {cell.column}")
        }
        for claim in entry.claims:
            pattern = claim.higher or claim.lower or claim.near or claim.value or claim.rows
            if not pattern:
                continue
            row = re.escape(pattern.split(" | ")[0]).replace(r"\{\}", r"(?:(?! \| ).)+")
            named = [place for place in places if re.fullmatch(row, place.split(" | ")[0])]
            assert named, f"{entry.id}: {pattern}"


def test_a_claim_of_so_many_times_asks_for_the_ratio_and_not_for_any_difference():
    """Up to 30 times faster was judged as any faster."""
    faster = Claim("10 times faster", lower="x, ours | score", than=["x, theirs | score"], times=10)
    entry = replace(ENTRY, claims=(faster,))
    assert judge(entry, [lines([1.0, 1.1], [15.0, 16.0])]).word == "reproduces"
    assert judge(entry, [lines([1.0, 1.1], [2.0, 2.2])]).word == "does not"
    assert judge(entry, [lines([1.0, 3.0], [9.0, 33.0])]).word == "not tested"
    printed = replace(entry, numbers=(Number("x, ours", "score", 1.0), Number("x, theirs", "score", 100.0)))
    assert judge(printed, [lines([1.0, 1.1], [5.0, 5.6])]).word == "not tested"  # between 100^(1/4) and 10 times
    higher = replace(faster, lower="", higher="x, theirs | score", than=["x, ours | score"])
    assert judge(replace(ENTRY, claims=(higher,)), [lines([1.0, 1.1], [15.0, 16.0])]).word == "reproduces"


def test_a_claim_may_be_about_some_of_the_checks():
    claims = (Claim("its own", rows="{}, own"), Claim("another", rows="{}, other", detail=True))
    done = [Result("a/b", row, "done", "small", row=row, passed=row.endswith("own")) for row in ("x, own", "x, other")]
    found = judge(replace(ENTRY, claims=claims), [done])
    assert found.word == "reproduces" and [claim.word for claim in found.claims] == [HOLDS, FAILS]


def test_for_each_comparison_the_longest_run_counts_and_one_seed_does_not(monkeypatch):
    entry = replace(ENTRY, paper_size={"rows": 100})

    def decided(*runs):
        stored = [
            Recorded({}, {}, 1, tuple(lines(ours, theirs, name=name, rows=rows))) for name, rows, ours, theirs in runs
        ]
        monkeypatch.setattr(verdict, "find_recorded", lambda _: stored)
        return recorded_verdict(entry).word

    short, long = ("x", 60, [5.0, 5.1, 5.2], [4.0, 4.1, 4.2]), ("x", 80, [4.0, 5.1], [4.9, 4.1])
    single = ("x", 100, [1.0], [2.0])
    assert [decided(short), decided(long), decided(single)] == ["reproduces", "not tested", "not tested"]
    assert decided(short, long) == "not tested"  # what more rows leave open stays open
    assert decided(single, short) == "reproduces"  # one seed has no error bar
    more_seeds = ("x", 60, [4.0, 4.1, 4.2, 4.3], [5.0, 5.1, 5.2, 5.3])
    assert decided(short, more_seeds) == "does not"
    other_rows = ("y", 60, [4.0, 4.1, 4.2], [5.0, 5.1, 5.2])
    assert decided(short, other_rows) == "mixed"  # runs with other rows are pooled


def test_stored_runs_settle_what_they_are_listed_for():
    words = {entry.id: recorded_verdict(entry) for entry in catalogue.entries()}
    for name, found in words.items():
        assert found.word in VERDICTS and found.why.endswith("."), name
        stored = [run.results for run in find_recorded(name)]
        if found.word != "not tested":
            assert any(numbers_by_seed(run) or any(r.passed is not None for r in run) for run in stored), name
        if found.word.startswith("reproduces"):
            assert all(claim.word == HOLDS for claim in found.claims if claim.headline), name
    filled, cells = (sum(getattr(found.setting, part) for found in words.values()) for part in ("filled", "cells"))
    assert 285 <= filled <= cells
