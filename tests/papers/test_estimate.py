"""Growth: fits that recover what made the costs, bands that own up to misses, runs foretold from the shipped file."""

import itertools
import json
import math

import pytest
from click.testing import CliRunner

from mercer.cli import main
from mercer_papers.bench.cost_methods import METHODS, Method, monomial
from mercer_papers.bench.cost_model import MEASURED, Fit, document, estimate, exponent, fit_terms, measure
from mercer_papers.bench.studies import scaling

NAMES = [method.name for method in METHODS]
SHIPPED = json.loads(MEASURED.read_text())["methods"]


def made_up(work=lambda data: data, **more):
    return Method(
        "made-up",
        "nothing",
        {"n": "rows", "d": "columns"},
        {"n": 10, "d": 10},
        {"n": (10, 100, 1000), "d": (10, 100, 1000)},
        ("n^2", "n d"),
        ("n d",),
        dict,
        work,
        **more,
    )


# --- fits


def test_a_term_is_a_product_of_powers():
    assert monomial("n^2 d", {"n": 10, "d": 3}) == 300
    assert monomial("1", {}) == 1


def test_coefficients_that_made_the_costs_are_found_again():
    method = made_up()
    sizes = method.sizes()
    costs = [0.5 + 3e-6 * s["n"] ** 2 + 2e-5 * s["n"] * s["d"] for s in sizes]
    fit = fit_terms(method, sizes, costs, method.seconds, 1e-9)
    assert fit.terms == pytest.approx({"1": 0.5, "n^2": 3e-6, "n d": 2e-5})
    assert fit.factor == pytest.approx(1.0)


def test_the_band_owns_up_to_a_term_that_is_not_there():
    method = made_up()
    sizes = method.sizes()
    fit = fit_terms(method, sizes, [1e-9 * s["n"] ** 4 * s["d"] for s in sizes], method.seconds, 1e-9)
    assert fit.factor > 50  # without the largest n, its cost is missed by orders of magnitude


def test_no_coefficient_is_below_zero():
    method = made_up()
    sizes = method.sizes()
    fit = fit_terms(method, sizes, [1.0 / s["n"] for s in sizes], method.seconds, 1e-9)
    assert all(a > 0 for a in fit.terms.values())


def test_the_exponent_and_its_constant():
    power, constant = exponent([10, 100, 1000], [2 * x**1.5 for x in (10, 100, 1000)])
    assert power == pytest.approx(1.5) and constant == pytest.approx(2.0)


# --- measuring


def test_a_point_is_measured_once_and_kept(tmp_path):
    calls = []
    method = made_up(lambda data: calls.append(1), share=0.5)
    seen = []
    points = measure([method], path=tmp_path / "growth.jsonl", progress=lambda name, point: seen.append(name))
    assert [(p["n"], p["d"]) for p in points["made-up"]] == [(10, 10), (100, 10), (1000, 10), (10, 100), (10, 1000)]
    assert len(seen) == 5 and all(p["seconds"] >= 0 and p["mib"] >= 0 for p in points["made-up"])
    before = len(calls)
    assert measure([method], path=tmp_path / "growth.jsonl") == points
    assert len(calls) == before


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_axes_span_what_they_can_and_go_through_the_methods_letters(method):
    assert set(method.base) == set(method.axes) == set(method.letters)
    values = method.values(method.base)
    assert all(monomial(term, values) > 0 for term in (*method.seconds, *method.memory))
    assert all(max(axis) / min(axis) >= 60 and len(axis) >= 5 for axis in method.axes.values())


# --- the shipped file


def test_the_shipped_file_says_where_it_was_measured():
    whole = json.loads(MEASURED.read_text())
    assert set(whole["methods"]) == set(NAMES)
    assert whole["machine"]["cpu"] and whole["machine"]["cores"] and whole["versions"]["torch"]
    assert set(whole["machine"]) == {"system", "cpu", "cores", "memory_gib", "gpu"}  # no host name


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_measured_points_are_foretold_within_the_band(method):
    for point in SHIPPED[method.name]["points"]:
        found = estimate(method.name, **{letter: point[letter] for letter in method.base}, ranks=[1])
        assert not found.beyond
        (cost,) = found.costs
        slack = 1 + 1e-9
        for got, measured, least, factor in (
            (cost.seconds, point["seconds"], 1e-4, found.seconds_factor),
            (cost.mib, point["mib"], 8.0, found.mib_factor),
        ):
            off = max(got, least) / max(measured, least)
            assert 1 / factor / slack <= off <= factor * slack


def test_the_fits_of_the_shipped_file_follow_from_its_points():
    """The projection onto a cone of terms is unique, its coefficients are not: two terms may be equal at every point.

    A solver finds the least squared error to eps, and so the fitted values to its root.
    """
    tolerance = 10 * math.sqrt(math.ulp(1.0))
    again = document({name: held["points"] for name, held in SHIPPED.items()}, {})["methods"]
    for method in METHODS:
        held, found = SHIPPED[method.name], again[method.name]
        sizes = [method.values({letter: point[letter] for letter in method.base}) for point in held["points"]]
        for measure_ in ("seconds", "mib"):
            old, new = (Fit(one["fits"][measure_]["terms"], 1.0) for one in (held, found))
            assert [new.at(size) for size in sizes] == pytest.approx([old.at(size) for size in sizes], rel=tolerance)
        for letter, along in held["exponents"]["seconds"].items():
            assert found["exponents"]["seconds"][letter] == pytest.approx(along, rel=tolerance)


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_more_never_costs_less(method):
    for letter in method.base:
        grown = [estimate(method.name, **{**method.base, letter: 10**e}).costs[0] for e in range(2, 10)]
        for less, more in itertools.pairwise(grown):
            assert less.seconds <= more.seconds and less.mib <= more.mib


# --- foretelling


def test_ranks_share_what_grows_with_the_rows_and_nothing_else():
    one, two, many = estimate("nystrom", n=10**7, ranks=[1, 2, 10**6]).costs
    fits = SHIPPED["nystrom"]["fits"]["seconds"]["terms"]
    fixed = sum(a * monomial(term, {"k": 128, "d": 64}) for term, a in fits.items() if "n" not in term)
    assert two.seconds - fixed == pytest.approx((one.seconds - fixed) / 2)
    assert many.seconds == pytest.approx(fixed, rel=0.05)
    one, two = estimate("nngp-ntk", n=1000, ranks=[1, 2]).costs  # its Gram matrices are not dealt over ranks
    assert one.seconds == two.seconds


def test_sizes_beyond_the_measured_ones_are_said():
    found = estimate("nystrom", n=10**9, k=4)
    assert found.beyond == (
        "n = 1,000,000,000 is 1e+04 times the largest measured, 100,000",
        "k = 4 is below the least measured, 16",
    )
    assert math.isfinite(found.costs[0].seconds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic", "n": 1}, "method must be one of 'kernel-matmul', 'nystrom'"),
        ({"method": "nystrom", "n": 1, "c": 3}, r"nystrom has n \(rows\), d \(columns\), k \(landmarks\); got c = 3"),
        ({"method": "nystrom", "n": 0}, "n must be a whole number of at least 1; got 0"),
        ({"method": "nystrom", "n": 1, "ranks": [0]}, "ranks must be a whole number of at least 1; got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"estimate: {message}"):
        estimate(**arguments)


# --- the commands


def cli(*args):
    return CliRunner().invoke(main, [*args])


def test_estimate_prints_costs_by_ranks_with_band_and_warning():
    done = cli("estimate", "nystrom", "--n", "1000000", "--d", "64", "--ranks", "1", "--ranks", "4")
    assert done.exit_code == 0
    assert "nystrom: n = 1,000,000, d = 64, k = 128" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[3:5]] == ["1", "4"]
    assert "time within" in done.stdout and "measured with one thread of" in done.stdout
    assert "warning: n = 1,000,000 is 10 times the largest measured" in done.stdout


def test_estimate_as_json_holds_what_the_call_gives():
    document_ = json.loads(cli("estimate", "nngp-ntk", "--n", "500", "--json").stdout)
    found = estimate("nngp-ntk", n=500)
    assert document_["costs"][0]["seconds"] == found.costs[0].seconds and document_["beyond"] == []


def test_estimate_reads_growth_measured_elsewhere(tmp_path):
    whole = json.loads(MEASURED.read_text())
    whole["methods"]["nystrom"]["fits"]["seconds"]["terms"] = {"n": 1.0}
    (tmp_path / "growth.json").write_text(json.dumps(whole))
    done = cli("estimate", "nystrom", "--n", "7200", "--measured", str(tmp_path / "growth.json"))
    assert "2 h" in done.stdout
    command = ["estimate", "nystrom", "--n", "7200", "--measured", "-"]
    assert CliRunner().invoke(main, command, input=json.dumps(whole)).stdout == done.stdout


def test_estimate_without_a_method_lists_them():
    done = cli("estimate")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in NAMES)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["magic", "--n", "5"], "METHOD must be one of kernel-matmul, nystrom"),
        (["nystrom"], "--n is needed, rows"),
        (["nystrom", "--n", "5", "--c", "2"], "nystrom has n (rows)"),
        (["nystrom", "--n", "0"], "0 is not in the range x>=1"),
    ],
)
def test_bad_usage_is_exit_2(args, sentence):
    done = cli("estimate", *args)
    assert done.exit_code == 2 and sentence in done.stderr and done.stdout == ""


def test_bench_growth_writes_the_file_and_prints_the_exponents(tmp_path, monkeypatch):
    points = {name: held["points"] for name, held in SHIPPED.items()}
    monkeypatch.setattr("mercer_papers.bench.cost_model.measure", lambda **_: points)
    done = cli("bench", "growth", "-o", str(tmp_path / "run"))
    assert done.exit_code == 0
    assert set(json.loads((tmp_path / "run" / "growth.json").read_text())["methods"]) == set(NAMES)
    row = next(line for line in done.stdout.splitlines() if line.startswith("kernel-matmul"))
    assert f"{SHIPPED['kernel-matmul']['exponents']['seconds']['n']['exponent']:.2f}" in row
    assert max(map(len, done.stdout.splitlines())) <= 110
    dashed = cli("bench", "growth", "-o", "-")
    assert set(json.loads(dashed.stdout)["methods"]) == set(NAMES) and row in dashed.stderr


def test_the_page_on_scaling_shows_the_shipped_figures():
    assert scaling.tables() in scaling.PAGE.read_text(), "run python -m mercer_papers.bench.studies.scaling --write"
