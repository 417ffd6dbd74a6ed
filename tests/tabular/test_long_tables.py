"""Tables too long for one Gram matrix: local machines and trees, weighed and scored on rows left out."""

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import mercer
from mercer.cli import main
from mercer.kernels import Laplacian
from mercer.machines.calibration import Calibration
from mercer.machines.local import Local, LocalMachine, LocalStack, weigh
from mercer.machines.views import View
from mercer.tabular import TabularModel
from mercer.tabular.training import Sizes, draw_evenly, order_by_content

LONG = Sizes(exact=200, leaf=150, left_out=200)


def table(n, seed=0, classes=False):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.uniform(-1, 1, (n, 4)), columns=list("abcd"))
    score = np.sin(5 * frame["a"]) * frame["b"] + (frame["c"] > 0.2) + 0.2 * rng.normal(size=n)
    frame["y"] = np.where(score > 0.5, "yes", "no") if classes else score
    return frame


@pytest.mark.parametrize("classes", [False, True])
def test_scores_grow_with_the_rows_and_are_those_of_new_rows(classes):
    new, found = table(2000, seed=1, classes=classes), []
    for n in (400, 2400):
        model = TabularModel().fit(table(n, classes=classes), "y", sizes=LONG)
        answer = model.predict(new)
        if classes:
            p = answer["p_yes"].where(new["y"] == "yes", answer["p_no"])
            found.append((np.log(p).mean(), -model.scores["log_loss"]))
        else:
            error = ((answer["prediction"] - new["y"]) ** 2).mean()
            found.append((1 - error / new["y"].var(), model.scores["r2"]))
            assert 0.85 < ((answer["low"] <= new["y"]) & (new["y"] <= answer["high"])).mean() < 0.95
    (short, _), (long, score) = found
    assert long > short + 0.02
    assert abs(long - score) < 0.06
    assert isinstance(model.learner.machine, LocalStack) and model.scores["rows"] in (199, 200, 201)
    assert 2 <= len(model.learner.parts()) <= 6  # light members go
    assert sum(p["share"] for p in model.learner.parts()) == pytest.approx(1)


def test_a_long_table_is_saved_and_explained_without_trees_too(tmp_path):
    frame = table(600)
    model = TabularModel(trees=False).fit(frame, "y", sizes=LONG)
    assert all(isinstance(member, LocalMachine) for member in model.learner.machine.members)
    mercer.save(model, tmp_path / "model")
    again = mercer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict(frame), model.predict(frame), check_exact=True)
    assert again.trees is False and set(model.explain().index) == set("abcd")


def test_rows_left_out_are_learned_from_once_they_have_weighed():
    """Of a table that is not very long; their predictions stay those of members that had not seen them."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(900, 3, generator=g, dtype=torch.float64)
    y = (9 * x[:, :1]).sin() + 0.3 * torch.randn(900, 1, generator=g, dtype=torch.float64)
    left_out = torch.arange(0, 900, 6)
    stack = LocalStack.fit(x, y, left_out=left_out, leaf=200)
    machines = [member for member in stack.members if isinstance(member, LocalMachine)]
    assert machines and all(sum(map(len, machine.anchors)) == 900 for machine in machines)
    blind = LocalStack.fit(torch.cat((x, x)), torch.cat((y, y + 5)), left_out=left_out[:60], leaf=200)
    assert all(sum(map(len, m.anchors)) < 1800 for m in blind.members if isinstance(m, LocalMachine))
    before = float((stack.held_out_ - y[left_out]).square().mean())
    assert float((stack.predict(x[left_out]) - y[left_out]).square().mean()) < before


def test_a_leaf_is_the_machine_of_its_own_rows():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(300, 3, generator=g, dtype=torch.float64)
    y = (4 * x[:, :1]).sin()
    machine = Local(rows=100, seed=0).solve(View.of(x), Laplacian(0.5), x, y)
    leaf = machine.cut(x)
    assert len(leaf.unique()) == len(machine.kernels) >= 2
    for number, kernel in enumerate(machine.kernels):
        rows = leaf == number
        z, weights = machine.anchors[number].double(), machine.weights[number].double()
        assert len(z) == int(rows.sum())
        expected = y[rows].mean() + kernel(View.of(x)(x[rows]), z) @ weights
        torch.testing.assert_close(machine.predict(x[rows]), expected, rtol=0, atol=1e-4)
        # what is left over at a row is the ridge times its weight
        near = (View.of(x)(x[rows])[:, None] - z).abs().sum(2).argmin(1)
        torch.testing.assert_close(y[rows] - expected, machine.penalties[number] * weights[near], rtol=0, atol=1e-4)


def test_a_leaf_of_many_rows_learns_from_some_of_them():
    x = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    machine = Local(rows=50).solve(View.of(x), Laplacian(0.5), x, torch.zeros(1000, 1, dtype=torch.float64))
    assert max(map(len, machine.anchors)) <= 2 * 50


def test_the_order_of_the_rows_does_not_matter():
    frame = table(260, classes=True)
    frame["word"] = np.random.default_rng(5).choice(["u", "v"], 260)
    shuffled = frame.sample(frac=1, random_state=3)
    for sizes in (None, LONG):
        one, other = (TabularModel().fit(rows, "y", sizes=sizes) for rows in (frame, shuffled))
        pd.testing.assert_frame_equal(one.predict(frame), other.predict(frame), check_exact=True)
        assert one.scores == other.scores
    order = order_by_content(frame)
    np.testing.assert_array_equal(order_by_content(frame.assign(z=[[1]] * 260)).shape, order.shape)


def test_rare_classes_are_left_out_in_proportion():
    y = torch.tensor([0] * 950 + [1] * 50)
    drawn = draw_evenly(y, 2, 100, torch.Generator().manual_seed(0))
    assert torch.bincount(y[drawn]).tolist() == [95, 5]
    assert len(draw_evenly(y.double(), 0, 500, torch.Generator().manual_seed(0))) == 200  # a fifth at most


def test_targets_that_nothing_predicts_score_as_chance():
    frame = table(900)
    frame["y"] = np.random.default_rng(9).permutation(frame["y"])
    assert TabularModel().fit(frame, "y", sizes=LONG).scores["r2"] < 0.03


def test_fit_without_trees_from_the_command_line(tmp_path):
    table(60).to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", str(tmp_path / "t.csv"), "--target", "y", "-o", str(tmp_path / "model"), "--no-trees"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert mercer.load(tmp_path / "model").trees is False


def test_members_of_classes_are_weighed_by_log_loss():
    """One in fifty is positive: squares hardly tell 0.05 from 0.4 there, the log loss does."""
    g = torch.Generator().manual_seed(0)
    p = torch.where(torch.rand(20000, 1, generator=g) < 0.05, 0.3, 0.005).double()
    y = (torch.rand(20000, 1, generator=g) < p).double()
    noise = torch.rand(20000, 1, generator=g).double()
    blunt = (p + 0.06 * noise).clamp(0, 1)  # harms the many rows of low probability
    by_log_loss, loss = weigh([p, blunt], y, None, classes=True)
    by_squares, _ = weigh([p, blunt], y, None, classes=False)
    assert by_log_loss[0] > 0.85 and by_log_loss[0] >= by_squares[0] - 0.02
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    assert loss == pytest.approx(float(expected), abs=2e-3)
    assert weigh([p], y, None, classes=True)[0].tolist() == [1.0]


def test_a_signal_along_one_direction_of_the_columns_is_found_in_a_long_table():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 6, generator=g, dtype=torch.float64)
    y = (2 * x @ torch.ones(6, 1, dtype=torch.float64) / 6**0.5).sin()
    stack = LocalStack.fit(x[:4000], y[:4000], left_out=torch.arange(0, 4000, 4), leaf=1000)
    assert any(member.view.weight.ndim == 2 for member in stack.members if isinstance(member, LocalMachine))
    error = (stack.predict(x[4000:]) - y[4000:]).square().mean() / y.var()
    assert error < 0.2


def test_rare_classes_keep_small_probabilities_after_calibration():
    g = torch.Generator().manual_seed(0)
    p = torch.where(torch.rand(4000, 1, generator=g) < 0.5, 0.002, 0.2).double()
    p = torch.cat((1 - p, p), 1)
    labels = (torch.rand(4000, generator=g) < p[:, 1]).long()
    near = Calibration.of(p, labels, shares=True, near=True)(p)[:, 1]
    assert near.min() < 0.008
    plain = Calibration.of(p, labels, shares=True)(p)
    picked = torch.arange(4000), labels
    both = torch.stack((1 - near, near), 1)
    assert both[picked].log().mean() >= plain[picked].log().mean() - 1e-3
