"""scikit-learn's manners of machines and maps: its own checks, columns by name, searches, routing, output as frames."""

import copy

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import mercer
from mercer import features
from mercer.features import (
    FeatureMap,
    NeuralEigenfunctions,
    Nystrom,
    PositiveRandomFeatures,
    RandomFourier,
)
from mercer.kernels import RBF, Linear, Matern, Precomputed
from mercer.layerwise import KernelNetworkRegressor
from mercer.machines import KernelRidge, StackedRidge
from mercer_papers.rivals import SpectralInference

MACHINES = {
    "exact": lambda: KernelRidge(RBF(0.1), penalty=0.1, solver="exact"),
    "landmarks": lambda: KernelRidge(RBF(0.1), penalty=0.1, solver="landmarks", landmarks=100, random_state=0),
    "eigenpro": lambda: KernelRidge(RBF(0.1), penalty=3.0, solver="eigenpro", random_state=0),
    "chosen": lambda: KernelRidge(random_state=0),
}
MAPS = {
    "random_fourier": lambda: RandomFourier(RBF(0.1), 8, generator=0),
    "positive": lambda: PositiveRandomFeatures(8, generator=0),
    "nystrom": lambda: Nystrom(RBF(0.1), 5, generator=0),
    "eigenfunctions": lambda: NeuralEigenfunctions(RBF(0.1), 3, generator=0),
    "spin": lambda: SpectralInference(RBF(0.1), 2, steps=2, generator=0),
}
WEIGHTS = "check_sample_weight_equivalence_on_dense_data"


def expected_failures(estimator):
    """The checks that cannot hold, with the reason."""
    if isinstance(estimator, KernelRidge):
        copies = {
            WEIGHTS: "Leave-one-out leaves out one of two equal rows, so it may choose another kernel and penalty."
        }
        return copies if estimator.penalty == "loo" else {}
    reasons = {
        "check_no_attributes_set_in_init": "A torch module has its buffers from the start.",
        "check_do_not_raise_errors_in_init_or_set_params": "A torch module checks its arguments at once.",
    }
    if isinstance(estimator, SpectralInference):
        reasons["check_dont_overwrite_parameters"] = "fit states the size of its repair in jitter."
    return reasons


@pytest.mark.filterwarnings("ignore::mercer.NumericalWarning")  # fewer rows than landmarks or features
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:.*occurred during set_params")  # of arguments that are refused
@parametrize_with_checks(
    [make() for make in [*MACHINES.values(), *MAPS.values()]], expected_failed_checks=expected_failures
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_no_public_map_escapes_the_checks():
    public = {value for name in features.__all__ if isinstance(value := getattr(features, name), type)}
    assert {kind for kind in public if issubclass(kind, FeatureMap)} - {FeatureMap} | {SpectralInference} == {
        type(make()) for make in MAPS.values()
    }


# --- columns by name --------------------------------------------------------------------------------------------------


def frame(n=40):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    return table, np.sin(2 * table["a"].to_numpy()) + table["b"].to_numpy()


ESTIMATORS = {**MACHINES, **MAPS, "network": lambda: KernelNetworkRegressor(random_state=0), "stack": StackedRidge}


def answer(fitted, x):
    return fitted.transform(x) if hasattr(fitted, "transform") else fitted.predict(x)


@pytest.mark.filterwarnings("ignore::mercer.NumericalWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_columns_are_checked_by_name(name, tmp_path):
    table, y = frame()
    fitted = ESTIMATORS[name]().fit(table, y)
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"] and fitted.n_features_in_ == 3
    mercer.save(fitted, tmp_path / "fitted")
    for one in (fitted, mercer.load(tmp_path / "fitted")):
        assert isinstance(answer(one, table), np.ndarray)
        with pytest.raises(ValueError, match="must be in the same order"):
            answer(one, table[["c", "a", "b"]])
        with pytest.raises(ValueError, match="Feature names unseen at fit time:\n- z"):
            answer(one, table.rename(columns={"b": "z"}))
        with pytest.warns(UserWarning, match="valid"), pytest.raises(ValueError, match="X has 2 features, but"):
            answer(one, table.to_numpy()[:, :2])
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            np.testing.assert_allclose(answer(one, table.to_numpy()), answer(one, table))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_cannot_be_answered_is_said_as_scikit_learn_does(name):
    table, y = frame()
    with pytest.raises(NotFittedError):
        answer(ESTIMATORS[name](), table)
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        ESTIMATORS[name]().fit(table[:0], y[:0])
    with pytest.raises(ValueError, match="Complex data not supported"):
        ESTIMATORS[name]().fit(table.to_numpy() + 1j, y)


@pytest.mark.parametrize("name", ["exact", "random_fourier", "nystrom"])
def test_integer_column_names_and_tensors_have_no_names(name):
    table, y = frame()
    for x in (table.set_axis([0, 1, 2], axis=1), torch.tensor(table.to_numpy())):
        fitted = ESTIMATORS[name]().fit(table, y).fit(x, y)
        assert not hasattr(fitted, "feature_names_in_") and fitted.n_features_in_ == 3
        assert isinstance(answer(fitted, x), type(x) if isinstance(x, torch.Tensor) else np.ndarray)


def test_indices_of_a_gram_matrix_may_be_arrays():
    table, y = frame()
    gram = RBF(0.1)(torch.tensor(table.to_numpy()))
    fitted = KernelRidge(Precomputed(gram), penalty=0.1).fit(np.arange(40), y)
    expected = MACHINES["exact"]().fit(table, y).predict(table[:5])
    np.testing.assert_allclose(fitted.predict(np.arange(5)), expected, rtol=1e-9)


# --- randomness -------------------------------------------------------------------------------------------------------


def test_no_seed_is_fresh_randomness():
    table, y = frame()
    first, second = (
        KernelRidge(RBF(0.1), solver="landmarks", landmarks=4, random_state=None).fit(table, y).predict(table)
        for _ in range(2)
    )
    assert not np.allclose(first, second)
    first, second = (RandomFourier(RBF(0.1), 8).fit_transform(table) for _ in range(2))
    assert not np.allclose(first, second)


def test_a_seed_gives_the_same_features_at_every_fit():
    table, _ = frame()
    mapping = RandomFourier(RBF(0.1), 8, generator=3)
    np.testing.assert_array_equal(mapping.fit_transform(table), mapping.fit_transform(table))


# --- searches, routing, output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["machine", "map"])
def test_a_search_reaches_the_arguments_of_the_kernel(step):
    table, y = frame(60)
    if step == "machine":
        model, name = KernelRidge(RBF(1.0), penalty=0.1), "kernel__gamma"
    else:
        model = make_pipeline(Nystrom(RBF(1.0), 8, generator=0), KernelRidge(Linear(), penalty=0.1))
        name = "nystrom__kernel__gamma"
    search = GridSearchCV(model, {name: [1e-2, 0.3]}, cv=2).fit(table, y)
    assert search.best_params_ == {name: 0.3}
    assert model.get_params()[name] == 1.0


def test_parameters_of_nested_kernels_are_set_and_read():
    kernel = 2.0 * RBF(0.5, learnable=True) + Matern(1.5)
    machine = KernelRidge(kernel, penalty=0.1)
    fitted = clone(machine).fit(*frame())
    before = fitted.predict(frame()[0])
    fitted.set_params(kernel__left__kernel__gamma=3.0, kernel__right__lengthscale=2.0)
    assert fitted.get_params()["kernel__left__kernel__gamma"] == pytest.approx(3.0)
    assert fitted.get_params()["kernel__right__lengthscale"] == 2.0
    np.testing.assert_array_equal(fitted.predict(frame()[0]), before)  # learned with the old kernel
    assert kernel.get_params()["left__kernel__gamma"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="RBF: a parameter must be one of 'gamma', 'learnable'; got 'width'"):
        RBF().set_params(width=1.0)


def test_a_clone_has_the_values_that_a_kernel_learned():
    kernel = RBF(0.5, learnable=True)
    with torch.no_grad():
        kernel.gamma.log.fill_(1.0)
    for copied in (clone(kernel), clone(KernelRidge(kernel)).kernel, copy.deepcopy(kernel)):
        assert float(copied.gamma) == pytest.approx(np.e)
    assert kernel.get_params()["gamma"] == pytest.approx(np.e)


def test_weights_are_routed_to_the_machine():
    table, y = frame()
    weight = np.arange(40.0)
    with sklearn.config_context(enable_metadata_routing=True):
        machine = KernelRidge(RBF(0.1), penalty=0.1).set_fit_request(sample_weight=True)
        pipeline = make_pipeline(Nystrom(RBF(0.1), 8, generator=0), machine).fit(table, y, sample_weight=weight)
        assert set(machine.get_metadata_routing().fit.requests) == {"sample_weight"}
        assert Nystrom(RBF(), 2).get_metadata_routing().fit.requests == {}
    features_of = Nystrom(RBF(0.1), 8, generator=0).fit_transform(table)
    alone = KernelRidge(RBF(0.1), penalty=0.1).fit(features_of, y, weight)
    np.testing.assert_allclose(pipeline.predict(table), alone.predict(features_of))


def test_features_have_names_and_come_as_frames():
    table, _ = frame()
    mapping = Nystrom(RBF(0.1), 4, generator=0).set_output(transform="pandas").fit(table)
    out = mapping.transform(table)
    assert out.columns.tolist() == mapping.get_feature_names_out().tolist() == [f"nystrom{i}" for i in range(4)]
    assert out.index.equals(table.index)
