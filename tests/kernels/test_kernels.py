"""One contract for every kernel: a new one joins the whole suite by adding one line to CASES."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.metrics import pairwise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mercer
from mercer import kernels
from mercer.kernels import (
    NNGP,
    NTK,
    RBF,
    ArcCosine,
    Constant,
    ConvNNGP,
    Cosine,
    EmpiricalNTK,
    FunctionKernel,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    MonteCarloNNGP,
    Periodic,
    Polynomial,
    Precomputed,
    RationalQuadratic,
    ReLUGram,
    Scaled,
    Trajectory,
)
from mercer.kernels.empirical_ntk import METHODS
from tests.kernels.cases import (
    CASES,
    PICTURES,
    D,
    N,
)


def networks(count: int) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [network() for _ in range(count)]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 2, dtype=torch.float64))


def empirical(**options) -> EmpiricalNTK:
    kernel = EmpiricalNTK(networks(1)[0], generator=torch.Generator().manual_seed(0), **options)
    return kernel.fit(torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


MODELS = {  # kernels that hold networks: their rows are the networks'
    "ntk_exact": lambda: empirical(),
    "ntk_one_output": lambda: empirical(outputs=1, block=3),
    "ntk_jvp": lambda: empirical(method="jvp", samples=6),
    "ntk_finite_difference": lambda: empirical(method="finite_difference", samples=6, epsilon=1e-3),
    "ntk_low_rank": lambda: empirical(method="low_rank", samples=5),
    "trajectory": lambda: Trajectory(networks(3)),
    "monte_carlo": lambda: MonteCarloNNGP(network, samples=4, generator=torch.Generator().manual_seed(0)),
}
ALL = CASES | MODELS | PICTURES


@pytest.fixture(params=ALL, ids=str)
def kernel(request) -> Kernel:
    return ALL[request.param]()


@pytest.fixture(params=CASES | PICTURES, ids=str)
def plain_kernel(request) -> Kernel:
    """Those whose rows are numbers to any network."""
    return ALL[request.param]()


def rows(kernel: Kernel, n: int = N, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(kernel, Precomputed):
        return torch.randperm(N, generator=generator)[:n]
    shape = (1, 2, 2) if isinstance(kernel, ConvNNGP) or getattr(kernel, "kind", "") == "nngp" else (D,)
    return torch.randn(n, *shape, generator=generator, dtype=dtype)


def randomness(kernel: Kernel) -> str:
    # MonteCarloNNGP draws its networks in the call: vmap must be told that all rows see the same ones.
    return "same" if isinstance(kernel, MonteCarloNNGP) else "error"


def skip_indices(kernel: Kernel) -> None:
    if isinstance(kernel, Precomputed):
        pytest.skip("its rows are indices: they have neither dtype nor gradient")


def test_no_public_kernel_escapes_the_contract():
    public = {
        name
        for name in kernels.__all__
        if isinstance(getattr(kernels, name), type) and issubclass(getattr(kernels, name), Kernel)
    }
    made = {name: make() for name, make in ALL.items()}
    assert public - {"Kernel", "NetworkKernel"} | {"InfiniteWidth"} == {
        type(kernel).__name__ for kernel in made.values()
    }
    assert {kernel.method for kernel in made.values() if isinstance(kernel, EmpiricalNTK)} == set(METHODS)


def test_gram_is_symmetric_and_psd(kernel):
    gram = kernel(rows(kernel)).detach()
    torch.testing.assert_close(gram, gram.mT)
    assert torch.linalg.eigvalsh(gram).min() > -1e-12 * gram.trace()


def test_gram_of_two_sets_is_a_block_of_the_joint_gram(kernel):
    x = rows(kernel)
    torch.testing.assert_close(kernel(x[:4], x[4:]), kernel(x)[:4, 4:])


def test_diag_is_the_diagonal(kernel):
    x = rows(kernel)
    torch.testing.assert_close(kernel.diag(x), kernel(x).diagonal())
    torch.testing.assert_close(Kernel.gram_diag(kernel, kernel.prepare("x", x)), kernel.diag(x))


def test_copies_of_a_row_have_the_kernel_of_the_row_with_itself(kernel):
    x = rows(kernel, dtype=torch.float32)
    shifted = x if isinstance(kernel, Precomputed) else x + 100
    gram = kernel(shifted, shifted.clone())
    torch.testing.assert_close(gram.diagonal(), kernel.diag(shifted), rtol=1e-5, atol=1e-6)


def test_dtype_of_the_data_wins(kernel):
    skip_indices(kernel)
    for dtype in (torch.float32, torch.float64):
        x = rows(kernel, dtype=dtype)
        assert kernel(x).dtype == kernel.diag(x).dtype == kernel.matmul(x, x, x.flatten(1)[:, 0]).dtype == dtype


def test_half_precision_and_integers_are_computed_in_float32(kernel):
    skip_indices(kernel)
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.int64):
        x = (rows(kernel) * 3).round().to(dtype)
        gram = kernel(x)
        assert gram.dtype == torch.float32
        torch.testing.assert_close(gram, kernel(x.float()))


def test_mixed_precision_is_promoted(kernel):
    skip_indices(kernel)
    x = rows(kernel)
    assert kernel(x, x.float()).dtype == torch.float64


def test_derivatives_of_every_mode_equal_differences(kernel, request):
    skip_indices(kernel)
    name = request.node.callspec.params["kernel"]
    tolerance = {"atol": 1e-3 if name == "ntk_finite_difference" else 1e-5}  # its differences err by the step's size
    x = rows(kernel, 3).requires_grad_()
    y = rows(kernel, 2, seed=1).requires_grad_()
    batched = name != "monte_carlo"  # vmap must be told what to do with the draws of its networks
    options = {"check_forward_ad": True, "check_batched_grad": batched, "check_batched_forward_grad": batched}
    assert torch.autograd.gradcheck(kernel, (x, y), fast_mode=True, **options, **tolerance)
    if kernel.diag(x).requires_grad:
        assert torch.autograd.gradcheck(kernel.diag, (x,), check_forward_ad=True, fast_mode=True, **tolerance)


def test_jvp_equals_a_difference_quotient(kernel):
    skip_indices(kernel)
    x, y, v = rows(kernel, 4), rows(kernel, 3, seed=1), rows(kernel, 4, seed=2)
    _, forward = torch.func.jvp(lambda z: kernel(z, y), (x,), (v,))
    quotient = (kernel(x + 1e-5 * v, y) - kernel(x - 1e-5 * v, y)) / 2e-5
    torch.testing.assert_close(forward, quotient, rtol=1e-4, atol=1e-6)


def test_second_derivatives_and_vectorised_jacobians(kernel):
    skip_indices(kernel)
    x, y = rows(kernel, 2), rows(kernel, 2, seed=1)
    total = lambda z: kernel(z, y).sin().sum()  # noqa: E731
    if not isinstance(kernel, MonteCarloNNGP):
        vectorised = torch.autograd.functional.jacobian(lambda z: kernel(z, y), x, vectorize=True)
        torch.testing.assert_close(vectorised, torch.autograd.functional.jacobian(lambda z: kernel(z, y), x))
        hessian = torch.func.hessian(total)(x)
        torch.testing.assert_close(hessian, torch.autograd.functional.hessian(total, x), rtol=1e-5, atol=1e-8)
    step = rows(kernel, 2, seed=2)

    def slope(z):
        z = z.detach().requires_grad_()
        return torch.autograd.grad(total(z) + 0 * z.sum(), z)[0]

    quotient = (slope(x + 1e-5 * step) - slope(x - 1e-5 * step)) / 2e-5
    z = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(total(z) + 0 * z.square().sum(), z, create_graph=True)
    (along,) = torch.autograd.grad((first * step).sum(), z)
    torch.testing.assert_close(along, quotient, rtol=1e-3, atol=1e-5)


def test_gradcheck_of_hyper_parameters(kernel):
    kernel = kernel.double()
    names = [name for name, _ in kernel.named_parameters()]
    if not names:
        pytest.skip("no hyper-parameter is learned")
    x = rows(kernel, 4)
    values = tuple(p.detach().clone().requires_grad_() for p in kernel.parameters())

    def gram(*parameters):
        return torch.func.functional_call(kernel, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(gram, values)


def test_gradients_are_finite_at_duplicates_and_zero_rows(kernel):
    skip_indices(kernel)
    x = rows(kernel, 4)
    x[1] = x[0]
    x[3] = 0
    x.requires_grad_()
    (kernel(x).sum() + kernel(x, x.detach().clone()).sum() + 0 * x.sum()).backward()
    assert torch.isfinite(x.grad).all()


def test_matmul_equals_the_dense_product(kernel):
    x, y = rows(kernel), rows(kernel, 5, seed=1)
    v = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for block in (None, 1, 3, 100):
        torch.testing.assert_close(kernel.matmul(x, y, v, block=block), kernel(x, y) @ v)
    torch.testing.assert_close(kernel.matmul(x, None, kernel(x)[0]), kernel(x) @ kernel(x)[0])


def test_matmul_has_the_dense_gradient(kernel):
    skip_indices(kernel)
    x = rows(kernel).requires_grad_()
    v = torch.ones(N, dtype=torch.float64)
    (dense,) = torch.autograd.grad((kernel(x) @ v).square().sum() + 0 * x.sum(), x)
    (blocked,) = torch.autograd.grad(kernel.matmul(x, None, v, block=2).square().sum() + 0 * x.sum(), x)
    torch.testing.assert_close(blocked, dense)


def test_matmul_works_under_torch_func(kernel):
    skip_indices(kernel)
    x, v = rows(kernel), torch.ones(N, dtype=torch.float64)
    blocked = torch.func.grad(lambda t: kernel.matmul(t, None, v, block=2).sum())(x)
    torch.testing.assert_close(blocked, torch.func.grad(lambda t: (kernel(t) @ v).sum())(x))
    product = lambda u: kernel.matmul(x, None, u, block=2)  # noqa: E731
    many = torch.func.vmap(product, randomness=randomness(kernel))(torch.stack((v, 2 * v)))
    torch.testing.assert_close(many[1], 2 * many[0])


def test_state_dict_loads_into_a_fresh_kernel(kernel, request):
    fresh = ALL[request.node.callspec.params["kernel"]]()
    for parameter in kernel.parameters():
        nn.init.constant_(parameter, 0.3)
    fresh.load_state_dict(kernel.state_dict())
    x = rows(kernel)
    torch.testing.assert_close(fresh(x), kernel(x))
    torch.testing.assert_close(copy.deepcopy(kernel)(x), kernel(x))


COMPILED = (  # one of each way to compute; learned and scaled ones are the same graph with other numbers
    "rbf_ard", "laplacian", "matern_three_halves", "periodic", "arc_cosine_2", "precomputed", "relu_gram_of_rbf",
    "ntk_erf", "infinite_width", "radial_series_gegenbauer", "normalized", "conv_ntk_mean", "trajectory",
)  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiles(name):
    torch._dynamo.reset()
    kernel = ALL[name]()
    networks = isinstance(kernel, kernels.NetworkKernel)  # a private copy of each is made outside the graph
    compiled = torch.compile(kernel, fullgraph=not networks, backend="aot_eager")
    x = rows(kernel)
    torch.testing.assert_close(compiled(x), kernel(x))


def test_works_under_torch_func(kernel):
    x = rows(kernel)
    one = lambda row: kernel(row.reshape(1, *x.shape[1:]), x)[0]  # noqa: E731
    entry = torch.func.vmap(one, randomness=randomness(kernel))
    torch.testing.assert_close(entry(x), kernel(x))
    skip_indices(kernel)
    jacobian = torch.func.jacrev(lambda rows: kernel(rows).sum())(x)
    rows_ = x.clone().requires_grad_()
    torch.testing.assert_close(jacobian, torch.autograd.grad(kernel(rows_).sum() + 0 * rows_.sum(), rows_)[0])


def test_runs_on_the_meta_device(plain_kernel):
    x = rows(plain_kernel).to("meta")
    assert plain_kernel.to("meta")(x).shape == (N, N)


def test_numpy_equals_torch_and_leaves_the_input(kernel):
    x = rows(kernel).numpy()
    before = x.copy()
    x.flags.writeable = False
    gram = kernel.numpy(x, x[:2])
    assert isinstance(gram, np.ndarray) and gram.shape == (N, 2)
    np.testing.assert_allclose(gram, kernel(torch.as_tensor(before)).detach().numpy()[:, :2])
    np.testing.assert_array_equal(x, before)


def test_layout_of_the_rows_does_not_matter(kernel):
    skip_indices(kernel)
    x = rows(kernel)
    strided = torch.stack((x, -x), dim=2)[:, :, 0]
    fortran = x.mT.contiguous().mT
    torch.testing.assert_close(kernel(strided), kernel(x))
    torch.testing.assert_close(kernel(fortran), kernel(x))
    np.testing.assert_allclose(kernel.numpy(x.numpy()[::-1]), kernel(x.flip(0)).detach().numpy())


def test_empty_sets_give_empty_grams(kernel):
    x = rows(kernel)
    assert kernel(x[:0], x).shape == (0, N)
    assert kernel.matmul(x[:0], x, torch.ones(N, dtype=torch.float64)).shape == (0,)


def test_wrong_shapes_are_refused_with_a_hint(kernel):
    x = rows(kernel)
    any_shape = isinstance(kernel, kernels.NetworkKernel | Constant)
    if not any_shape:
        with pytest.raises(ValueError, match="must have shape"):
            kernel(x.reshape(1, -1, 1).double() if x.is_floating_point() else x.reshape(1, -1, 1))
    if x.is_floating_point():
        if x.ndim == 2 and not any_shape:
            with pytest.raises(ValueError, match=r"must have shape \(n, d\); got \(7,\). Use x\[:, None\]"):
                kernel(x[:, 0])
        with pytest.raises(ValueError, match="rows of one shape"):
            kernel(x, x[..., :1])
        if not isinstance(kernel, Constant):
            with pytest.raises(ValueError, match=r"x must have at least one (feature|pixel); got \(7, "):
                kernel(x[..., :0])
            with pytest.raises(TypeError, match="must be dense"):
                kernel(x.to_sparse())
        with pytest.raises(TypeError, match="must be real"):
            kernel(x.to(torch.complex64))
        with pytest.raises(ValueError, match=r"must be on one device; got (cpu and meta|meta and cpu)"):
            kernel(x, x.to("meta"))
    with pytest.raises(ValueError, match="v must have shape"):
        kernel.matmul(x, x, torch.ones(N + 1))
    with pytest.raises(TypeError, match=r"matmul: v must be real; got torch.complex64"):
        kernel.matmul(x, x, torch.ones(N, dtype=torch.complex64))


def test_copies_and_files_of_a_kernel_are_the_kernel(kernel, request):
    x = rows(kernel)
    expected = kernel(x).detach()
    file = io.BytesIO()
    torch.save(kernel, file)
    file.seek(0)
    unpickled = pickle.loads(pickle.dumps(kernel))  # noqa: S301
    for other in (copy.deepcopy(kernel), unpickled, torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(x).detach(), expected)


def test_several_threads_get_the_right_answers(kernel):
    x, v = rows(kernel), torch.ones(N, dtype=torch.float64)
    expected, product = kernel(x).detach(), kernel.matmul(x, None, v).detach()

    def work(_):
        return kernel(x).detach(), kernel.matmul(x, None, v, block=3).detach()

    with ThreadPoolExecutor(3) as pool:
        for gram, by_blocks in pool.map(work, range(6)):
            torch.testing.assert_close(gram, expected)
            torch.testing.assert_close(by_blocks, product)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RBF(0.7), lambda x, y: pairwise.rbf_kernel(x, y, gamma=0.7)),
        (Laplacian(0.6), lambda x, y: pairwise.laplacian_kernel(x, y, gamma=0.6)),
        (
            Polynomial(3, 0.5, 1.0),
            lambda x, y: pairwise.polynomial_kernel(x, y, degree=3, gamma=0.5, coef0=1.0),
        ),
        (Cosine(), pairwise.cosine_similarity),
        (Linear(), pairwise.linear_kernel),
    ],
    ids=["rbf", "laplacian", "polynomial", "cosine", "linear"],
)
def test_classic_kernels_equal_scikit_learn(ours, theirs):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 9)), rng.normal(size=(10, 9))
    np.testing.assert_allclose(ours.numpy(x, y), theirs(x, y), atol=1e-13)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_equals_scikit_learn(nu):
    from sklearn.gaussian_process.kernels import Matern as Theirs

    x = np.random.default_rng(0).normal(size=(20, 9))
    np.testing.assert_allclose(Matern(nu, 1.7).numpy(x), Theirs(1.7, nu=nu)(x), atol=1e-12)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_the_moment_of_rectified_projections(order, generator):
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    w = torch.randn(3, 400_000, generator=generator, dtype=torch.float64)
    features = (x @ w > 0) * (x @ w) ** order
    products = features[:, None] * features[None]
    error = 2 * products.std(-1) / w.shape[1] ** 0.5
    assert ((2 * products.mean(-1) - ArcCosine(order)(x)).abs() < 4 * error).all()


def test_kernels_work_in_scikit_learn():
    from sklearn.datasets import load_wine
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    x, y = load_wine(return_X_y=True)
    ours = make_pipeline(StandardScaler(), SVC(kernel=RBF(0.05).numpy)).fit(x, y)
    theirs = make_pipeline(StandardScaler(), SVC(gamma=0.05)).fit(x, y)
    np.testing.assert_array_equal(ours.predict(x), theirs.predict(x))


def test_bandwidth_by_the_median(generator):
    x = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    median = torch.pdist(x).square().median()
    assert float(RBF.from_data(x).gamma) == pytest.approx(1 / float(median))
    assert float(RBF.from_data(x * 1e-10).gamma) == pytest.approx(1e20 / float(median), rel=1e-6)


def test_bandwidth_of_a_loader_and_of_an_array(generator):
    x = torch.randn(20, 4, generator=generator)
    expected = float(RBF.from_data(x).gamma)
    assert float(RBF.from_data(DataLoader(TensorDataset(x), batch_size=6)).gamma) == expected
    assert float(RBF.from_data(x.numpy()).gamma) == expected


def test_one_gamma_for_each_feature_needs_as_many_features():
    with pytest.raises(ValueError, match=r"RBF: x must have a feature for each of the 3 values of gamma; got \(2, 1\)"):
        RBF(torch.ones(3))(torch.ones(2, 1))


def test_bandwidth_of_constant_rows_warns():
    with pytest.warns(mercer.NumericalWarning, match="all rows of x are equal"):
        assert float(RBF.from_data(torch.ones(5, 2)).gamma) == 1.0


def test_bandwidth_of_denormal_rows_is_held_at_its_largest(generator):
    x = torch.randn(5, 2, generator=generator) * 1e-40
    with pytest.warns(mercer.NumericalWarning, match="gamma is held at its largest"):
        kernel = RBF.from_data(x)
    assert torch.isfinite(kernel(x)).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_bandwidth_refuses_what_it_cannot_square(bad):
    x = torch.ones(5, 2)
    x[3, 1] = bad
    with pytest.raises(ValueError, match=r"RBF.from_data: x must"):
        RBF.from_data(x)


def test_sentences_of_bad_hyper_parameters():
    for make, match in [
        (lambda: RBF(-2.0), r"RBF: gamma must be positive; got -2.0\."),
        (lambda: RBF(torch.tensor([1.0, -1.0])), r"RBF: gamma must be positive; got \[1.0, -1.0\]\."),
        (lambda: Laplacian(0.0), r"Laplacian: gamma must be positive"),
        (lambda: Matern(1.0), r"Matern: nu must be one of 0.5, 1.5, 2.5; got 1.0\."),
        (lambda: Matern(torch.ones(2)), r"Matern: nu must be one of 0.5, 1.5, 2.5; got tensor"),
        (lambda: Matern(lengthscale=0), r"Matern: lengthscale must be positive"),
        (lambda: Polynomial(0), r"Polynomial: degree must be a whole number of at least 1; got 0\."),
        (lambda: Polynomial(coef0=-1), r"Polynomial: coef0 must be 0 or more"),
        (lambda: ArcCosine(3), r"ArcCosine: order must be in 0..2; got 3\."),
        (lambda: RBF() ** 0, r"Power: exponent must be a whole number"),
        (lambda: -1.0 * RBF(), r"Scaled: scale must be positive; got -1.0\."),
        (lambda: Precomputed(torch.ones(2, 3)), r"gram must have shape \(n, n\), n > 0; got \(2, 3\)"),
        (
            lambda: Precomputed(torch.tensor([[1.0, 0.5], [0.1, 1.0]])),
            r"must be symmetric; got a difference of 4.0e-01",
        ),
        (
            lambda: Precomputed(torch.full((2, 2), torch.nan)),
            r"gram must be finite; got NaN, first bad row 0",
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            make()
    with pytest.warns(mercer.NumericalWarning, match="indefinite, with least eigenvalue -1.00e\\+00"):
        Precomputed(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(TypeError, match="whole-number indices"):
        Precomputed(torch.eye(3))(torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"must return a tensor of shape \(2, 2\); got \(2, 1\)"):
        FunctionKernel(lambda x, y: x)(torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"Constant: value must be positive; got -1.0"):
        RBF() + (-1.0)
    with pytest.raises(TypeError):
        RBF() + "1"
    for make in (Polynomial, Scaled):
        with pytest.raises(ValueError, match=r"must be one number; got shape \(3,\)\. Scale the rows"):
            make(*([RBF()] if make is Scaled else [2]), torch.ones(3))
    with pytest.raises(ValueError, match=r"one number, or a vector with one for each feature; got shape \(1, 3\)"):
        RBF(torch.ones(1, 3))
    assert float(Polynomial(2, coef0=torch.tensor(2.0))(torch.zeros(1, 1))) == 4.0
    with pytest.raises(ValueError, match="RBF: gamma must be positive; got wide"):
        RBF("wide")
    with pytest.raises(ValueError, match=r"RBF.numpy: X must be rows of numbers; got .*Encode text"):
        RBF().numpy(np.array([["a", "b"]]))


def test_kernels_in_a_list_can_be_summed():
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sum([RBF(), Linear()])(x), (RBF() + Linear())(x))
    torch.testing.assert_close(RBF([0.5, 2.0])(x), RBF(torch.tensor([0.5, 2.0]))(x))


def test_a_gram_larger_than_memory_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(mercer.checks, "available_memory", lambda: 2**28)
    x = torch.zeros(20_000, 1)
    with pytest.raises(MemoryError, match=r"20000 x 20000 Gram matrix needs 1.5 GiB; got 0.2 GiB free.*Nystrom"):
        RBF()(x)


def test_moving_devices_is_left_to_the_user():
    with pytest.raises(ValueError, match="x and the kernel must be on one device"):
        RBF(learnable=True)(torch.ones(2, 2, device="meta"))


def test_large_values_do_not_turn_into_nan():
    for kernel in (RBF(), Matern(), Laplacian(), Cosine()):
        for value, dtype in ((1e18, torch.float32), (1e150, torch.float64)):
            x = torch.tensor([[value, 0.0], [0.0, value], [-value, 1.0]], dtype=dtype)
            assert torch.isfinite(kernel(x)).all()


@pytest.mark.parametrize(
    "make",
    [lambda: RBF(0.7, learnable=True), lambda: Polynomial(2, 0.5, 1.5, learnable=True)],
    ids=["rbf", "polynomial"],
)
def test_learned_numbers_have_an_axis(make):
    assert all(parameter.shape == (1,) for parameter in make().parameters())  # FSDP2 refuses shape ()


def test_new_kernels_equal_scikit_learn():
    from sklearn.gaussian_process import kernels as theirs

    x = np.random.default_rng(0).normal(size=(20, 4))
    np.testing.assert_allclose(RationalQuadratic(0.8, 1.7).numpy(x), theirs.RationalQuadratic(1.7, 0.8)(x), atol=1e-12)
    one = x[:, :1]
    np.testing.assert_allclose(Periodic(2.5, 1.7).numpy(one), theirs.ExpSineSquared(1.7, 2.5)(one), atol=1e-12)
    ard = [0.5, 1.0, 2.0, 3.0]
    np.testing.assert_allclose(Matern(1.5, ard).numpy(x), theirs.Matern(ard, nu=1.5)(x), atol=1e-12)


def test_frequencies_of_the_rational_quadratic_have_its_spectral_density(generator):
    kernel = RationalQuadratic(1.5, 0.8)
    normal = torch.randn(40_000, 2, generator=generator, dtype=torch.float64)
    omega = kernel.frequencies(normal, generator)
    x = torch.tensor([[0.3, -0.4], [1.0, 0.5]], dtype=torch.float64)
    means = (x @ omega.mT).cos()
    error = means.std(1) / means.shape[1] ** 0.5
    assert ((means.mean(1) - kernel(x, torch.zeros(1, 2, dtype=torch.float64))[:, 0]).abs() < 4 * error).all()


EXTREMES = [(1e30, torch.float32), (1e200, torch.float64), (1e-40, torch.float32), (1e-310, torch.float64)]


def signed_rows(kernel, seed=0):
    """Rows with opposite, orthogonal and zero rows among them, the largest entry 1."""
    x = rows(kernel, 5, seed)
    x = x / x.abs().max()
    x[1], x[2] = 0, -x[0]
    x.flatten(1)[3, 0] = x.flatten(1)[4, 1] = 0
    return x


@pytest.mark.parametrize(("scale", "dtype"), EXTREMES, ids=str)
def test_finite_rows_of_any_size_give_no_nan(plain_kernel, scale, dtype):
    if isinstance(plain_kernel, (FunctionKernel, Precomputed)):
        pytest.skip("the user's own function, or no rows at all")
    x, y = ((signed_rows(plain_kernel, seed) * scale).to(dtype) for seed in (0, 1))
    for kernel in (plain_kernel, plain_kernel.normalized(), ReLUGram(plain_kernel)):
        try:
            answers = [kernel(x), kernel(x, y), kernel(y, (x / scale).to(dtype)), kernel.diag(x)]
        except ValueError as error:  # a part of a compound overflows even in float64
            assert "overflow" in str(error) and scale > 1
        else:
            assert not any(answer.isnan().any() for answer in answers)


@pytest.mark.parametrize("make", [Linear, lambda: Polynomial(1, 1e-36, 0.5), lambda: Polynomial(3, 0.5)])
def test_products_of_huge_rows_are_exact_or_infinite(make):
    kernel = make()
    x, y = signed_rows(kernel).float() * 1e30, signed_rows(kernel, 1).float() * 1e30
    y[3] = torch.tensor([1e-8, 0.0, 2e-8])  # one small row is not lost beside the others
    torch.testing.assert_close(kernel(x, y), kernel(x.double(), y.double()).float(), rtol=1e-5, atol=0)
    vmapped = torch.vmap(lambda row: kernel.gram(row[None], y)[0])(x)
    torch.testing.assert_close(vmapped, kernel(x, y))


@pytest.mark.parametrize(
    "base", [Linear(), Polynomial(3, coef0=0.0), ArcCosine(2), NTK(2), NNGP(1), Linear() * NTK(1), 2.0 * Linear() ** 2]
)
@pytest.mark.parametrize(("scale", "dtype"), EXTREMES[:3], ids=str)
def test_lengths_cancel_in_normalized_homogeneous_kernels(base, scale, dtype):
    x = signed_rows(base)
    far = (x * scale).to(dtype).requires_grad_()
    tolerance = 1e-3 if scale < 1 else 1e-5  # denormal numbers have few digits
    for kernel in (base.normalized(), ReLUGram(base)):
        gram = kernel(far)
        torch.testing.assert_close(gram.double(), kernel(x), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(kernel.diag(far), gram.diagonal(), rtol=1e-5, atol=1e-5)
    if scale > 1:
        (kernel(far) * torch.arange(25.0).reshape(5, 5)).sum().backward()
        assert far.grad.isfinite().all()


def test_parts_that_overflow_are_computed_in_float64_or_refused():
    x = signed_rows(Linear()).float() * 1e30
    y = -x + 1e28
    for kernel in (RBF() * Polynomial(2), Linear() + Polynomial(2), Polynomial(2).normalized(), NTK(1, bias_var=0.1)):
        torch.testing.assert_close(kernel(x, y), kernel(x.double(), y.double()).float())
    match = r"Product: k\(x, y\) must not overflow in a part of the kernel; got entries up to 1.0e\+200\. Standardise"
    with pytest.raises(ValueError, match=match):
        (RBF() * Polynomial(2))(x.double() * 1e170)
    with pytest.raises(ValueError, match=r"Normalized: k\(x, y\) must not overflow"):  # not 0, as x / inf would be
        Polynomial(2).normalized()(x[:1].double() * 1e100, y[:1].double() / 1e30)
    x[0, 0] = torch.inf  # what is not finite from the start may stay so
    assert (RBF() * Polynomial(2))(x).isnan().any()


def test_a_learned_number_keeps_the_precision_it_came_in():
    value = torch.tensor(0.1, dtype=torch.float64)
    for kernel in (RBF(value, learnable=True), Polynomial(2, value, value, learnable=True)):
        for parameter in kernel.parameters():
            assert parameter.dtype == torch.float64 and parameter.exp().item() == pytest.approx(0.1, rel=1e-15)
    assert RBF(value.half(), learnable=True).gamma.log.dtype == torch.float32
    assert RBF(torch.tensor(2), learnable=True).gamma.log.dtype == torch.get_default_dtype()
