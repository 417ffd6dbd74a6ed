"""The estimators: scikit-learn's own checks, every fault that applies, export, saving, updates."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_classification
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import mercer
from mercer import NumericalWarning
from mercer.kernels import Laplacian
from mercer.layerwise import KernelNetworkClassifier, KernelNetworkRegressor
from mercer.layerwise.dependence import gaussian
from mercer.layerwise.network import Indicators, Standardize
from mercer.machines.metric import average_gradient_outer_product

SOLVERS = {
    "auto": lambda: KernelNetworkClassifier(random_state=0),
    "landmarks": lambda: KernelNetworkClassifier(landmarks=30, random_state=0),
    "spectral": lambda: KernelNetworkClassifier(solver="spectral", features=60, random_state=0),
    "closed_form": lambda: KernelNetworkClassifier(solver="closed_form", random_state=0),
    "authors": lambda: KernelNetworkClassifier(solver="closed_form", rule="authors", random_state=0),
}
ESTIMATORS = {**SOLVERS, "regressor": lambda: KernelNetworkRegressor(random_state=0)}


@pytest.fixture(params=SOLVERS)
def classifier(request):
    return SOLVERS[request.param]()


@pytest.fixture(params=ESTIMATORS)
def estimator(request):
    return ESTIMATORS[request.param]()


def assert_answers(fitted, X):
    """Finite scores, probabilities that sum to 1; labels are always finite."""
    if isinstance(fitted, KernelNetworkRegressor):
        values = fitted.predict(X)
        assert np.isfinite(values).all()
        return
    p = fitted.predict_proba(X)
    assert np.isfinite(fitted.decision_function(X)).all() and (p >= 0).all()
    np.testing.assert_allclose(p.sum(1), 1)


@pytest.fixture(scope="module")
def small():
    X, y = make_classification(90, 5, n_informative=3, n_classes=3, n_clusters_per_class=1, random_state=0)
    return X, y


@pytest.mark.filterwarnings("ignore::mercer.NumericalWarning")  # its constant and tiny inputs are meant to warn
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_check_estimator_without_expected_failures(name):
    check_estimator(ESTIMATORS[name]())


# --- what it is for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["auto", "spectral", "closed_form"])
def test_wine_is_learned_without_tuning(name):
    X, y = load_wine(return_X_y=True)
    a, b, ya, yb = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
    fitted = SOLVERS[name]().fit(a, ya)
    assert fitted.score(b, yb) > 0.93
    assert fitted.n_layers_ == len(fitted.layers_) == len(fitted.history_) >= 1
    assert set(fitted.history_[0]) == {"bandwidth", "width", "hsic", "mse", "ce", "c", "t"}


def test_probabilities_are_calibrated_on_leave_one_out_scores():
    X, y = load_breast_cancer(return_X_y=True)
    a, b, ya, yb = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
    fitted = SOLVERS["auto"]().fit(a, ya)
    p = fitted.predict_proba(b)
    np.testing.assert_allclose(p.sum(1), 1)
    confidence, right = p.max(1).mean(), (p.argmax(1) == yb).mean()
    assert abs(confidence - right) < 0.03
    assert (fitted.decision_function(b) > 0).astype(int).tolist() == fitted.predict(b).tolist()


def test_regressor_beats_the_mean_by_far():
    X, y = load_diabetes(return_X_y=True)
    a, b, ya, yb = train_test_split(X, y, test_size=0.5, random_state=0)
    assert KernelNetworkRegressor(random_state=0).fit(a, ya).score(b, yb) > 0.4


def test_levels_become_columns_where_that_helps(generator):
    X = torch.randint(0, 4, (400, 5), generator=generator).numpy().astype(float)
    y = ((X[:, 0] == 1) ^ (X[:, 1] == 2)).astype(int)  # the order of the levels says nothing
    fitted = KernelNetworkClassifier(random_state=0).fit(X[:300], y[:300])
    assert any(isinstance(module, Indicators) for module in fitted.network_.modules())
    assert fitted.score(X[300:], y[300:]) == 1.0
    assert fitted.predict(np.full((1, 5), 9.0)).shape == (1,)  # levels never seen


def test_a_metric_is_learned_where_it_helps(generator):
    x = torch.randn(400, 12, generator=generator, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long()  # two features matter, ten do not
    fitted = KernelNetworkClassifier(random_state=0).fit(x[:300], y[:300])
    assert fitted.n_layers_ > 1
    assert fitted.score(x[300:].numpy(), y[300:].numpy()) > 0.9
    flat = KernelNetworkClassifier(random_state=0, max_layers=1).fit(x[:300], y[:300])
    assert flat.n_layers_ == 1 and flat.score(x[300:].numpy(), y[300:].numpy()) < 0.85


def test_the_default_is_one_stack_that_looks_through_the_stem(generator):
    x = torch.randn(300, 12, generator=generator, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long()  # a metric helps
    (stack,) = KernelNetworkClassifier(random_state=0).fit(x, y).network_.layers
    firsts = {type(branch[0]).__name__ for branch in stack.branches}
    assert "Standardize" in firsts and firsts <= {"Standardize", "View"}
    torch.testing.assert_close(float(stack.shares.sum()), 1.0)


def test_labels_of_chance_get_probabilities_of_chance(generator):
    """Rows that taught a metric are left out through a metric of other rows: else noise would look learned."""
    x = torch.randn(400, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (400,), generator=generator)
    p = KernelNetworkClassifier(random_state=0).fit(x[:200], y[:200]).predict_proba(x[200:].numpy())
    assert -np.log(p[np.arange(200), y[200:]]).mean() < np.log(2) + 0.03


# --- parts --------------------------------------------------------------------------------------------------


def test_average_gradient_outer_product_equals_autograd(generator):
    x = torch.randn(9, 3, dtype=torch.float64, generator=generator)
    w = torch.randn(9, 2, dtype=torch.float64, generator=generator)
    total = torch.zeros(3, 3, dtype=torch.float64)
    for row in x:
        jacobian = torch.autograd.functional.jacobian(lambda p: (gaussian(0.8)(p[None], x) @ w)[0], row)
        total += jacobian.T @ jacobian
    torch.testing.assert_close(average_gradient_outer_product(x, x, w, 0.8), total / 9)


def test_no_probability_is_below_what_so_many_rows_can_tell():
    X, y = load_wine(return_X_y=True)
    fitted = SOLVERS["auto"]().fit(X[::2], y[::2])
    assert fitted.predict_proba(np.r_[X, 100 * X]).min() >= 0.999 / (2 * (len(X[::2]) + 3))


def test_many_rows_all_take_part(generator):
    x = torch.randn(500, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long().numpy()
    fitted = KernelNetworkClassifier(exact_rows=200, random_state=0).fit(x[:400], y[:400])
    assert len(fitted.network_.layers[-1].anchors) == 400
    assert fitted.score(x[400:].numpy(), y[400:]) > 0.85
    with pytest.raises(ValueError, match="partial_fit needs landmarks; got 400 rows by eigenpro"):
        fitted.partial_fit(x[400:], y[400:])
    value = KernelNetworkRegressor(exact_rows=200, random_state=0).fit(x[:400], x[:400, 0] * x[:400, 1])
    assert value.score(x[400:].numpy(), (x[400:, 0] * x[400:, 1]).numpy()) > 0.95


def test_wide_rows_are_projected_on_principal_components(generator):
    low = torch.randn(500, 5, generator=generator, dtype=torch.float64)
    x = low @ torch.randn(5, 160, generator=generator, dtype=torch.float64)
    y = (low[:, 0] > 0).long().numpy()
    fitted = KernelNetworkClassifier(exact_rows=200, random_state=0).fit(x[:400], y[:400])
    assert fitted.network_.layers[-1].anchors.shape == (400, 100)
    assert fitted.score(x[400:].numpy(), y[400:]) > 0.9


@pytest.mark.parametrize("kernel", ["gaussian", Laplacian(0.2)], ids=["gaussian", "given"])
@pytest.mark.parametrize("landmarks", [None, 20])
def test_a_kernel_can_be_given(kernel, landmarks, small):
    X, y = small
    fitted = KernelNetworkClassifier(kernel=kernel, landmarks=landmarks, random_state=0).fit(X, y)
    assert fitted.score(X, y) > 0.85 and fitted.history_[-1]["bandwidth"] > 0


# --- export, saving, updates --------------------------------------------------------------------------------


def test_to_module_has_the_same_outputs_and_trains(classifier, small):
    X, y = small
    fitted = classifier.fit(X, y)
    module = fitted.to_module()
    x = torch.from_numpy(X)
    np.testing.assert_allclose(module(x).softmax(1).detach().numpy(), fitted.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(module(x).detach().numpy(), fitted.decision_function(X), atol=1e-6)
    before = fitted.predict_proba(X)
    loss = torch.nn.functional.cross_entropy(module(x), torch.from_numpy(y))
    loss.backward()
    parameters = [p for p in module.parameters() if p.grad is not None and float(p.grad.norm()) > 0]
    assert parameters
    with torch.no_grad():
        for p in parameters:
            p -= 1e-6 * p.grad
        after = torch.nn.functional.cross_entropy(module(x), torch.from_numpy(y))
    assert after.item() < loss.item()
    np.testing.assert_array_equal(fitted.predict_proba(X), before)  # the module is a copy
    with pytest.raises(ValueError, match=r"x must have shape \(n, 5\); got \(90, 4\)"):
        module(x[:, :4])


def test_regressor_to_module(small):
    X, _ = small
    fitted = KernelNetworkRegressor(random_state=0).fit(X, X[:, 0])
    out = fitted.to_module()(torch.from_numpy(X))[:, 0].detach().numpy()
    np.testing.assert_allclose(out, fitted.predict(X), atol=1e-6)


def test_save_load_pickle_clone(estimator, small, tmp_path):
    X, y = small
    fitted = estimator.fit(X, y)
    expected = fitted.predict(X)
    mercer.save(fitted, tmp_path / "model")
    loaded = mercer.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), expected)
    assert loaded.history_ == fitted.history_
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), expected)  # noqa: S301
    assert not hasattr(clone(fitted), "layers_")


def test_partial_fit_equals_one_fit_of_all_sums(small):
    X, y = small
    whole = KernelNetworkClassifier(kernel="gaussian", landmarks=20, random_state=0).partial_fit(X[:60], y[:60])
    in_parts = clone(whole).partial_fit(X[:60], y[:60])
    whole.partial_fit(X[60:], y[60:])
    for start in range(60, 90, 10):
        in_parts.partial_fit(X[start : start + 10], y[start : start + 10])
    np.testing.assert_allclose(in_parts.predict_proba(X), whole.predict_proba(X), atol=1e-7)
    head = whole.network_.layers[-1]
    z = torch.nn.Sequential(*list(whole.network_.layers)[:-1])(torch.from_numpy(X))
    K = head.kernel(z, head.anchors)
    Y = torch.nn.functional.one_hot(torch.from_numpy(y), 3).double()
    system = K.T @ K + whole.penalty_ * head.kernel(head.anchors)
    exact = K @ torch.linalg.solve(system, K.T @ (Y - Y.mean(0))) + Y.mean(0)
    torch.testing.assert_close(head(z), exact, rtol=1e-5, atol=1e-6)  # the literal system is badly conditioned


def test_partial_fit_goes_on_after_fit_and_knows_its_classes(small):
    X, y = small
    fitted = KernelNetworkClassifier(random_state=0).fit(X[:60], y[:60])
    score = fitted.score(X[:60], y[:60])
    assert fitted.partial_fit(X[60:], y[60:]).score(X[:60], y[:60]) > score - 0.1
    with pytest.raises(ValueError, match="labels must be among 0, 1, 2; got"):
        fitted.partial_fit(X[:2], [0, 7])
    one = KernelNetworkClassifier(random_state=0).partial_fit(X[:40], np.minimum(y[:40], 1), classes=[0, 1, 2])
    assert one.predict_proba(X).shape == (90, 3)
    assert not hasattr(KernelNetworkClassifier(solver="spectral"), "partial_fit")


def test_pipelines_grid_search_and_frames(small):
    X, y = small
    search = GridSearchCV(
        make_pipeline(StandardScaler(), KernelNetworkClassifier(random_state=0)),
        {"kernelnetworkclassifier__max_layers": [1, 2]},
        cv=2,
    )
    assert search.fit(X, y).best_score_ > 0.5
    frame = pd.DataFrame(X, columns=list("abcde"))
    fitted = KernelNetworkClassifier(random_state=0).fit(frame, y)
    assert fitted.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[list("edcba")])


def test_progress_goes_to_the_log(small, caplog):
    with caplog.at_level("INFO", logger="mercer"):
        KernelNetworkClassifier(random_state=0, verbose=True).fit(*small)
    assert "layer 1: bandwidth" in caplog.text


# --- faults: the numbers are rows of the table of faults ----------------------------------------------------


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_1_2_non_finite_x(estimator, small, value, word):
    X, y = small[0].copy(), small[1]
    X[3, 1] = value
    with pytest.raises(ValueError, match=word):
        estimator.fit(X, y)


def test_3_nan_in_y(estimator, small):
    y = small[1].astype(float)
    y[0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        estimator.fit(small[0], y)


def test_4_5_huge_values(estimator, small):
    X, y = small
    with pytest.raises(ValueError, match="because its squares overflow; got 2"):
        estimator.fit(X / np.abs(X).max() * 2e200, y)
    assert_answers(clone(estimator).fit(X * 1e30, y), X * 1e30)


@pytest.mark.filterwarnings("ignore::mercer.NumericalWarning")
def test_6_denormal_scale(estimator, small):
    X, y = small
    fitted = estimator.fit(X * 1e-40, y)
    assert_answers(fitted, X * 1e-40)


def test_59_denormal_rows_are_put_on_a_normal_scale(small):
    """Kernels then see what they see of rows in another unit, at the same cost."""
    X = torch.tensor(small[0], dtype=torch.float64)
    tiny = X * 1e-310
    seen, plain = (Standardize.of(rows)(rows) for rows in (tiny, X))
    torch.testing.assert_close(seen, plain, rtol=1e-9, atol=1e-9)  # 1e-310 has 43 bits


def test_7_constant_x_warns_and_fits(estimator, small):
    with pytest.warns(NumericalWarning):
        fitted = estimator.fit(np.ones((90, 3)), small[1])
    assert_answers(fitted, np.ones((2, 3)))


def test_8_one_constant_feature(estimator, small):
    X = np.c_[small[0], np.full(90, 7.0)]
    fitted = estimator.fit(X, small[1])
    assert_answers(fitted, X)


@pytest.mark.filterwarnings("ignore::mercer.NumericalWarning")
def test_9_all_rows_duplicated_and_with_different_labels(estimator, small):
    X, y = small
    fitted = estimator.fit(np.r_[X, X], np.r_[y, (y + 1) % 3])
    assert_answers(fitted, X)


def test_10_near_duplicates(estimator, small):
    X, y = small
    fitted = estimator.fit(np.r_[X, X + 1e-9], np.r_[y, y])
    assert_answers(fitted, X)


def test_11_12_too_few_rows(estimator, small):
    for n in (0, 1):
        with pytest.raises(ValueError, match="minimum of"):
            estimator.fit(small[0][:n], small[1][:n])


@pytest.mark.filterwarnings("ignore::mercer.NumericalWarning")
def test_13_one_sample_a_class(classifier):
    fitted = classifier.fit(np.eye(4), ["a", "b", "c", "d"])
    assert fitted.predict_proba(np.eye(4)).shape == (4, 4)
    assert np.isfinite(fitted.predict_proba(np.eye(4))).all()


def test_14_one_class_is_named(classifier, small):
    with pytest.raises(ValueError, match="y must hold at least two classes; got one class, 'only'"):
        classifier.fit(small[0], np.full(90, "only"))


def test_17_continuous_labels(classifier, small):
    with pytest.raises(ValueError, match="Unknown label type"):
        classifier.fit(small[0], small[0][:, 0])


@pytest.mark.parametrize("names", [np.array(["x", "y", "z"]), np.array([-3, 5, 40]), np.array([True, False, True])])
def test_18_labels_of_any_kind(classifier, small, names):
    X, y = small
    fitted = classifier.fit(X, names[y])
    assert fitted.classes_.tolist() == np.unique(names).tolist()
    assert set(fitted.predict(X)) <= set(names)


def test_19_column_of_labels(classifier, small):
    with pytest.warns(DataConversionWarning):
        classifier.fit(small[0], small[1][:, None])


def test_20_21_shapes(estimator, small):
    X, y = small
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator.fit(X, y[:-1])
    with pytest.raises(ValueError, match="Reshape your data"):
        estimator.fit(X[:, 0], y)
    with pytest.raises(ValueError, match="dim 3"):
        estimator.fit(X[:, None], y)


def test_22_23_wrong_width_and_not_fitted(estimator, small):
    X, y = small
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    with pytest.raises(NotFittedError):
        estimator.to_module()
    with pytest.raises(ValueError, match=r"X has 4 features, but .* is expecting 5 features"):
        estimator.fit(X, y).predict(X[:, :4])


def test_24_25_objects_complex_and_sparse(estimator, small):
    import scipy.sparse

    X, y = small
    estimator.fit(X.astype(object), y)
    with pytest.raises(ValueError, match="could not convert string"):
        estimator.fit(np.full((90, 2), "word", dtype=object), y)
    with pytest.raises(ValueError, match="Complex data not supported"):
        estimator.fit(X * 1j, y)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        estimator.fit(scipy.sparse.csr_matrix(X), y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.int64])
def test_26_27_28_other_dtypes_are_computed_in_float64(dtype, small):
    X, y = (small[0] * 20).astype(dtype), small[1]
    fitted = KernelNetworkClassifier(random_state=0).fit(X, y)
    wide = KernelNetworkClassifier(random_state=0).fit(X.astype(np.float64), y)
    np.testing.assert_array_equal(fitted.predict_proba(X), wide.predict_proba(X.astype(np.float64)))


def test_26_30_tensors_are_taken_and_detached(small):
    X, y = torch.from_numpy(small[0]).bfloat16().requires_grad_(), torch.from_numpy(small[1])
    fitted = KernelNetworkClassifier(random_state=0).fit(X, y)
    assert fitted.predict(X).shape == (90,) and X.grad is None


def test_29_layouts_give_the_same_and_input_stays(estimator, small):
    X, y = small
    expected = clone(estimator).fit(X, y).predict(X)
    views = {"fortran": np.asfortranarray(X), "stride": np.ascontiguousarray(X[::-1])[::-1], "wide": np.c_[X, X][:, :5]}
    frozen = X.copy()
    frozen.flags.writeable = False
    views["read-only"] = frozen
    for name, view in views.items():
        kept = view.copy()
        np.testing.assert_allclose(clone(estimator).fit(view, y).predict(view), expected, err_msg=name)
        np.testing.assert_array_equal(view, kept)


def test_32_more_landmarks_than_rows(small):
    fitted = KernelNetworkClassifier(landmarks=500, random_state=0)
    with pytest.warns(NumericalWarning, match="landmarks=500 is more than the 90 rows; 90 are used"):
        fitted.fit(*small)
    assert len(fitted.network_.layers[-1].anchors) == 90


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"solver": "backprop"}, "solver must be one of 'auto', 'spectral', 'closed_form'; got 'backprop'"),
        ({"solver": "closed_form", "rule": "mine"}, "rule must be one of 'leave_one_out', 'authors'; got 'mine'"),
        ({"max_layers": 0}, "max_layers must be a whole number of at least 1; got 0"),
        ({"landmarks": -1}, "landmarks must be a whole number of at least 1; got -1"),
        ({"kernel": "laplace"}, "kernel must be one of 'auto', 'gaussian'; got 'laplace'"),
        ({"features": 0}, "features must be a whole number of at least 1; got 0"),
    ],
)
def test_33_34_bad_arguments(small, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        KernelNetworkClassifier(**arguments).fit(*small)


def test_37_more_than_memory_is_refused(small, monkeypatch):
    monkeypatch.setattr("mercer.checks.available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match=r"GiB free\. Use solver='auto' or 'spectral'"):
        KernelNetworkClassifier(solver="closed_form").fit(*small)


@pytest.mark.parametrize("name", ["auto", "landmarks"])
def test_48_threads_agree(name, small):
    classifier, (X, y) = SOLVERS[name](), small
    one = clone(classifier).fit(X, y).predict_proba(X)
    torch.set_num_threads(2)
    try:
        two = clone(classifier).fit(X, y).predict_proba(X)
    finally:
        torch.set_num_threads(1)
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_imbalance_of_a_thousand_to_one(classifier, generator):
    X = torch.randn(1001, 2, generator=generator, dtype=torch.float64).numpy()
    y = np.zeros(1001, int)
    X[0], y[0] = (9.0, 9.0), 1
    fitted = classifier.set_params(max_layers=2).fit(X, y)
    assert np.isfinite(fitted.predict_proba(X)).all()
    assert (fitted.predict(X) == 0).mean() > 0.99


def test_equal_seeds_give_equal_networks(classifier, small):
    X, y = small
    np.testing.assert_array_equal(clone(classifier).fit(X, y).predict_proba(X), classifier.fit(X, y).predict_proba(X))


def test_standardize_keeps_a_constant_feature_finite():
    x = torch.tensor([[1.0, 5.0], [2.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(Standardize.of(x)(x), torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64))


def test_the_regressor_grows_like_the_classifier(small):
    X, _ = small
    target = X @ np.arange(X.shape[1]) + 3.0
    whole = KernelNetworkRegressor(landmarks=20, random_state=0).partial_fit(X[:60], target[:60])
    in_parts = clone(whole).partial_fit(X[:60], target[:60])
    whole.partial_fit(X[60:], target[60:])
    for start in range(60, len(X), 7):
        in_parts.partial_fit(X[start : start + 7], target[start : start + 7])
    np.testing.assert_allclose(in_parts.predict(X), whole.predict(X), rtol=1e-6)
    with pytest.raises(ValueError, match="expecting"):
        whole.partial_fit(X[:, :1], target)


def test_the_regressor_goes_on_after_fit(small):
    X, _ = small
    target = np.sin(X[:, 0] / X[:, 0].std())
    fitted = KernelNetworkRegressor(random_state=0).fit(X[:60], target[:60])
    before = fitted.predict(X[:60])
    fitted.partial_fit(X[:1], target[:1])  # next to nothing is new
    np.testing.assert_allclose(fitted.predict(X[:60]), before, atol=0.05 * target.std())
    far = fitted.score(X[60:], target[60:])
    assert fitted.partial_fit(X[60:], target[60:]).score(X[60:], target[60:]) >= far
