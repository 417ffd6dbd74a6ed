"""Kernel ridge beside its literal self, for every kernel."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import mercer
from mercer import NumericalWarning
from mercer.kernels import RBF, FunctionKernel, Laplacian, Linear, Matern, Polynomial, Precomputed
from mercer.machines import KernelRidge, kernel_ridge
from mercer.machines.dual import dual_fit, dual_path, tune_penalty
from mercer.machines.eigenpro import EigenPro
from mercer.machines.selection import candidate_kernels, rank_kernels
from mercer.rows.stored import open_rows
from tests.kernels.cases import CASES
from tests.machines import reference_machines as literal

N, D = 24, 3


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y, AT = draw(N, D), draw(N, 2, seed=1), draw(9, D, seed=2)


def rows_for(kernel):
    return (torch.arange(7), torch.arange(7)[:4]) if isinstance(kernel, Precomputed) else (X, AT)


# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_exact_equals_the_dense_solution(name):
    kernel = CASES[name]()
    x, at = rows_for(kernel)
    with torch.no_grad():
        machine = KernelRidge(kernel, penalty=0.1, solver="exact").fit(x, Y[: len(x)])
        expected = literal.ridge(kernel, x, Y[: len(x)], 0.1, at)
        known = literal.variance(kernel, x, 0.1, at if at.ndim == 2 else at[:, None])
    torch.testing.assert_close(machine.predict(at), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(machine.variance(at), known.clamp(0, 1), rtol=1e-9, atol=1e-9)
    assert machine.residual_ < 1e-12
    assert machine.solver_ == "exact" and machine.penalty_ == 0.1 and machine.kernel_ is kernel


@pytest.mark.parametrize("kernel", [RBF(0.4), Laplacian(0.3), Linear()], ids=["rbf", "laplacian", "linear"])
@pytest.mark.parametrize("penalty", [1e-3, 0.5])
def test_leave_one_out_equals_refits(kernel, penalty):
    expected = literal.leave_one_out(kernel, X, Y, penalty)
    machine = KernelRidge(kernel, penalty=penalty, solver="exact").fit(X, Y)
    torch.testing.assert_close(machine.loo_, expected, rtol=1e-9, atol=1e-9)
    path = dual_path(kernel(X), Y, [penalty])
    torch.testing.assert_close(path.held_out, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(path.weights, machine.weights_, rtol=1e-8, atol=1e-8)


def test_the_penalty_has_the_least_leave_one_out_error_of_the_grid():
    gram, y = RBF(0.4)(X), X.sin() + 0.3 * draw(N, D, seed=4)
    best = dual_path(gram, y)
    errors = [dual_fit(gram, y, best.penalty * factor).error for factor in (0.1, 1.0, 10.0)]
    assert min(errors) == errors[1] == pytest.approx(best.error, rel=1e-9)
    walked = tune_penalty(gram, y, start=1e-6)
    assert walked.error < dual_fit(gram, y, 1e-6).error


def test_one_column_is_flat_everywhere():
    machine = KernelRidge(RBF(0.4), solver="exact").fit(X, Y[:, 0])
    assert machine.predict(AT).shape == (9,) and machine.loo_.shape == (N,) and machine.variance(AT).shape == (9,)


def test_one_row_is_a_constant():
    machine = KernelRidge(RBF(0.4)).fit(X[:1], Y[:1])
    torch.testing.assert_close(machine.predict(AT), Y[:1].expand(9, 2))
    assert machine.loo_ is None


def test_equal_rows_and_long_length_scales_stay_finite():
    machine = KernelRidge(RBF(1e-9)).fit(X.repeat(3, 1), Y.repeat(3, 1))
    assert bool(machine.predict(AT).isfinite().all()) and bool(machine.loo_.isfinite().all())


# --- landmarks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(CASES) - {"precomputed", "constant"}))  # of rank 1 they are singular
def test_landmarks_equal_their_normal_equations(name):
    kernel = CASES[name]()
    with torch.no_grad():
        machine = KernelRidge(kernel, penalty=0.1, solver="landmarks", landmarks=3, random_state=0).fit(X, Y)
        expected = literal.landmark_ridge(kernel, machine.anchors_, X, Y, 0.1, AT)
    torch.testing.assert_close(machine.predict(AT), expected, rtol=1e-7, atol=1e-7)
    assert machine.solver_ == "landmarks" and len(machine.anchors_) == 3 and machine.residual_ < 1e-11


def test_all_rows_as_landmarks_are_the_exact_machine():
    exact = KernelRidge(RBF(0.4), penalty=0.1, solver="exact").fit(X, Y)
    landmarks = KernelRidge(RBF(0.4), penalty=0.1, solver="landmarks", landmarks=N, random_state=0).fit(X, Y)
    for at in (X, AT):
        torch.testing.assert_close(landmarks.predict(at), exact.predict(at), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(landmarks.variance(at), exact.variance(at), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(landmarks.loo_, exact.loo_, rtol=1e-7, atol=1e-7)


def test_leave_one_out_of_landmarks_equals_refits():
    machine = KernelRidge(RBF(0.4), penalty=0.1, landmarks=6, random_state=0).fit(X, Y)
    expected = literal.landmark_leave_one_out(RBF(0.4), machine.anchors_, X, Y, 0.1)
    torch.testing.assert_close(machine.loo_, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("solver", ["exact", "landmarks"])
def test_rows_added_in_parts_are_the_fit_to_all(solver):
    parts = KernelRidge(RBF(0.4), penalty=0.1, solver=solver, landmarks=8, random_state=0).fit(X[:10], Y[:10])
    anchors = parts.anchors_.clone()
    for rows in (slice(10, 15), slice(15, N)):
        parts.partial_fit(X[rows], Y[rows])
    expected = literal.landmark_ridge(RBF(0.4), anchors, X, Y, 0.1, AT)
    torch.testing.assert_close(parts.predict(AT), expected, rtol=1e-8, atol=1e-8)
    assert parts.loo_ is None and parts.solver_ == "landmarks"


def test_equal_landmarks_need_no_repair():
    machine = KernelRidge(RBF(1e-3), solver="landmarks", landmarks=2 * N).fit(X.repeat(4, 1), Y.repeat(4, 1))
    assert bool(machine.predict(AT).isfinite().all()) and machine.residual_ < 1e-9


def test_a_first_part_chooses_and_files_are_read_in_blocks(tmp_path):
    np.save(tmp_path / "rows.npy", X.numpy())
    stored = open_rows(tmp_path / "rows.npy")
    whole = KernelRidge(RBF(0.4), penalty=0.1, solver="landmarks", landmarks=8, random_state=0).fit(X, Y)
    from_file = KernelRidge(RBF(0.4), penalty=0.1, landmarks=8, random_state=0).fit(stored, Y)
    torch.testing.assert_close(torch.from_numpy(from_file.predict(stored)), whole.predict(X))
    streamed = KernelRidge(RBF(0.4), penalty=0.1, landmarks=8, random_state=0).partial_fit(X[:12], Y[:12])
    assert len(streamed.anchors_) == 8 and streamed.solver_ == "landmarks"


# --- all rows by mini-batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rbf", "laplacian", "matern_half", "ntk_relu", "sum", "precomputed"])
def test_eigenpro_reaches_the_dense_solution(name):
    kernel = CASES[name]()
    x, at = rows_for(kernel)
    with torch.no_grad():
        expected = literal.ridge(kernel, x, Y[: len(x)], 3.0, at)
        machine = KernelRidge(kernel, penalty=3.0, solver="eigenpro", random_state=0).fit(x, Y[: len(x)])
    assert machine.residual_ <= 1.5e-8 and machine.solver_ == "eigenpro"  # the root of float64's eps
    # an error of the weights is at most the residual over the least eigenvalue, which is at least the penalty
    torch.testing.assert_close(machine.predict(at), expected, rtol=1e-5, atol=1e-5)


def test_eigenpro_on_many_rows_equals_the_exact_machine():
    x = draw(700, 5)
    y = torch.stack((x[:, 0].sin(), x[:, 1] * x[:, 2]), 1)
    exact = KernelRidge(Matern(0.5, 3.0), penalty=0.5, solver="exact").fit(x, y)
    machine = KernelRidge(Matern(0.5, 3.0), penalty=0.5, solver="eigenpro", random_state=0).fit(x, y)
    torch.testing.assert_close(machine.predict(x), exact.predict(x), rtol=0, atol=1e-6)


def test_eigenpro_stops_by_rows_it_held_out():
    x = draw(600, 3)
    clean = x[:, :1].sin() * x[:, 1:2].cos()
    machine = KernelRidge(Matern(0.5, 2.0), solver="eigenpro", random_state=0).fit(
        x, clean + 0.2 * draw(600, 1, seed=5)
    )
    rows, predicted = machine.solution_.rows, machine.solution_.left_out
    assert len(rows) == 30 and predicted.shape == (30, 1) and machine.loo_ is None
    fresh = draw(200, 3, seed=6)
    error = (machine.predict(fresh) - fresh[:, :1].sin() * fresh[:, 1:2].cos()).square().mean()
    assert float(error) < 0.25 * float(clean.var())
    assert float(machine.variance(fresh).min()) >= 0 and float(machine.variance(fresh + 100).min()) > 0.99


def test_eigenpro_says_when_it_did_not_get_there():
    x = draw(200, 3)
    with pytest.warns(NumericalWarning, match="after 2 passes, above"):
        EigenPro(1e-9, passes=2).solve(RBF(0.1), x, x)


class Understated(Matern):
    """A kernel that gives too small a k(x, x), as a sample does that has missed the far rows: the step is too long."""

    def gram_diag(self, x):
        return super().gram_diag(x) / 64


def test_eigenpro_shortens_a_step_that_diverges():
    x = draw(100, 3)
    y = x - x.mean(0)
    solution = EigenPro(0.02, generator=torch.Generator().manual_seed(0)).solve(Understated(0.5, 2.0), x, y)
    dense = torch.linalg.solve(Matern(0.5, 2.0)(x) + 0.02 * torch.eye(100, dtype=x.dtype), y)
    torch.testing.assert_close(solution.weights, dense, rtol=0, atol=1e-4 * float(dense.abs().max()))
    with pytest.raises(ValueError, match=r"the descent must converge; got step .* Use solver='landmarks'"):
        EigenPro(0.0).solve(Understated(0.5, 2.0), x, y)


@pytest.mark.parametrize("seed", [0, 1])
def test_eigenpro_learns_with_a_kernel_of_low_rank(seed):
    """Products of three columns have ten directions: levelled to rounding, none would move. A few rows are far away."""
    x = draw(300, 3)
    x[::50] *= 6
    y = x[:, :1] * x[:, 1:2]
    machine = KernelRidge(Polynomial(2), solver="eigenpro", random_state=seed).fit(x, y)
    assert float((machine.predict(x) - y).square().mean() / y.var()) < 0.2


def test_auto_takes_the_cheaper_solver():
    assert [kernel_ridge.cheapest_solver(n, 20) for n in (100, 5001, 1_000_000)] == ["exact", "eigenpro", "landmarks"]
    assert KernelRidge(RBF(0.4), landmarks=5, random_state=0).fit(X, Y).solver_ == "landmarks"
    assert KernelRidge(RBF(0.4), random_state=0).fit(X[:20], Y[:20]).solver_ == "exact"


# --- weights ----------------------------------------------------------------------------------------------------------

WEIGHT = torch.tensor([2.0, 0.5, 3.0, 1.0] * 6, dtype=torch.float64)


@pytest.mark.parametrize("solver", ["exact", "landmarks", "eigenpro"])
def test_a_weighted_machine_equals_the_dense_solution(solver):
    machine = KernelRidge(RBF(0.4), penalty=1.0, solver=solver, landmarks=N, random_state=0).fit(X, Y, WEIGHT)
    expected = literal.weighted_ridge(RBF(0.4), X, Y, 1.0, WEIGHT, AT)
    torch.testing.assert_close(machine.predict(AT), expected, rtol=1e-5, atol=1e-6)
    assert machine.residual_ < 1e-7


@pytest.mark.parametrize("solver", ["exact", "landmarks", "eigenpro"])
def test_weight_two_is_two_copies_and_weight_zero_is_no_row(solver):
    count = torch.arange(N) % 3
    copies = torch.arange(N).repeat_interleave(count)
    arguments = {"penalty": 1.0, "solver": solver, "landmarks": 3 * N, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # more landmarks than rows
        weighted = KernelRidge(RBF(0.4), **arguments).fit(X, Y, count)
        repeated = KernelRidge(RBF(0.4), **arguments).fit(X[copies], Y[copies])
    torch.testing.assert_close(weighted.predict(AT), repeated.predict(AT), rtol=1e-5, atol=1e-6)
    if solver != "eigenpro":  # whose variance is a bound from a penalty of its own
        torch.testing.assert_close(weighted.variance(AT), repeated.variance(AT), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("penalty", [0.1, "loo"])
@pytest.mark.parametrize("solver", ["exact", "landmarks"])
def test_weighted_leave_one_out_equals_refits(solver, penalty):
    weight = WEIGHT.clone()
    weight[5] = 0
    machine = KernelRidge(RBF(0.4), penalty=penalty, solver=solver, landmarks=N, random_state=0).fit(X, Y, weight)
    for i in (0, 5, 7):
        others = weight.clone()
        others[i] = 0
        expected = literal.weighted_ridge(RBF(0.4), X, Y, machine.penalty_, others, X[i : i + 1])[0]
        torch.testing.assert_close(machine.loo_[i], expected, rtol=1e-7, atol=1e-7)


def test_the_penalty_of_weighted_rows_has_the_least_weighted_error():
    gram, y = RBF(0.4)(X), X.sin() + 0.3 * draw(N, D, seed=4)
    best = dual_path(gram, y, weight=WEIGHT)
    error = (WEIGHT[:, None] * (y - best.held_out).square()).sum() / WEIGHT.sum() / D
    assert best.error == pytest.approx(float(error))
    fit = dual_fit(gram, y, best.penalty, weight=WEIGHT)
    torch.testing.assert_close(fit.held_out, best.held_out, rtol=1e-8, atol=1e-8)
    assert all(best.error <= dual_fit(gram, y, best.penalty * f, weight=WEIGHT).error for f in (0.1, 10.0))


def test_weighted_rows_are_added_in_parts():
    parts = KernelRidge(RBF(0.4), penalty=0.1, solver="exact").fit(X[:10], Y[:10], WEIGHT[:10])
    parts.partial_fit(X[10:], Y[10:], WEIGHT[10:])
    root = WEIGHT.sqrt()[:, None]
    mean = (WEIGHT[:, None] * Y).sum(0) / WEIGHT.sum()
    cross = root * RBF(0.4)(X, X[:10])
    system = cross.mT @ cross + 0.1 * RBF(0.4)(X[:10])
    expected = mean + RBF(0.4)(AT, X[:10]) @ torch.linalg.solve(system, cross.mT @ (root * (Y - mean)))
    torch.testing.assert_close(parts.predict(AT), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["weights", "negative", "only_zero", "pictures"])
def test_bad_weights_are_refused(name):
    kernel, rows, weight, said = {
        "weights": (RBF(), X, WEIGHT[1:], r"expected \(24,\)"),
        "negative": (RBF(), X, -WEIGHT, "Negative values"),
        "only_zero": (RBF(), X, 0 * WEIGHT, "zero|above 0"),
        "pictures": (CASES["precomputed"](), torch.arange(7), WEIGHT[:7], "weighted rows must be vectors of numbers"),
    }[name]
    with pytest.raises(ValueError, match=said):
        KernelRidge(kernel, solver="eigenpro").fit(rows, Y[: len(rows)], weight)


# --- memory -----------------------------------------------------------------------------------------------------------


class LargeTensors(TorchDispatchMode):
    """The storages of all tensors with at least ``size`` numbers that come up."""

    def __init__(self, size):
        super().__init__()
        self.size, self.storages = size, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.numel() >= self.size:
            self.storages[out.untyped_storage().data_ptr()] = out.untyped_storage()
        return out


def test_a_fixed_penalty_is_solved_in_the_memory_of_one_gram_matrix(monkeypatch):
    """Copies of it at 10,000 rows are 0.8 GB each: a run with four was ended by the system without a word."""
    x, y = draw(600, 3), draw(600, 1, seed=1)
    monkeypatch.setattr("mercer.checks.available_memory", lambda: int(1.3 * 600**2 * 8))
    machine = KernelRidge(RBF(0.4), penalty=0.1, solver="exact").fit(x, y)
    monkeypatch.undo()
    assert machine.solution_.left_out is None
    with LargeTensors(600**2) as large:
        machine.fit(x, y)
    assert len(large.storages) == 1
    torch.testing.assert_close(machine.loo_, dual_fit(RBF(0.4)(x), y, 0.1).held_out, rtol=1e-9, atol=1e-9)


def test_a_matrix_that_a_users_kernel_holds_is_left_as_it_was():
    matrix = RBF(0.4)(X)
    KernelRidge(FunctionKernel(lambda x, y: matrix), penalty=0.1, solver="exact").fit(X, Y)
    assert torch.equal(matrix, RBF(0.4)(X))


def test_leave_one_out_is_there_after_loading(tmp_path):
    machine = KernelRidge(RBF(0.4), penalty=0.1, solver="exact").fit(X, Y, WEIGHT)
    mercer.save(machine, tmp_path / "machine")
    torch.testing.assert_close(mercer.load(tmp_path / "machine").loo_, machine.loo_)


def test_a_singular_system_is_restored_and_repaired():
    x = torch.cat((X, X))
    with pytest.warns(NumericalWarning, match="singular to rounding; added jitter"):
        machine = KernelRidge(RBF(0.4), penalty=0.0, solver="exact").fit(x, torch.cat((Y, Y)))
    torch.testing.assert_close(machine.predict(X), Y, rtol=0, atol=1e-4)


# --- the kernel is chosen ---------------------------------------------------------------------------------------------


def test_the_kernel_is_chosen_by_leave_one_out():
    x = draw(60, 4)
    straight = KernelRidge(random_state=0).fit(x, x @ draw(4, 1, seed=3))
    assert float((straight.loo_ - x @ draw(4, 1, seed=3)).square().mean()) < 1e-4
    ranked = rank_kernels(x, (x[:, :1] * 3).sin().sign())
    errors = [choice.fit.error for choice in ranked]
    assert errors == sorted(errors) and len(ranked) == len(candidate_kernels(x))


@pytest.mark.parametrize("scale", [1e-40, 1e-3, 1e30])
def test_candidates_are_finite_for_rows_of_any_scale(scale):
    x = draw(20, 3) * scale
    assert all(bool(kernel(x).isfinite().all()) for kernel in candidate_kernels(x)[:12])
    assert bool(KernelRidge(random_state=0).fit(x, Y[:20]).predict(x).isfinite().all())


# --- what goes in, what comes out -------------------------------------------------------------------------------------


def test_arrays_loaders_and_tensors_agree():
    machine = KernelRidge(RBF(0.4), penalty=0.1).fit(X, Y)
    array = KernelRidge(RBF(0.4), penalty=0.1).fit(X.numpy(), Y.numpy())
    loaded = KernelRidge(RBF(0.4), penalty=0.1).fit(DataLoader(TensorDataset(X, Y), batch_size=5))
    assert isinstance(array.predict(AT.numpy()), np.ndarray) and isinstance(array.loo_, np.ndarray)
    assert isinstance(array.variance(AT.numpy()), np.ndarray)
    np.testing.assert_allclose(array.predict(AT.numpy()), machine.predict(AT).numpy())
    torch.testing.assert_close(loaded.predict(AT), machine.predict(AT))


def test_float32_rows_are_solved_in_float64():
    whole = KernelRidge(RBF(0.4), penalty=1e-6).fit(X.float().double(), Y)
    half = KernelRidge(RBF(0.4), penalty=1e-6).fit(X.float(), Y.float().double())
    assert half.predict(AT.float()).dtype == torch.float32
    torch.testing.assert_close(
        half.predict(AT.float()).double(), whole.predict(AT.float().double()), rtol=1e-4, atol=1e-4
    )


def test_saved_and_copied_machines_predict_the_same(tmp_path):
    machine = KernelRidge(RBF(0.4)).fit(X, Y)
    machine.variance(AT)
    mercer.save(machine, tmp_path / "machine")
    for other in (mercer.load(tmp_path / "machine"), copy.deepcopy(machine), pickle.loads(pickle.dumps(machine))):  # noqa: S301
        torch.testing.assert_close(other.predict(AT), machine.predict(AT))
        torch.testing.assert_close(other.variance(AT), machine.variance(AT))
        assert other.penalty_ == machine.penalty_
    assert clone(machine).get_params(deep=False).keys() == {"kernel", "penalty", "solver", "landmarks", "random_state"}


def test_inputs_are_left_as_they_were():
    x, y = X.clone(), Y.clone()
    KernelRidge(RBF(0.4)).fit(x, y)
    assert torch.equal(x, X) and torch.equal(y, Y)


REFUSED = {
    "nan": (lambda: KernelRidge(RBF()).fit(X * torch.nan, Y), ValueError, "x must be finite"),
    "infinite_target": (lambda: KernelRidge(RBF()).fit(X, Y * torch.inf), ValueError, "y must be finite"),
    "no_rows": (lambda: KernelRidge(RBF()).fit(X[:0], Y[:0]), ValueError, "at least one row"),
    "lengths": (lambda: KernelRidge(RBF()).fit(X, Y[1:]), ValueError, "as many rows; got 24 and 23"),
    "one_axis": (lambda: KernelRidge(RBF()).fit(X[:, 0], Y), ValueError, r"shape \(n, d\)"),
    "three_axes": (
        lambda: KernelRidge(RBF()).fit(X, Y[:, :, None]),
        ValueError,
        r"y must have shape \(n,\) or \(n, c\)",
    ),
    "solver": (lambda: KernelRidge(RBF(), solver="newton").fit(X, Y), ValueError, "solver must be one of"),
    "penalty_name": (lambda: KernelRidge(RBF(), penalty="gcv").fit(X, Y), ValueError, "penalty must be one of 'loo'"),
    "penalty_sign": (
        lambda: KernelRidge(RBF(), penalty=-1.0).fit(X, Y),
        ValueError,
        "penalty must be 0 or more; got -1.0",
    ),
    "kernel": (lambda: KernelRidge(len).fit(X, Y), TypeError, "kernel must be a kernel of mercer.kernels"),
    "width": (
        lambda: KernelRidge(RBF()).fit(X, Y).predict(AT[:, :2]),
        ValueError,
        "X has 2 features, but KernelRidge is",
    ),
    "unfitted": (lambda: KernelRidge(RBF()).predict(AT), NotFittedError, "must be fitted first"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_in_a_sentence(name):
    call, kind, said = REFUSED[name]
    with pytest.raises(kind, match=said):
        call()


def test_an_indefinite_kernel_is_named():
    indefinite = FunctionKernel(lambda x, y: -(x @ y.mT))
    with pytest.warns(NumericalWarning, match="indefinite on the rows, least eigenvalue"):
        KernelRidge(indefinite).fit(X, Y)
    with pytest.raises(ValueError, match="least eigenvalue"):
        KernelRidge(indefinite, penalty=0.1).fit(X, Y)
