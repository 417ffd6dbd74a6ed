"""Targets with a long tail: the machine of the logarithm beside that of the target."""

import numpy as np
import pandas as pd
import pytest
import torch

import mercer
from mercer.machines import StackedRidge
from mercer.tabular import TabularModel
from mercer.tabular.effects import reasons
from mercer.tabular.two_scales import TwoScales, find_shift


def towns(n, seed=0):
    """Populations over five powers of ten, a product of what the columns hold."""
    rng = np.random.default_rng(seed)
    area, density, coast = rng.lognormal(3, 1, n), rng.lognormal(4, 1.2, n), rng.choice(["yes", "no"], n)
    people = area * density * np.where(coast == "yes", 2.0, 1.0) * rng.lognormal(0, 0.1, n)
    frame = pd.DataFrame({"log_area": np.log(area), "log_density": np.log(density), "coast": coast})
    return frame.assign(people=people)


@pytest.fixture(scope="module")
def model():
    return TabularModel().fit(towns(300), "people")


def test_a_long_tail_is_learned_by_its_logarithm_too(model):
    machine, rows = model.learner.machine, towns(1000, seed=1)
    assert isinstance(machine, TwoScales) and machine.share > 0.5, "a product is a sum of logarithms"
    truth = torch.tensor(rows["people"].tolist(), dtype=torch.float64)
    errors = [((m.predict(model.encode(rows))[:, 0] - truth).abs() / truth).median() for m in (machine, machine.plain)]
    assert errors[0] < 0.8 * errors[1], "typical towns"
    parts = model.learner.parts()
    assert sum(part["share"] for part in parts) == pytest.approx(1.0)
    assert "Of the target's logarithm." in parts[0]["what"]


def test_its_intervals_hold_on_new_rows(model):
    rows = towns(4000, seed=2)
    answers = model.predict(rows)
    assert (answers["low"] >= 0).all()
    assert 0.85 <= rows["people"].between(answers["low"], answers["high"]).mean() <= 0.95


def test_it_is_saved_and_explained(model, tmp_path):
    rows = towns(20, seed=3)
    mercer.save(model, tmp_path / "towns.mercer")
    loaded = mercer.load(tmp_path / "towns.mercer")
    pd.testing.assert_frame_equal(loaded.predict(rows), model.predict(rows))
    for reason in reasons(model, rows.iloc[:3]):
        assert reason.average + sum(reason.parts.values()) == pytest.approx(reason.value)


def test_a_row_left_out_is_predicted_as_if_it_had_not_been_there():
    torch.manual_seed(0)
    x = torch.randn(60, 2, dtype=torch.float64)
    y = (2 * x[:, 0] + 0.1 * torch.randn(60, dtype=torch.float64)).exp()
    learn = lambda targets: StackedRidge(random_state=0).fit(x, targets)  # noqa: E731
    blend = TwoScales.of(learn(y[:, None]), learn, y)
    assert isinstance(blend, TwoScales)
    alone = blend.without(torch.arange(60))(x)
    # shares of the machines come from other rows in one and from all rows in the other
    torch.testing.assert_close(alone, blend.loo_, rtol=0.1, atol=0.1 * float(y.std()))


@pytest.mark.parametrize(
    ("y", "shift"),
    [
        ([1.0, 2, 3, 4, 5, 6, 7, 8, 9], None),  # no tail
        ([-1.0, 1, 1, 1, 1, 1, 1, 1, 99], None),  # below 0
        ([1.0, 1, 1, 1, 1, 1, 1, 1, 1], None),  # one value
        ([1.0, 1, 1, 1, 1, 1, 1, 1, 99], 0.0),
        ([1e139, 1e138, 1e138, 1e138, 1e138, 1e138, 1e138, 1e138, 1e138], 0.0),
        ([1e-200, 1e-201, 1e-201, 1e-201, 1e-201, 1e-201, 1e-201, 1e-201], 0.0),
        ([0.0, 1, 1, 1, 1, 1, 1, 1, 99], 1.0),  # a count
        ([0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 99], 0.25),
    ],
)
def test_the_shift_of_the_logarithm(y, shift):
    assert find_shift(torch.tensor(y, dtype=torch.float64)) == shift


def test_a_target_without_a_tail_keeps_one_machine():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=120)})
    model = TabularModel().fit(frame.assign(y=5 + frame["x"] + 0.1 * rng.normal(size=120)), "y")
    assert isinstance(model.learner.machine, StackedRidge)
