"""Stacked kernel machines: rows left out in closed form, weights, views, probabilities."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import mercer
from mercer.kernels import RBF, Linear
from mercer.machines import StackedRidge
from mercer.machines.calibration import Calibration
from mercer.machines.dual import Folds, dual_fit, dual_path, dual_weights, predict_left_out, weighted_mean
from mercer.machines.metric import learn_rotation
from mercer.machines.stacking import ridge_factor, solve_forward, solve_left_out
from mercer.machines.trials import _PLANS, Trial, convex_weights, relevance, try_machines, try_metric
from mercer.machines.views import View
from tests.machines import reference_machines as reference


def rows(n=60, d=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.stack((x[:, 0].sin() * x[:, 1], x[:, 2]), 1) + 0.1 * torch.randn(n, 2, generator=g, dtype=torch.float64)
    return x, y


@pytest.mark.parametrize("part", ["all", "some"])
def test_rows_and_folds_left_out_equal_literal_refits(part):
    x, y = rows(40)
    kernel, penalty = RBF(0.3), 0.05
    left_out = torch.arange(40) if part == "all" else torch.arange(28, 40)  # the last rows
    fold = left_out % 5 if part == "all" else torch.zeros(len(left_out), dtype=torch.int64)
    weights, single, whole = solve_left_out(ridge_factor(kernel, x, penalty), y, fold)

    def without(gone, at):
        stay = torch.tensor([i for i in range(40) if i not in gone])
        system = kernel(x[stay]) + penalty * torch.eye(len(stay), dtype=x.dtype)
        return kernel(x[at], x[stay]) @ torch.linalg.solve(system, y[stay])

    system = kernel(x) + penalty * torch.eye(40, dtype=x.dtype)
    torch.testing.assert_close(weights, torch.linalg.solve(system, y), rtol=1e-8, atol=1e-8)
    for place, row in enumerate(left_out.tolist()):
        torch.testing.assert_close(single[place], without({row}, [row])[0], rtol=1e-8, atol=1e-8)
        mates = set(left_out[fold == fold[place]].tolist())
        torch.testing.assert_close(whole[place], without(mates, [row])[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("forward", [False, True])
def test_folds_left_out_together_equal_literal_refits(forward):
    """Of weighted rows, with the mean of the rows that are left; then the same through the factor of all rows."""
    x, y = rows(40)
    weight = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    gram, penalty = RBF(0.3)(x), 0.05
    number = torch.arange(40) // 10 if forward else torch.arange(40) % 4
    fit = dual_fit(gram, y, penalty, weight=weight, folds=Folds(number, forward))
    targets = torch.cat((y, torch.ones(40, 1, dtype=y.dtype)), 1)
    factor = ridge_factor(RBF(0.3), x, penalty, weight=weight)
    _, whole = solve_forward(factor, targets, torch.arange(40), number, weight)
    for one in range(forward, 4):
        stay, inside = number < one if forward else number != one, number == one
        mean = (weight[stay, None] * y[stay]).sum(0) / weight[stay].sum()
        system = gram[stay][:, stay] + torch.diag(penalty / weight[stay])
        expected = mean + gram[inside][:, stay] @ torch.linalg.solve(system, y[stay] - mean)
        torch.testing.assert_close(fit.held_out[inside], expected, rtol=1e-8, atol=1e-8)
        if forward:
            torch.testing.assert_close(whole[inside], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("noise", [1e-3, 0.5])
def test_the_best_ridge_by_folds_left_out_equals_literal_refits(noise, weighted):
    """One eigendecomposition serves all ridges; folds are left out in float64 even where a rough choice will do."""
    n = 240
    x, _ = rows(n)
    y = x[:, :1].sin() + noise * torch.randn(n, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weight = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    weight = weight if weighted else torch.ones_like(weight)
    gram, number = RBF(0.1)(x), torch.arange(n) % 4
    grid = [10.0**e for e in (-6, -5, -4, -3, -2, -1, 0, 1)]
    folds, given = Folds(number), weight if weighted else None

    def leave_out(penalty):
        found = torch.zeros_like(y)
        for one in range(4):
            stay, inside = number != one, number == one
            mean = weighted_mean(y[stay], weight[stay])
            system = gram[stay][:, stay] + torch.diag(penalty / weight[stay])
            found[inside] = mean + gram[inside][:, stay] @ torch.linalg.solve(system, y[stay] - mean)
        return found

    errors = {p: float(weighted_mean((y - leave_out(p)).square(), weight)) for p in grid}
    best = min(grid, key=errors.__getitem__)
    exact, rough = (dual_path(gram, y, grid, weight=given, folds=folds, rough=rough) for rough in (False, True))
    assert exact.penalty == rough.penalty == best
    assert exact.error == pytest.approx(errors[best], rel=1e-6)
    torch.testing.assert_close(exact.held_out, leave_out(best), rtol=0, atol=1e-7)
    assert torch.equal(rough.held_out, exact.held_out)
    fit = dual_fit(gram, y, best, weight=given, folds=folds)
    torch.testing.assert_close(exact.weights, fit.weights, rtol=1e-5, atol=1e-5)
    assert (best < 1e-3) == (noise < 0.1)  # ridges small and large are found


@pytest.mark.parametrize("choose_by", ["folds", "earlier folds"])
def test_a_fold_left_out_does_not_know_its_own_mean(choose_by):
    """Folds differ by a level that nothing tells: the others' mean is the best answer, that of all would be a leak."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=g, dtype=torch.float64)
    fold = torch.arange(300) // 60
    y = torch.tensor([2.0, -1.0, 0.5, 1.5, -3.0], dtype=torch.float64)[fold, None]
    y = y + 0.1 * torch.randn(300, 1, generator=g, dtype=torch.float64)
    machine = StackedRidge(random_state=0).fit(x, y, fold, choose_by=choose_by)
    rows = machine.left_out_
    others = torch.stack([y[fold < f if choose_by == "earlier folds" else fold != f].mean() for f in fold[rows]])
    error, best = ((y[rows, 0] - p).square().mean() for p in (machine.held_out_[:, 0], others))
    assert 0.97 * best < error < 1.1 * best  # the mean of all would give 0.64 of it by folds


def test_a_row_left_out_does_not_know_the_mean_with_it():
    x, y = torch.randn(40, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64), rows(40)[1][:, 1:]
    y = torch.where(torch.arange(40) == 7, 100.0, 0.01 * y[:, 0])[:, None]
    machine = StackedRidge(random_state=0).fit(x, y)
    assert float(machine.loo_[7, 0]) < 0.1  # 2.5 with the mean of all rows


@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("kernel", [RBF(0.3), 0.2 * Linear()], ids=["rbf", "linear"])
@pytest.mark.parametrize("choose_by", ["rows", "folds", "earlier folds"])
def test_machines_without_rows_or_folds_equal_literal_refits(kernel, choose_by, weighted):
    """With the level of the rows that are left. Some are scored; where folds choose, their whole folds go."""
    x, y = rows(40)
    weight = 0.1 + torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * weighted
    weight = weight / weight.mean()
    fold = torch.arange(40) // 10 if choose_by == "earlier folds" else torch.arange(40) % 4
    machine, penalty, view = StackedRidge(), 0.05, View.of(x)
    machine.rows_, machine.left_out_, machine.weight_ = x, torch.arange(13, 40, 2), weight if weighted else None
    centred = y - weighted_mean(y, weight)
    trial = Trial(0, kernel, penalty, 0.0, y)
    weights, level, single, whole = machine._solve(
        view, trial, centred, fold, torch.ones(14, dtype=torch.bool), choose_by, torch.device("cpu")
    )

    def fit(stay):
        """A linear machine has a level of its own; others stand on the mean."""
        inverse = torch.linalg.inv(kernel(view(x))[stay][:, stay] + torch.diag(penalty / weight[stay]))
        level = weighted_mean(centred[stay], weight[stay])
        if not isinstance(kernel, RBF):
            level = (inverse @ centred[stay]).sum(0) / inverse.sum()
        return level, inverse @ (centred[stay] - level)

    expected = fit(torch.ones(40, dtype=torch.bool))
    torch.testing.assert_close((level, weights), expected, rtol=1e-8, atol=1e-8)

    def predict_without(gone, row):
        level, weights = fit(~gone)
        return level + kernel(view(x))[row, ~gone] @ weights

    for place, row in enumerate(machine.left_out_.tolist()):
        gone = fold == fold[row]
        if choose_by == "rows":  # rows that had a part in the choice stay
            gone &= torch.isin(torch.arange(40), machine.left_out_)
        elif choose_by == "earlier folds":
            gone = fold >= fold[row]
        torch.testing.assert_close(whole[place], predict_without(gone, row), rtol=1e-8, atol=1e-8)
        alone = gone if choose_by == "earlier folds" else torch.arange(40) == row
        torch.testing.assert_close(single[place], predict_without(alone, row), rtol=1e-8, atol=1e-8)


def test_whole_groups_choose_machines_and_shares():
    """Rows of a group are alike: left out alone each is known, which says nothing about new groups."""
    g = torch.Generator().manual_seed(0)
    group = torch.arange(480) // 6
    x = torch.randn(80, 3, generator=g, dtype=torch.float64)[group]
    y = 2 * x[:, :1] + torch.randn(80, 1, generator=g, dtype=torch.float64)[group]
    new = torch.randn(400, 3, generator=g, dtype=torch.float64)
    errors = []
    for choose_by in ("rows", "folds"):
        machine = StackedRidge(random_state=0).fit(x, y, group % 5, choose_by=choose_by)
        errors.append(float((machine.predict(new) - 2 * new[:, :1]).square().mean()))
    assert errors[1] < 0.5 * errors[0]


def test_later_rows_choose_machines_and_shares():
    """A straight line goes on as before; what is near in time is no guide to the next period."""
    g = torch.Generator().manual_seed(0)
    x = torch.cat((torch.linspace(0, 3, 600)[:, None], torch.randn(600, 2, generator=g)), 1).double()
    y = 2 * x[:, :1] + (20 * x[:, :1]).sin() + 0.1 * torch.randn(600, 1, generator=g, dtype=torch.float64)
    errors = {}
    for choose_by in ("rows", "earlier folds"):
        machine = StackedRidge(random_state=0).fit(x[:500], y[:500], torch.arange(500) // 100, choose_by=choose_by)
        errors[choose_by] = float((machine.predict(x[500:]) - y[500:]).square().mean())
        known = 300 if choose_by == "earlier folds" else 500  # little comes before the second fold
        assert len(machine.left_out_) == len(machine.held_out_) == known
    assert errors["earlier folds"] < 0.8 * errors["rows"]
    with pytest.raises(ValueError, match="fold must ascend"):
        StackedRidge().fit(x, y, torch.arange(600) % 5, choose_by="earlier folds")


def test_weighted_rows_left_out_equal_literal_refits():
    """Noise penalty / w in every formula, with weighted means; at one penalty a row of weight 2 is two rows."""
    x, y = rows(30)
    weight = torch.rand(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    gram, penalty = RBF(0.3)(x), 0.05
    fit, path = dual_fit(gram, y, penalty, weight=weight), dual_path(gram, y, [penalty], weight=weight)
    for a, b in zip(fit[:3], path[:3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert fit.error == pytest.approx(path.error)
    _, single, _ = solve_left_out(ridge_factor(RBF(0.3), x, penalty, weight=weight), y, torch.arange(30) % 5)
    for row in range(30):
        stay = torch.arange(30) != row
        system = gram[stay][:, stay] + torch.diag(penalty / weight[stay])
        mean = (weight[stay, None] * y[stay]).sum(0) / weight[stay].sum()
        expected = mean + gram[row, stay] @ torch.linalg.solve(system, y[stay] - mean)
        torch.testing.assert_close(fit.held_out[row], expected, rtol=1e-8, atol=1e-8)
        expected = gram[row, stay] @ torch.linalg.solve(system, y[stay])
        torch.testing.assert_close(single[row], expected, rtol=1e-8, atol=1e-8)
    twice = torch.cat((torch.arange(30), torch.arange(10)))
    double = torch.where(torch.arange(30) < 10, 2.0, 1.0).double()
    copied, weighted = dual_fit(gram[twice][:, twice], y[twice], penalty), dual_fit(gram, y, penalty, weight=double)
    torch.testing.assert_close(
        copied.mean + gram[:, twice] @ copied.weights, weighted.mean + gram @ weighted.weights, rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("penalty", [1e-4, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_parts_of_a_fit_equal_the_whole(weighted, penalty):
    """The weights alone, and some rows alone: float64 below 200 rows and for a small ridge, else float32."""
    for n in (40, 300):
        x, y = rows(n)
        weight = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
        weight = weight if weighted else None
        fit, some = dual_fit(RBF(0.3)(x), y, penalty, weight=weight), torch.arange(0, n, 3)
        torch.testing.assert_close(dual_weights(RBF(0.3)(x), y, penalty, weight), fit.weights, rtol=1e-9, atol=1e-9)
        near = 1e-4 if n == 300 and penalty == 0.5 else 1e-8
        found = predict_left_out(RBF(0.3), x, y, penalty, some, weight=weight)
        torch.testing.assert_close(found, fit.held_out[some], rtol=near, atol=near)
        folds = Folds(torch.arange(n) % 5)
        fit = dual_fit(RBF(0.3)(x), y, penalty, weight=weight, folds=folds)
        found = predict_left_out(RBF(0.3), x, y, penalty, some, weight=weight, folds=folds)
        torch.testing.assert_close(found, fit.held_out[some], rtol=1e-8, atol=1e-8)


def test_weights_steer_a_stack(tmp_path):
    """Of two answers to the same rows the heavier one is given; only ratios matter, and equal weights are none."""
    x = torch.linspace(0, 6, 60, dtype=torch.float64)[:, None]
    both, y = torch.cat((x, x)), torch.cat((x.sin(), x.sin() + 1))
    weight = torch.cat((torch.full((60,), 1.0), torch.full((60,), 9.0)))
    machine = StackedRidge(random_state=0).fit(both, y, sample_weight=weight)
    assert float((machine.predict(x) - x.sin() - 0.9).abs().max()) < 0.1
    scaled = StackedRidge(random_state=0).fit(both, y, sample_weight=(4 * weight).tolist())
    torch.testing.assert_close(scaled.predict(x), machine.predict(x))
    plain, equal = (StackedRidge(random_state=0).fit(both, y, sample_weight=w) for w in (None, [3] * 120))
    assert torch.equal(plain.predict(x), equal.predict(x)) and plain.weight_ is None
    mercer.save(machine, tmp_path / "m")
    loaded, some = mercer.load(tmp_path / "m"), torch.arange(0, 120, 7)
    torch.testing.assert_close(loaded.without(some)(both[some]), machine.without(some)(both[some]))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_rough_path_ends_at_the_same_ridge(noise):
    """With noise in float32; without it the best ridge is below float32's rounding, and found in float64."""
    x, _ = rows(300)
    y = x[:, :1].sin() + noise * torch.randn(300, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gram = RBF(0.1)(x)
    exact, rough = dual_path(gram, y), dual_path(gram, y, rough=True)
    assert rough.penalty == exact.penalty
    assert rough.error == pytest.approx(exact.error, rel=1e-3)
    torch.testing.assert_close(rough.held_out, exact.held_out, rtol=0, atol=3e-3)
    assert (exact.penalty < 1e-4) == (noise == 0)


def test_trees_of_other_folds_are_not_grown_where_one_shows_no_gain(monkeypatch):
    from mercer.machines import stacking

    grown, grow = [], stacking.Boosting.grow
    monkeypatch.setattr(stacking.Boosting, "grow", lambda x, *rest: grown.append(len(x)) or grow(x, *rest))
    g = torch.Generator().manual_seed(0)
    x = torch.randn(250, 3, generator=g, dtype=torch.float64)
    noise = 0.1 * torch.randn(250, generator=g, dtype=torch.float64)
    smooth = StackedRidge(trees=True, random_state=0).fit(x, x.sum(1) + noise)
    assert smooth.tree_share_ == 0 and grown == [200]
    grown.clear()
    steps = StackedRidge(trees=True, random_state=0).fit(x, 4.0 * (x[:, 0] > 0.3) * (x[:, 1] > -0.2) + noise)
    assert steps.tree_share_ > 0.3 and grown == [200] * 5 + [250]


def test_a_ridge_below_float32s_rounding_is_factored_in_float64():
    """A smooth kernel without noise on many rows: its least eigenvalues are below what float32 can tell from 0."""
    x = torch.linspace(0, 1, 400, dtype=torch.float64)[:, None]
    factor = ridge_factor(RBF(0.5), x, 1e-7, many=50)
    assert factor.dtype == torch.float64
    system = RBF(0.5)(x) + 1e-7 * torch.eye(400, dtype=torch.float64)
    torch.testing.assert_close(factor @ factor.mT, system, rtol=0, atol=1e-12)
    assert ridge_factor(RBF(0.5), x, 0.1, many=50).dtype == torch.float32


def test_weights_are_the_best_convex_ones():
    g = torch.Generator().manual_seed(1)
    y = torch.randn(50, 1, generator=g, dtype=torch.float64)
    predictions = [y + s * torch.randn(50, 1, generator=g, dtype=torch.float64) for s in (0.5, 1.0, 3.0)]
    w = convex_weights(predictions, y)
    columns = torch.cat(predictions, 1).numpy()

    def error(v):
        v = np.exp(v - v.max())
        return float(np.square(y[:, 0].numpy() - columns @ (v / v.sum())).sum())

    best = min(minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-8}).fun for start in np.eye(3))
    assert w.min() >= 0 and float(w.sum()) == pytest.approx(1)
    assert error(np.log(w.numpy() + 1e-12)) <= best * (1 + 1e-4)


def test_a_machine_without_use_gets_no_weight():
    y = rows(80)[1]
    w = convex_weights([y, torch.zeros_like(y)], y)
    assert float(w[0]) == pytest.approx(1, abs=1e-4)


def test_it_predicts_what_it_has_not_seen_and_says_how_well():
    x, y = rows(400)
    machine = StackedRidge(random_state=0).fit(x[:300], y[:300])
    error = (machine.predict(x[300:]) - y[300:]).square().mean()
    assert error < 0.25 * y.var()
    said = (machine.loo_ - y[:300]).square().mean()
    assert 0.5 < float(said / error) < 2
    assert float((machine.held_out_ - y[:300]).square().mean()) >= 0.9 * float(said)  # a fold out is harder


def test_no_target_weighs_the_columns_that_predict_it():
    """Each half of the few rows is predicted, when left out, through weights that the other half taught."""
    x, y = rows(60)
    y = y - y.mean(0)
    few = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    looks, tried = try_machines(x, y, few)
    smooth = min((t for t in tried if isinstance(t.kernel, RBF) and t.look < len(looks) - 1), key=lambda t: t.error)
    view, last = looks[smooth.look].view, tried[-1]
    for own, other in ((few[:30], few[30:]), (few[30:], few[:30])):
        seen = view.weighted(relevance(smooth.kernel, view(x[other]), y[other], smooth.penalty))(x)
        literal = reference.leave_one_out(last.kernel, seen[few], y[few], last.penalty)
        mine = torch.isin(few, own)
        torch.testing.assert_close(last.held_out[mine], literal[mine], rtol=1e-7, atol=1e-9)


def sine(n, d=6, seed=0):
    """A sine of one direction, the classes its signs."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    up = (3 * x.sum(1) / d**0.5).sin() > 0
    return x, torch.stack((~up, up), 1).double()


def test_the_metric_of_one_half_predicts_the_other():
    x, y = sine(400)
    y = y - y.mean(0)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    looks, tried = try_machines(x, y, order[:300])
    look, trials = try_metric(x, y, order, 300, looks, tried)
    assert look.view.weight.shape == (6, 6) and min(t.error for t in trials) < 0.5 * min(t.error for t in tried)
    # literally: the rotation of the other half, at whichever of the plans was taken
    last, few = trials[-1], order[:300]
    for own, other in ((order[:200], order[200:]), (order[200:], order[:200])):
        view = next(view for numbers, view in look.honest if torch.equal(numbers, own))
        rotations = [learn_rotation(looks[0].view(x[other]), y[other], *plan) for plan in _PLANS]
        assert any(torch.allclose(view.weight, rotation) for rotation in rotations)
        literal = reference.leave_one_out(last.kernel, view(x)[few], y[few], last.penalty)
        mine = torch.isin(few, own)
        # trials of 200 rows or more are solved in float32
        torch.testing.assert_close(last.held_out[mine], literal[mine], rtol=0, atol=1e-3)


def test_no_metric_is_learned_from_noise_few_numbers_or_many_columns():
    g = torch.Generator().manual_seed(0)
    x, y = sine(300)
    order = torch.randperm(300, generator=g)
    noise = torch.randn(300, 1, generator=g, dtype=torch.float64)
    wide = torch.cat((x, torch.randn(300, 60, generator=g, dtype=torch.float64)), 1)
    for rows, target in ((x, noise), (wide, y), (x.sign(), y)):
        looks, tried = try_machines(rows, target - target.mean(0), order)
        assert try_metric(rows, target - target.mean(0), order, 300, looks, tried) is None


def test_a_metric_counts_weighted_rows_and_is_saved(tmp_path):
    """Half of the rows tell another story and weigh nothing."""
    x, y = sine(800)
    strange = torch.arange(400, 800)
    other = y.index_copy(0, strange, y[strange].flip(0))
    weight = torch.ones(800, dtype=torch.float64).index_fill(0, strange, 1e-6)
    machine = StackedRidge(random_state=0).fit(x, other, sample_weight=weight)
    new, truth = sine(200, seed=1)
    assert any(view.weight.ndim == 2 for view in machine.views_)
    assert (machine.predict(new).argmax(1) == truth.argmax(1)).double().mean() > 0.85
    mercer.save(machine, tmp_path / "m")
    assert torch.equal(mercer.load(tmp_path / "m").predict(new), machine.predict(new))


def test_equal_seeds_give_equal_machines_and_saving_keeps_them(tmp_path):
    x, y = rows(120)
    first, second = (StackedRidge(random_state=3).fit(x, y).predict(x) for _ in range(2))
    assert torch.equal(first, second)
    machine = StackedRidge(random_state=3).fit(x, y)
    mercer.save(machine, tmp_path / "m")
    assert torch.equal(mercer.load(tmp_path / "m").predict(x), machine.predict(x))


def test_many_rows_leave_one_fold_out():
    x, y = rows(200)
    machine = StackedRidge(every_row=100, random_state=0).fit(x, y)
    assert len(machine.left_out_) == 40 and machine.loo_.shape == (40, 2)
    assert (machine.loo_ - y[machine.left_out_]).square().mean() < 0.3 * y.var()


@pytest.mark.parametrize("value", [1e200, -1e200])
def test_one_absurd_cell_is_held_within_reach(value):
    x, y = rows(100)
    machine = StackedRidge(random_state=0).fit(x, y)
    strange = x[:1].clone()
    strange[0, 0] = value
    assert machine.predict(strange).isfinite().all()


def test_constant_columns_and_equal_rows_are_no_fault():
    x, y = rows(60)
    x = torch.cat((x, torch.ones(60, 1, dtype=x.dtype)), 1)
    assert StackedRidge(random_state=0).fit(torch.cat((x, x)), torch.cat((y, y))).predict(x).isfinite().all()
    alike = torch.ones(30, 2, dtype=torch.float64)
    flat = StackedRidge(random_state=0).fit(alike, y[:30])
    torch.testing.assert_close(flat.predict(alike[:1])[0], y[:30].mean(0), rtol=0.05, atol=0.05)


def test_a_view_straightens_a_long_tail_and_keeps_rare_indicators_small():
    g = torch.Generator().manual_seed(0)
    tail = torch.randn(2000, 1, generator=g, dtype=torch.float64).mul(2).exp()
    rare = (torch.rand(2000, 1, generator=g) < 0.005).double()
    x = torch.cat((tail, rare), 1)
    z = View.of(x, straighten=True)(x)
    assert abs(float(z[:, 0].pow(3).mean())) < 0.2 and float(z[:, 1].max()) < 6
    order = x[:, 0].argsort()
    assert (z[order, 0].diff() >= 0).all()  # ranks are kept
    assert float(View.of(x)(x)[:, 0].max()) == 8


def test_probabilities_are_calibrated_and_never_sure():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    scores = torch.nn.functional.one_hot(labels).double() + 0.5 * torch.randn(300, 3, generator=g, dtype=torch.float64)
    p = Calibration.of(scores, labels)(scores)
    torch.testing.assert_close(p.sum(1), torch.ones(300, dtype=torch.float64))
    torch.testing.assert_close(p.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.01, rtol=0)
    sure = Calibration.of(1e6 * torch.nn.functional.one_hot(labels).double(), labels)
    assert sure(1e9 * torch.eye(3, dtype=torch.float64)).min() >= 1 / (2 * 303) - 1e-12


def test_scores_that_speak_for_other_classes_are_mixed_and_others_are_not():
    """One class's score is high for its neighbor, too, as of pictures that look alike; noise brings no mixing."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (3000,), generator=g)
    train, new = slice(0, 1000), slice(1000, 3000)
    plain = torch.eye(4, dtype=torch.float64)[y] + 0.4 * torch.randn(3000, 4, generator=g, dtype=torch.float64)
    mixed = plain @ (torch.eye(4, dtype=torch.float64) + 0.8 * torch.eye(4, dtype=torch.float64).roll(1, 1))

    def new_loss(scores: torch.Tensor, *, mixes: bool) -> float:
        p = Calibration.of(scores[train], y[train], shares=True, mixes=mixes)(scores[new])
        return float(-p.gather(1, y[new, None]).log().mean())

    best = new_loss(plain, mixes=False)
    assert not len(Calibration.of(plain[train], y[train], shares=True).mixing)
    assert new_loss(mixed, mixes=True) < min(1.5 * best, 0.5 * new_loss(mixed, mixes=False))
    few = Calibration.of(mixed[:79], y[:79], shares=True)
    assert not len(few.mixing)  # below 20 rows a class


def test_weights_calibrate_to_the_weighted_shares():
    labels = torch.arange(400) % 2
    scores = torch.full((400, 2), 0.5, dtype=torch.float64)
    weight = torch.where(labels == 1, 3.0, 1.0).double()
    p = Calibration.of(scores, labels, weight=weight)(scores)
    assert float(p[0, 1]) == pytest.approx(0.75, abs=0.01)


def test_scores_that_are_probabilities_stay_what_they_are():
    """Two rare classes: a scale alone cannot give the shares that the scores already say."""
    g = torch.Generator().manual_seed(0)
    rare = 0.4 * torch.rand(4000, 2, generator=g, dtype=torch.float64) ** 3 + 0.01
    truth = torch.cat((1 - rare.sum(1, keepdim=True), rare), 1)
    labels = torch.multinomial(truth, 1, generator=g)[:, 0]
    plain, power = Calibration.of(truth, labels), Calibration.of(truth, labels, shares=True)
    assert plain.power == 0 and abs(power.power - 1) < 0.2
    assert (power(truth) - truth).abs().mean() < 0.02 < (plain(truth) - truth).abs().mean()
    separated = Calibration.of(torch.nn.functional.one_hot(labels).double(), labels, shares=True)
    assert separated.power == 0


def test_faults_are_sentences():
    x, y = rows(10)
    with pytest.raises(ValueError, match="StackedRidge: y must be finite"):
        StackedRidge().fit(x, y.clone().fill_(torch.nan))
    with pytest.raises(ValueError, match="at least two rows"):
        StackedRidge().fit(x[:1], y[:1])
    with pytest.raises(ValueError, match="StackedRidge"):
        StackedRidge().predict(x)
