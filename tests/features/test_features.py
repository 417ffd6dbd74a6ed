"""One contract for every feature map: a new one joins the whole suite by adding one line to CASES."""

import copy
import io
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

import mercer
from mercer import features
from mercer.features import FeatureMap, Nystrom, PositiveRandomFeatures, RandomFourier
from mercer.kernels import RBF, FunctionKernel, Laplacian, Linear, Matern, Polynomial, Precomputed
from tests.features.cases import CASES, D, N, rows, seeded


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def test_no_public_map_escapes_the_contract():
    public = {
        name
        for name in features.__all__
        if isinstance(getattr(features, name), type) and issubclass(getattr(features, name), FeatureMap)
    }
    assert public - {"FeatureMap"} | {"SpectralInference"} == {type(make()).__name__ for make in CASES.values()}


def test_features_give_the_kernel_they_say(case):
    x, y = rows(), rows(5, seed=1)
    f = case().fit(x)
    assert f(x).shape == (N, f.m)
    torch.testing.assert_close(f.kernel(x, y), f(x) @ f(y).mT)
    gram = f.kernel(x)
    assert torch.linalg.eigvalsh(gram).min() > -1e-12 * gram.trace()
    exact = f.exact(x)
    expected = torch.linalg.matrix_norm(exact - gram) / torch.linalg.matrix_norm(exact)
    assert f.error(x) == pytest.approx(float(expected))
    assert f.error(x) < 1.0


def test_fit_is_repeatable_and_leaves_the_rows(case):
    x = rows()
    before = x.clone()
    torch.testing.assert_close(case().fit(x)(x), case().fit(x)(x), rtol=0, atol=0)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_fit_transform_equals_fit_then_transform(case):
    x = rows()
    signs = (case().fit(x)(x) * case().fit_transform(x)).sum(0).sign()
    torch.testing.assert_close(case().fit_transform(x) * signs, case().fit(x)(x))


def test_fit_on_a_loader_equals_fit_on_its_rows(case):
    x = rows()
    loader = DataLoader(TensorDataset(x, torch.arange(N)), batch_size=7)
    torch.testing.assert_close(case().fit(loader)(x), case().fit(x)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_of_the_data_wins(case, dtype):
    f = case().fit(rows(dtype=torch.float32))
    assert f(rows(dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_half_precision_and_integers_are_computed_in_float32(case, dtype):
    x = (rows() * 2).round().to(dtype)
    f = case()
    assert f.fit(x.float())(x).dtype == torch.float32
    assert case().fit(x)(x).isfinite().all()


def test_gradcheck(case):
    f = case().fit(rows())
    assert torch.autograd.gradcheck(f, (rows(4, seed=3).requires_grad_(),))


def test_state_dict_loads_into_a_fresh_map(case):
    x = rows()
    fitted, fresh = case().fit(x), case()
    fresh.load_state_dict(fitted.state_dict())
    torch.testing.assert_close(fresh(x), fitted(x))
    torch.testing.assert_close(copy.deepcopy(fitted)(x), fitted(x))


@pytest.mark.parametrize("fitted", [False, True])
def test_copies_pickles_and_torch_saves(case, fitted):
    x = rows()
    f = case().fit(x) if fitted else case()
    stream = io.BytesIO()
    torch.save(f, stream)
    stream.seek(0)
    for twin in (copy.deepcopy(f), pickle.loads(pickle.dumps(f)), torch.load(stream, weights_only=False)):  # noqa: S301
        twin = twin if fitted else twin.fit(x)
        torch.testing.assert_close(twin(x), f(x) if fitted else case().fit(x)(x))


def test_a_fitted_map_is_called_from_threads(case):
    x = rows()
    f = case().fit(x)
    parts = [x[i : i + 5] for i in range(30)]
    expected = [f(part) for part in parts]
    with ThreadPoolExecutor(3) as pool:
        for found, wanted in zip(pool.map(f, parts), expected, strict=True):
            torch.testing.assert_close(found, wanted)


def test_rows_of_tiny_numbers_are_standardised_before_they_are_rounded(case):
    x = 1e-60 * rows()  # 0 in float32, and so is its spread
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mercer.NumericalWarning)  # all rows look alike to RBF(0.5)
        assert case().fit(x)(x).isfinite().all()


def test_goes_into_a_scikit_learn_pipeline(case):
    x = rows()
    labels = (x[:, 0] > 0).long().numpy()
    twin = clone(case())
    assert type(twin) is type(case())
    pipeline = make_pipeline(StandardScaler(), twin, RidgeClassifier()).fit(x.numpy(), labels)
    scaled = torch.as_tensor(StandardScaler().fit_transform(x.numpy()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = clone(pipeline)
    assert again.get_params().keys() == pipeline.get_params().keys()
    found = pipeline[:-1].transform(x.numpy())
    assert isinstance(found, np.ndarray) and found.shape == (N, twin.m)
    np.testing.assert_allclose(np.abs(found), case().fit(scaled)(scaled).abs().numpy(), rtol=1e-6, atol=1e-8)
    assert pipeline.predict(x.numpy()).shape == (N,)
    np.testing.assert_allclose(np.abs(case().fit_transform(scaled.numpy())), np.abs(found), rtol=1e-6, atol=1e-8)
    name, value = next((n, v) for n, v in twin.get_params().items() if n in ("m", "k"))
    assert pipeline.set_params(**{f"{type(twin).__name__.lower()}__{name}": value}).named_steps is not None
    with pytest.raises(NotFittedError):
        twin.transform(x.numpy())
    with pytest.raises(ValueError, match="a parameter must be one of"):
        twin.set_params(wrong=1)


def test_saves_and_loads(case, tmp_path):
    x = rows()
    f = case().fit(x)
    mercer.save(f, tmp_path / "map")
    loaded = mercer.load(tmp_path / "map")
    assert type(loaded) is type(f)
    torch.testing.assert_close(loaded(x), f(x))


def test_compiles_and_exports(case):
    torch._dynamo.reset()
    x = rows()
    f = case().fit(x)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


def test_works_under_torch_func(case):
    x = rows()
    f = case().fit(x)
    torch.testing.assert_close(torch.func.vmap(lambda row: f(row[None])[0])(x), f(x))


def test_runs_on_the_meta_device(case):
    f = case().fit(rows()).to("meta")
    assert f(rows().to("meta")).shape == (N, f.m)


@pytest.mark.parametrize("layout", ["strided", "fortran"])
def test_layout_of_the_rows_does_not_matter(case, layout):
    x = rows()
    other = torch.stack((x, -x), dim=2)[:, :, 0] if layout == "strided" else x.mT.contiguous().mT
    torch.testing.assert_close(case().fit(other).kernel(other), case().fit(x).kernel(x))


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (torch.full((4, 3), torch.nan), "x must be finite; got NaN, first bad row 0"),
        (torch.tensor([[1.0, 2.0], [torch.inf, 0.0]]), "x must be finite; got infinity, first bad row 1"),
        (torch.full((4, 3), 1e30), "its squares overflow"),
        (torch.full((4, 3), 1e200, dtype=torch.float64), "its squares overflow"),
        (torch.ones(0, 3), "x must have at least one row"),
        (torch.ones(4, 0), "x must have at least one feature"),
        (torch.ones(4), r"Use x\[:, None\]"),
        (torch.ones(2, 3, 4), r"Use x.flatten\(1\)"),
    ],
    ids=["nan", "inf", "1e30", "1e200", "empty", "no_columns", "1d", "3d"],
)
def test_bad_rows_are_refused(case, bad, match):
    with pytest.raises(ValueError, match=match):
        case().fit(bad)


def test_use_before_fit_and_wrong_width_are_refused(case):
    with pytest.raises(NotFittedError, match=r"must be fitted first; got no fit. Call fit\(x\)"):
        case()(rows())
    with pytest.raises(NotFittedError, match="must be fitted first"):
        case().error(rows())
    with pytest.raises(ValueError, match="x has 2 features, expecting 3"):
        case().fit(rows())(rows()[:, :2])
    with pytest.raises(ValueError, match="must be on one device"):
        case().fit(rows())(rows().to("meta"))


def test_one_row_and_constant_rows_fit(case, request):
    name = request.node.callspec.params["case"]
    one, constant = rows(1), torch.ones(N, D, dtype=torch.float64)
    if name in ("eigen_rows", "eigen_landmarks", "eigen_neuralef", "eigen_distill", "spin"):
        for x in (one, constant):
            with pytest.warns(mercer.NumericalWarning, match="rank 1 on these rows, below k = 8|singular to rounding"):
                f = case().fit(x)
            torch.testing.assert_close(f.kernel(x), torch.ones(len(x), len(x), dtype=torch.float64))
        return
    if "nystrom" not in name:
        assert case().fit(one)(one).isfinite().all()
        return
    if "own" not in name:
        with pytest.warns(mercer.NumericalWarning, match="rank 1 below m = 8, the rows of x are 1; the other 7"):
            f = case().fit(one)
        torch.testing.assert_close(f.kernel(one), torch.ones(1, 1, dtype=torch.float64))
        with pytest.warns(mercer.NumericalWarning, match="rank 1 below m = 8; the other 7 features are 0"):
            f = case().fit(constant)
        torch.testing.assert_close(f.kernel(constant), torch.ones(N, N, dtype=torch.float64))
        assert f.rank == 1


# -- what each map promises ----------------------------------------------------------------------


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize(
    "kernel",
    [
        RBF(0.5),
        RBF(torch.tensor([0.2, 0.5, 1.0])),
        Laplacian(0.5),
        Matern(0.5),
        Matern(1.5),
        Matern(2.5, 2.0),
        2.0 * RBF() + Matern(),
        RBF(0.3) * Laplacian(0.3),
        RBF(0.2) ** 2,
    ],
    ids=["rbf", "ard", "laplacian", "matern12", "matern32", "matern52", "sum", "product", "power"],
)
def test_fourier_features_converge_to_the_kernel(kernel, orthogonal):
    """An average of 4,000 bounded terms: the standard error is at most k(0) / sqrt(4000) = 0.016 k(0)."""
    x = rows(12)
    f = RandomFourier(kernel, 8000, orthogonal=orthogonal, generator=seeded(4)).fit(x)
    bound = 4.5 * float(kernel.diag(x)[0]) / 4000**0.5
    assert (f.kernel(x) - kernel(x)).abs().max() < bound


def test_orthogonal_directions_lower_the_error():
    x = torch.randn(60, 16, generator=seeded(), dtype=torch.float64) / 4
    errors = {
        flag: sum(RandomFourier(RBF(), 32, orthogonal=flag, generator=seeded(s)).fit(x).error(x) for s in range(10))
        for flag in (False, True)
    }
    assert errors[True] < 0.9 * errors[False]


def test_fourier_features_have_the_norm_of_the_kernel():
    f = RandomFourier(2.0 * RBF(), 6, generator=seeded()).fit(rows())
    torch.testing.assert_close(f(rows()).square().sum(1), torch.full((N,), 2.0, dtype=torch.float64))


def test_fourier_features_refuse_kernels_without_a_spectral_density():
    with pytest.raises(TypeError, match="need a stationary kernel with a known spectral density; got Linear"):
        RandomFourier(Linear(), 4).fit(rows())


def test_positive_features_are_positive_and_converge():
    x = rows(6) * 0.6
    f = PositiveRandomFeatures(200_000, generator=seeded()).fit(x)
    assert (f(x) > 0).all()
    torch.testing.assert_close(f.kernel(x), (x @ x.mT).exp(), rtol=0.15, atol=0.05)


def test_nystrom_with_all_rows_is_exact():
    x = rows()
    f = Nystrom(Laplacian(), N, selection=x).fit(x)
    torch.testing.assert_close(f.kernel(x), Laplacian()(x))
    values = torch.linalg.eigvalsh(Laplacian()(x) / N).flip(0)
    torch.testing.assert_close(f.eigenvalues, values)
    assert float(f.residual) < 1e-12


@pytest.mark.parametrize("selection", ["uniform", "kmeans", "leverage"])
def test_nystrom_eigenfunctions_are_orthonormal_over_the_data(selection):
    x = rows(200)
    f = Nystrom(RBF(), 10, selection=selection, generator=seeded()).fit(x)
    psi = f.eigenfunctions(x)
    torch.testing.assert_close(psi.mT @ psi / 200, torch.eye(10, dtype=torch.float64), atol=1e-8, rtol=0)
    torch.testing.assert_close(f(x), psi * f.eigenvalues.sqrt())
    assert (f.eigenvalues.diff() <= 0).all()
    exact = torch.linalg.eigvalsh(RBF()(x) / 200).flip(0)[:10]
    assert (f.eigenvalues <= exact + 1e-12).all(), "a Nystrom operator lies below the exact one"
    trace = 1 - f.eigenvalues.sum()
    assert float(f.residual) == pytest.approx(float(trace))


def test_chosen_landmarks_beat_uniform_ones_on_clusters():
    centres = torch.randn(20, 5, generator=seeded(1), dtype=torch.float64) * 3
    sizes = [400] + [5] * 19  # one crowd and nineteen small clusters
    x = torch.cat([c + 0.1 * torch.randn(s, 5, generator=seeded(2)) for c, s in zip(centres, sizes, strict=True)])

    def error(selection: str) -> float:
        maps = (Nystrom(RBF(0.5), 25, selection=selection, generator=seeded(s)).fit(x) for s in range(5))
        return sum(float(f.residual) for f in maps)

    assert error("leverage") < 0.7 * error("uniform")
    assert error("kmeans") < 0.6 * error("uniform")


def test_nystrom_finds_the_rank_of_the_kernel():
    x = rows(50)
    with pytest.warns(mercer.NumericalWarning, match="rank 3 below m = 8; the other 5 features are 0"):
        f = Nystrom(Linear(), 8, generator=seeded()).fit(x)
    assert f.rank == 3
    assert (f.eigenvalues[3:] == 0).all() and (f(x)[:, 3:] == 0).all() and (f.eigenfunctions(x)[:, 3:] == 0).all()
    torch.testing.assert_close(f.kernel(x), x @ x.mT)


def test_nystrom_with_more_landmarks_than_rows_uses_all_rows():
    x = rows(5)
    with pytest.warns(mercer.NumericalWarning, match="rank 5 below m = 9, the rows of x are 5"):
        f = Nystrom(RBF(), 9, generator=seeded()).fit(x)
    assert f(x).shape == (5, 9)
    torch.testing.assert_close(f.kernel(x), RBF()(x))


def test_nystrom_on_a_precomputed_gram():
    x = rows()
    gram, index = RBF()(x), torch.arange(N)
    for selection in ("uniform", "leverage"):
        f = Nystrom(Precomputed(gram), 10, selection=selection, generator=seeded()).fit(index)
        direct = Nystrom(RBF(), 10, selection=x[f.landmarks]).fit(x)
        torch.testing.assert_close(f.kernel(index), direct.kernel(x))
    with pytest.raises(ValueError, match="needs rows with coordinates"):
        Nystrom(Precomputed(gram), 10, selection="kmeans").fit(index)
    with pytest.raises(ValueError, match=rf"Nystrom: x must hold indices in 0\.\.{N - 1}, .*; got -1\.\.{N - 2}"):
        Nystrom(2.0 * Precomputed(gram), 10).fit(index - 1)


def test_nystrom_with_duplicated_rows_has_finite_gradients():
    x = rows(10).repeat(3, 1)
    with pytest.warns(mercer.NumericalWarning, match="below m = 20"):
        f = Nystrom(RBF(), 20, generator=seeded()).fit(x)
    z = x.clone().requires_grad_()
    f(z).sum().backward()
    assert z.grad.isfinite().all()


def test_nystrom_warns_once_of_an_indefinite_kernel():
    kernel = FunctionKernel(lambda x, y: torch.cdist(x, y))
    with pytest.warns(mercer.NumericalWarning) as caught:
        f = Nystrom(kernel, 10, generator=seeded()).fit(rows())
    assert sum("indefinite on the landmarks, least eigenvalue -" in str(w.message) for w in caught) == 1
    assert f(rows()).isfinite().all()


def test_nystrom_stays_accurate_in_float32():
    x = rows(300, dtype=torch.float32)
    with pytest.warns(mercer.NumericalWarning, match="below m = 100"):
        f = Nystrom(RBF(0.05), 100, generator=seeded()).fit(x)
    assert f.error(x) < 5e-4  # without the cut-off it is 2e-3


def test_sentences_of_bad_arguments():
    with pytest.raises(ValueError, match="Nystrom: m must be a whole number of at least 1; got 0"):
        Nystrom(RBF(), 0)
    with pytest.raises(ValueError, match="selection must be one of 'uniform', 'kmeans', 'leverage'; got 'random'"):
        Nystrom(RBF(), 4, selection="random")
    with pytest.raises(ValueError, match="m must be 3, the rows of selection; got 4"):
        Nystrom(RBF(), 4, selection=torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"RandomFourier: m must be a whole number of at least 1; got 2\.5"):
        RandomFourier(RBF(), 2.5)
    with pytest.raises(TypeError, match=r"Nystrom: kernel must be a kernel of mercer.kernels; got str"):
        Nystrom("rbf", 3)
    with pytest.raises(ValueError, match=r"Polynomial: degree must be"):
        Nystrom(Polynomial(-1), 3)
