"""Boosted trees as arrays, and their share beside kernel machines."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import mercer
from mercer.machines import StackedRidge
from mercer.machines.trees import Boosting, Trees, are_classes, shrunk_share


def steps(n=400, d=4, seed=0):
    """Numbers that jump at thresholds of two columns: what trees learn and smooth kernels do not."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=g, dtype=torch.float64)
    y = ((8 * x[:, 0]).floor() % 2) * 2 + ((5 * x[:, 1]).floor() % 2)
    return x, (y + 0.1 * torch.randn(n, generator=g, dtype=torch.float64))[:, None]


@pytest.mark.parametrize("leaves", [2, 15, 31])
@pytest.mark.parametrize("outputs", ["numbers", "two", "three"])
def test_trees_equal_scikit_learn_also_where_cells_are_blank(outputs, leaves):
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(300, 5)), rng.normal(size=(200, 5))
    x[:, 4] = x[:, 4] > 0
    for rows in (x, new):
        rows[rng.random(rows.shape) < 0.1] = np.nan
    new[:100] = x[:100]  # rows that lie on thresholds
    score = np.nan_to_num(x[:, 0]) * np.nan_to_num(x[:, 1]) + np.nan_to_num(x[:, 2])
    if outputs == "numbers":
        model = HistGradientBoostingRegressor(max_iter=20, max_leaf_nodes=leaves).fit(x, score)
        expected = model.predict(new)[:, None]
    else:
        edges = [0.0] if outputs == "two" else [-0.5, 0.5]
        model = HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=leaves).fit(x, np.digitize(score, edges))
        expected = model.predict_proba(new)[:, 1:] if outputs == "two" else model.predict_proba(new)
    found = Trees.of_boosting(model)(torch.from_numpy(new))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_a_class_that_the_rows_did_not_have_gets_probability_0():
    x, y = steps(60)
    labels = torch.nn.functional.one_hot((y[:, 0] > 1).long() * 2, 3).double()  # never the class 1
    found = Boosting.grow(x, labels, rounds=5).predict(x)
    assert found.shape == (60, 3) and bool((found[:, 1] == 0).all())
    torch.testing.assert_close(found.sum(1), torch.ones(60, dtype=torch.float64))
    one = torch.nn.functional.one_hot(torch.full((60,), 2), 3).double()
    torch.testing.assert_close(Boosting.grow(x, one, rounds=5).predict(x), one)


def test_columns_of_0_and_1_are_classes_where_just_one_is_1():
    eye = torch.eye(3, dtype=torch.float64)
    assert are_classes(eye) and are_classes(eye[:, :1])
    assert not are_classes(eye[:, :2]) and not are_classes(2 * eye)


def test_the_share_is_that_of_least_squares_less_its_error_and_0_for_noise():
    g = torch.Generator().manual_seed(0)
    truth, noise = (torch.randn(500, 1, generator=g, dtype=torch.float64) for _ in range(2))
    assert shrunk_share(noise, truth, truth) == 1
    assert shrunk_share(truth + 0.1 * noise, noise, truth) < 0.02
    assert shrunk_share(truth, truth, truth) == 0
    twice = torch.cat((truth, truth)), torch.cat((noise, noise)), torch.cat((truth + noise, truth + noise))
    double = torch.full((500,), 2.0, dtype=torch.float64)
    once = shrunk_share(truth, noise, truth + noise, double)  # one row of weight 2 is less sure than two rows
    assert 0 < once < shrunk_share(*twice)


def test_trees_join_where_they_help_and_stay_out_where_they_do_not():
    x, y = steps()
    stack = StackedRidge(trees=True, random_state=0).fit(x, y)
    alone = StackedRidge(random_state=0).fit(x, y)
    assert stack.tree_share_ > 0.5
    assert float(stack.shares_.sum()) + stack.tree_share_ == pytest.approx(1)
    new, truth = steps(seed=1)
    error, other = ((machine.predict(new) - truth).square().mean() for machine in (stack, alone))
    assert error < 0.8 * other
    assert float((stack.held_out_ - y[stack.left_out_]).square().mean()) < 1.5 * float(error)

    smooth = (3 * x).sum(1, keepdim=True).sin()
    calm = StackedRidge(trees=True, random_state=0).fit(x, smooth)
    assert calm.trees_ is None and calm.tree_share_ == 0
    torch.testing.assert_close(calm.predict(new), StackedRidge(random_state=0).fit(x, smooth).predict(new))


def test_targets_that_nothing_predicts_score_as_chance_with_trees():
    x, y = steps(300)
    y = y[torch.randperm(300, generator=torch.Generator().manual_seed(3))]
    stack = StackedRidge(trees=True, random_state=0).fit(x, y)
    truth = y[stack.left_out_]
    r2 = 1 - (truth - stack.held_out_).square().mean() / (truth - truth.mean()).square().mean()
    assert float(r2) < 0.02


def test_a_stack_with_trees_is_saved_without_pickle(tmp_path):
    x, y = steps(250)
    stack = StackedRidge(trees=True, random_state=0).fit(x, y, sample_weight=torch.arange(1, 251))
    assert stack.trees_ is not None
    mercer.save(stack, tmp_path / "stack")
    assert torch.equal(mercer.load(tmp_path / "stack").predict(x), stack.predict(x))
    assert {path.suffix for path in (tmp_path / "stack").iterdir()} <= {".json", ".safetensors"}


def test_another_word_for_trees_is_refused():
    x, y = steps(20)
    with pytest.raises(ValueError, match=r"StackedRidge: trees must be 'auto', True or False; got 'yes'\."):
        StackedRidge(trees="yes").fit(x, y)
